"""``bigbatch report STUDY``: one HTML file about a study. Takes no lease and changes no study."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from bigbatch.base.command_line import OneLineParser
from bigbatch.train_loop.config import ConfigError
from bigbatch.train_loop.host.command_line import check_page
from bigbatch.tune.console.text import said_in_one_line
from bigbatch.tune.storage.summary import DEFAULT_RUNS, find_study


def report_main(argv: Sequence[str]) -> int:
    """Write the report. Returns the exit code."""
    parser = OneLineParser(prog="bigbatch report", description="Write an HTML report of a study.")
    parser.add_argument("study", metavar="STUDY|PATH", help="a study's name in --output, or its folder")
    parser.add_argument("-o", "--file", metavar="FILE", help="where (default: report.html in the study's folder)")
    parser.add_argument("--output", metavar="DIR", default=DEFAULT_RUNS, help="the folder of studies (default: runs)")
    args = parser.parse_args(argv)
    return said_in_one_line(
        "bigbatch report",
        lambda: print(f"Report: {_write(args.study, args.file, Path(args.output))}"),
    )


def _write(name: str, file: str | None, output: Path) -> Path:
    folder = find_study(name, output)
    path = folder / "report.html" if file is None else _target(file)
    from bigbatch.tune.report.page import write_report
    from bigbatch.tune.report.recorded_study import open_recorded  # Optuna, which wrong input need not wait for

    study = open_recorded(folder)
    for problem in study.problems:
        print(f"warning: {study.name}: {problem}", file=sys.stderr)
    try:
        write_report(study, path)
    except OSError as error:
        raise ConfigError(
            f"-o must be a file that can be written; got {str(path)!r} ({error.strerror}). Write -o FILE."
        ) from None
    return path


def _target(file: str) -> Path:
    path = Path(file)
    # Renaming a file to /dev/null, a root's container would lose it; a pipe is opened for as long as nobody writes.
    if file == "-" or (os.path.exists(path) and not os.path.isfile(path)):
        raise ConfigError(
            f"-o takes a file; got {file!r}, which is a folder, a stream or a device. Write e.g. -o report.html."
        )
    check_page("-o", path)
    if not os.path.isdir(path.parent):
        raise ConfigError(f"-o needs a folder that exists; got {file!r}. Make {str(path.parent)!r} first.")
    return path
