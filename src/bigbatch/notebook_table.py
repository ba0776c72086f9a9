"""The table of a search in a notebook: the terminal's, made of the study's journal and updated in place.

The search runs in another process. Its lines about single trials make room for the table; all others are printed.
"""

from __future__ import annotations

import io
import re
import sys
import threading
import time
from pathlib import Path
from typing import Any

from bigbatch.base import json_values
from bigbatch.cluster.host.optuna_journal import JOURNAL_NAME
from bigbatch.tune.report.recorded_study import open_recorded

ABOUT_A_TRIAL = re.compile(r"^\[[\d:]+\] trial \d+ ")
"""What the search prints about one trial, after the elapsed time."""
WIDTH = 110
LOOK_S = 1.0
READING_SHARE = 0.1
"""At most this part of the time is spent with reading the study."""
PAGE = '<pre style="line-height:1.25;font-family:monospace">{code}</pre>'


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook, which can update what it has shown."""
    shell = sys.modules.get("IPython")
    found = shell.get_ipython() if shell is not None else None
    return getattr(found, "kernel", None) is not None


class LiveTableInNotebook:
    """Takes the lines of a search; shows its trials as a table while it runs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._journal = folder / JOURNAL_NAME
        self._started = time.monotonic()
        self._seen = self._size()  # a resumed study is shown when something happens
        self._handle: Any = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True, name="notebook-table")
        self._thread.start()

    def __call__(self, line: str) -> None:
        """Print a line of the search, unless the table says the same."""
        if self._handle is None or not ABOUT_A_TRIAL.match(line):
            print(line, end="", flush=True)

    def close(self) -> None:
        """Show the last state, and stop."""
        self._over.set()
        self._thread.join()

    def _size(self) -> int:
        try:
            return self._journal.stat().st_size
        except OSError:  # there is none yet, or the study is in a database
            return 0

    def _follow(self) -> None:
        pause, over = LOOK_S, False
        while not over:
            over = self._over.wait(pause)
            size = self._size()
            if size == self._seen:
                continue
            begun, self._seen = time.monotonic(), size
            self._show()
            pause = max(LOOK_S, (time.monotonic() - begun) / READING_SHARE)

    def _show(self) -> None:
        from IPython.display import display

        text = _drawn(self._folder, self._started)
        if text is None:
            return
        if self._handle is None:
            self._handle = display(text, raw=True, display_id=True)
        else:
            self._handle.update(text, raw=True)


def _drawn(folder: Path, started: float) -> dict[str, str] | None:
    """The table as HTML and as text; None before the first trial."""
    from rich.console import Console

    from bigbatch.tune.console.columns import Columns
    from bigbatch.tune.console.display import SearchProgress, summary_line, trial_table
    from bigbatch.tune.runs.observer import trial_views

    recorded = open_recorded(folder)
    views = trial_views(recorded.trials, recorded.objectives)
    if not views:
        return None
    began = {trial.number: trial.datetime_start for trial in recorded.trials}
    for view in views:
        if view.state == "RUNNING" and (since := began[view.number]) is not None:
            view.started_at = since.timestamp()
    at_a_time = json_values.whole_number(recorded.description, "concurrency") or 1
    shown = {view.number: view for view in views}
    progress = SearchProgress(
        recorded.summary.planned, at_a_time, shown, Columns(), objectives=recorded.objectives, started=started
    )
    # rich would print into the notebook's cell by itself.
    console = Console(
        record=True, file=io.StringIO(), width=WIDTH, force_jupyter=False, force_terminal=True,
        markup=False, emoji=False,
    )  # fmt: skip
    console.print(trial_table(progress, WIDTH), summary_line(progress), sep="\n")
    # Kept: the text below is made of the same record.
    html = console.export_html(inline_styles=True, code_format=PAGE, clear=False)
    return {"text/html": html, "text/plain": console.export_text()}
