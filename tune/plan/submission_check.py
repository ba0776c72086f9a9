"""Check a search before it is submitted as a Slurm job, and answer in a line of JSON.

``cluster/submission/search_check.py`` runs this file with the job's interpreter, or with the login node's
(``--elsewhere``), which may have no package. In the second case a space's file is read but not run,
and the answer names the checks that were left out.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import runpy
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

# Run as a file, Python looks into this folder first, where a module may have the name of a library.
if not __package__:
    here = Path(__file__).resolve().parents[2]  # a clone's root, or the installed package
    base = next(path for path in (here / "src" / "bigbatch" / "base", here / "base") if path.is_dir())
    runpy.run_path(str(base / "root.py"))["make_importable"](__file__)

from bigbatch.base.command_line import nearest_word  # noqa: E402
from bigbatch.cluster.host.allocation import CHECK_ELSEWHERE, CHECK_MARK  # noqa: E402
from bigbatch.search_spaces.registry import OPTION as SPACE  # noqa: E402
from bigbatch.search_spaces.registry import load_space, space_word  # noqa: E402
from bigbatch.search_spaces.trainable_space import own_space_word  # noqa: E402
from bigbatch.train_loop.config import ConfigError  # noqa: E402
from bigbatch.train_loop.config.own_names import absolute, own_name, source_text  # noqa: E402
from bigbatch.train_loop.config.plug_ins import is_own  # noqa: E402
from bigbatch.train_loop.data.catalogue import check_stage, describe_data_set, folder_path  # noqa: E402
from bigbatch.train_loop.errors import OwnCodeError  # noqa: E402
from bigbatch.train_loop.host.command_line import check_writable  # noqa: E402
from bigbatch.train_loop.model.networks import check_model_name  # noqa: E402
from bigbatch.tune.plan.arguments import parse_options, tune_parser  # noqa: E402
from bigbatch.tune.plan.checked_plan import (
    DEFAULT_OUTPUT,
    DEFAULT_SPACE,
    check_folder,
    check_option_values,
    check_study_name,
    make_plan,
    resumed_folder,
)
from bigbatch.tune.plan.enqueued import read_sources  # noqa: E402
from bigbatch.tune.plan.objective_options import given_baseline
from bigbatch.tune.plan.options import SearchOptions
from bigbatch.tune.plan.own_code import OPTION, read_own_objectives, trainable_name  # noqa: E402
from bigbatch.tune.plan.warm_start import described_study  # noqa: E402
from bigbatch.tune.storage.description import resumed_description  # noqa: E402
from bigbatch.tune.storage.storage_url import check_url  # noqa: E402

NEEDED = ("ray", "optuna", "torch", "torchvision", "numpy", "pyarrow")
"""A search needs all of these packages."""


def main(argv: Sequence[str]) -> int:
    """Print the answer. The exit code says only whether there is an answer."""
    elsewhere = list(argv[:1]) == [CHECK_ELSEWHERE]
    missing = [] if elsewhere else [name for name in NEEDED if find_spec(name) is None]
    answer: dict[str, object] = {"refused": None, "unchecked": [], "missing": missing}
    options = SearchOptions()
    try:
        options = _options(argv[1:] if elsewhere else argv)
        answer["unchecked"] = check_by_parts(options) if elsewhere or missing else check_whole_plan(options)
    except (ConfigError, OwnCodeError) as error:
        answer["refused"] = with_path_advice(str(error), options)
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
        options = _resumed(options)
    if options.trainable is not None:
        return _check_trainable(options, options.trainable)
    own = space_word(options.space or DEFAULT_SPACE)
    if own is None:
        load_space(options.space or DEFAULT_SPACE)
        with contextlib.suppress(ImportError):  # a package is missing: check each part by itself below
            return check_whole_plan(options)
    else:
        look_for_function(SPACE, own)
    checked = check_option_values(options)
    left = ["what the space returns"]
    try:
        check_stage(options.stage, describe_data_set(checked.data, open_some=True))
    except ImportError:
        absolute("--data", name) if is_own(name := checked.data.name) else folder_path(name)
        left.append("the images of --data")
    try:
        check_model_name(options.model or "resnet50") if options.model != "auto" else None
    except ImportError:
        left.append(f"whether there is a network {options.model}")
    _look_for_functions({"--model": options.model, "--loss": options.loss, "--optimizer": options.optimizer})
    _look_for_functions({"--strategy": options.strategy, "--stopping": options.stopping})
    _check_places(options)
    read_sources(options.enqueue)
    for path in options.warm_start:
        described_study(path)
    return left


def _look_for_functions(words: Mapping[str, str | None]) -> None:
    """Look for those that name a file of the user's. Raises ConfigError."""
    for key, word in words.items():
        if word and is_own(word):
            look_for_function(key, word)


def _check_trainable(options: SearchOptions, word: str) -> list[str]:
    """``check_by_parts`` of a search over a whole training function."""
    name = trainable_name(word)
    look_for_function(OPTION, str(name))
    look_for_function(SPACE, own_space_word(options.space, str(name)))
    given_baseline(read_own_objectives(options), options.baseline)
    _look_for_functions({"--strategy": options.strategy, "--stopping": options.stopping})
    check_option_values(options)
    _check_places(options)
    for path in options.warm_start:
        described_study(path)
    return ["what the space returns", f"the arguments of {OPTION}"]


def _resumed(options: SearchOptions) -> SearchOptions:
    stored = resumed_description(resumed_folder(options), options.storage)
    earlier = stored.get("options")
    return options.over(earlier) if isinstance(earlier, dict) else options


def _check_places(options: SearchOptions) -> None:
    output = Path(options.output or DEFAULT_OUTPUT)
    if options.study is None:
        check_writable("--output", output.absolute())
    else:
        if not options.resume:
            check_study_name(options.study)
        check_folder(output, options.study, options.resume)


def look_for_function(option: str, word: str) -> None:
    """Raise ConfigError if a file of the user's cannot be read, is no Python, or lacks the function's name."""
    name = own_name(option, word)
    path, function, source = name.path, name.function, source_text(option, name)
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError) as error:
        raise ConfigError(
            f"{option} needs a file that Python can run; got '{path}' with {type(error).__name__}: {error}. "
            f"Run `python '{path}'` to see where."
        ) from None
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.alias):
            names.add(node.asname or node.name)
    # What `from … import *` brings is not known without running it.
    if function not in names and "*" not in names:
        near = nearest_word(function, names)
        fix = f"Did you mean '{path}:{near}'?" if near else "Check its name."
        raise ConfigError(f"{option} FILE.py:FUNCTION must name a function of the file; got {function!r}. {fix}")


def with_path_advice(message: str, options: SearchOptions) -> str:
    """``message``, and what to write if the paths differ on the compute nodes."""
    word = space_word(options.space or DEFAULT_SPACE) or ""
    own = os.path.expanduser(word.rpartition(":")[0])
    places = [
        word,
        own,
        options.trainable.partition(".py")[0] if options.trainable else None,
        options.data,
        options.output or DEFAULT_OUTPUT,
        *options.enqueue,
        *options.warm_start,
    ]
    quoted = [f"{end}'" for place in places if place for end in (f"'{place}", f"/{place}", os.path.abspath(place))]
    quoted += [f"({os.path.abspath(own)})"] if own else []
    if message.startswith("--output") or any(text in message for text in quoted):
        stop = "" if message.endswith(".") else "."
        return f"{message}{stop} If the compute nodes differ in that, write --no-check."
    return message


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
