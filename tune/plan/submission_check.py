"""Check a search before it is submitted as a Slurm job, and answer in a line of JSON.

``cluster/submission/search_check.py`` runs this file with the job's interpreter, or with the login node's
(``--elsewhere``), which may have no package. In the second case only the options are checked.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import runpy
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

# Run as a file, Python looks into this folder first, where a module may have the name of a library.
if not __package__:
    here = Path(__file__).resolve().parents[2]  # a clone's root, or the installed package
    base = next(path for path in (here / "src" / "bigbatch" / "base", here / "base") if path.is_dir())
    runpy.run_path(str(base / "root.py"))["make_importable"](__file__)

from bigbatch.cluster.host.allocation import CHECK_ELSEWHERE, CHECK_MARK  # noqa: E402
from bigbatch.train_loop.config import ConfigError  # noqa: E402
from bigbatch.train_loop.errors import OwnCodeError  # noqa: E402
from bigbatch.tune.plan.arguments import parse_options, tune_parser  # noqa: E402
from bigbatch.tune.plan.checked_plan import check_option_values, make_plan  # noqa: E402
from bigbatch.tune.plan.options import SearchOptions  # noqa: E402
from bigbatch.tune.storage.storage_url import check_url  # noqa: E402

NEEDED = ("ray", "optuna", "torch", "torchvision", "numpy", "pyarrow")
"""A search needs all of these packages."""


def main(argv: Sequence[str]) -> int:
    """Print the answer. The exit code says only whether there is an answer."""
    elsewhere = list(argv[:1]) == [CHECK_ELSEWHERE]
    missing = ["all packages"] if elsewhere else [name for name in NEEDED if find_spec(name) is None]
    refused = None
    try:
        options = _options(argv[1:] if elsewhere else argv)
        if missing:
            check_option_values(options)
        else:
            check_whole_plan(options)
    except (ConfigError, OwnCodeError) as error:
        refused = with_path_advice(str(error))
    print(CHECK_MARK + json.dumps({"refused": refused, "missing": missing}), flush=True)
    return 0


def _options(arguments: Sequence[str]) -> SearchOptions:
    """Parse the options. Raises ConfigError with the parser's message."""
    parser_errors = io.StringIO()
    try:
        # argparse prints its message and exits; here it belongs into the answer.
        with contextlib.redirect_stderr(parser_errors):
            return SearchOptions(**parse_options(tune_parser(""), arguments))  # type: ignore[arg-type]
    except SystemExit:
        raise ConfigError(parser_errors.getvalue().strip().partition("error: ")[2]) from None


def check_whole_plan(options: SearchOptions) -> None:
    """Check everything that ``--dry-run`` checks. Raises ConfigError."""
    make_plan(options)
    check_url(options.storage)


def with_path_advice(message: str) -> str:
    """``message``, and what to write if the path that it names is another one on the compute nodes."""
    if not re.search(r"'(?!timm/|torchmetrics/)[^'\s]*(/|\.py)[^'\s]*'", message):
        return message
    return f"{message.rstrip('.')}. If the compute nodes differ in that, write --no-check."


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
