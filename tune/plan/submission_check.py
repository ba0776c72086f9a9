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
from bigbatch.search_spaces.registry import space_word  # noqa: E402
from bigbatch.train_loop.config import ConfigError  # noqa: E402
from bigbatch.train_loop.errors import OwnCodeError  # noqa: E402
from bigbatch.tune.plan.arguments import parse_options, tune_parser  # noqa: E402
from bigbatch.tune.plan.checked_plan import (
    DEFAULT_SPACE,
    check_option_values,
    make_plan,
    resumed_folder,
)
from bigbatch.tune.plan.options import SearchOptions
from bigbatch.tune.storage.description import resumed_description  # noqa: E402
from bigbatch.tune.storage.storage_url import check_url  # noqa: E402

NEEDED = ("ray", "optuna", "torch", "torchvision", "numpy", "pyarrow")
"""A search needs all of these packages."""


def main(argv: Sequence[str]) -> int:
    """Print the answer. The exit code says only whether there is an answer."""
    elsewhere = list(argv[:1]) == [CHECK_ELSEWHERE]
    missing = [] if elsewhere else [name for name in NEEDED if find_spec(name) is None]
    answer: dict[str, object] = {"refused": None, "unchecked": [], "missing": missing}
    try:
        options = _options(argv[1:] if elsewhere else argv)
        answer["unchecked"] = check_by_parts(options) if elsewhere or missing else check_whole_plan(options)
    except (ConfigError, OwnCodeError) as error:
        answer["refused"] = with_path_advice(str(error))
    print(CHECK_MARK + json.dumps(answer), flush=True)
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


def check_whole_plan(options: SearchOptions) -> list[str]:
    """Check everything that ``--dry-run`` checks. Raises ConfigError."""
    make_plan(options)
    if options.storage:
        check_url(options.storage)
    return []


def check_by_parts(options: SearchOptions) -> list[str]:
    """Make the checks that need no package and run no code of the user's. Raises ConfigError.

    Returns the checks that were left out, in words.
    """
    if options.resume:
        resumed_description(resumed_folder(options), options.storage)
    elif options.trainable is None and space_word(options.space or DEFAULT_SPACE) is None:
        with contextlib.suppress(ImportError):  # a package is missing
            return check_whole_plan(options)
    check_option_values(options)
    return ["the space, the data and the files that the options name"]


def with_path_advice(message: str) -> str:
    """``message``, and what to write if the path that it names is another one on the compute nodes."""
    if not re.search(r"'(?!timm/|torchmetrics/)[^'\s]*(/|\.py)[^'\s]*'", message):
        return message
    return f"{message.rstrip('.')}. If the compute nodes differ in that, write --no-check."


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
