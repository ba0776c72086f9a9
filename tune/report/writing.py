"""Write a report, by command and at a search's end."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Sequence
from pathlib import Path

from bigbatch.base.atomic_files import write_bytes
from bigbatch.tune.report.page import report_page
from bigbatch.tune.report.recorded_study import RecordedStudy, recorded_at_end
from bigbatch.tune.runs.run import AnyTrial

REPORT_FILE = "report.html"


def write_report(studies: Sequence[RecordedStudy], path: Path) -> None:
    """Write the page of these studies. Raises OSError; the file is then as it was."""
    write_bytes(path, report_page(studies).encode("utf-8", "replace"))


def report_at_end(folder: Path, trials: Sequence[AnyTrial]) -> str:
    """Write the report of a search that ends, and say where it is, in a line. A report that fails is a line too.

    Args:
        folder: the study's.
        trials: all of them.
    """
    path, shown = folder / REPORT_FILE, _from_here(folder)
    try:
        write_report([recorded_at_end(folder, trials)], path)
    except Exception as error:  # the search is over and saved: nothing may spoil its end
        reason = " ".join(str(error).split())[:200]
        again = f"bigbatch report {shlex.quote(str(shown))}"
        return f"The report was not written ({type(error).__name__}: {reason}). Try again: {again}"
    return f"Report: {shown / REPORT_FILE}"


def _from_here(folder: Path) -> Path:
    """The folder as a user would type it in the current one."""
    with contextlib.suppress(ValueError, OSError):
        return folder.relative_to(Path.cwd())
    return folder
