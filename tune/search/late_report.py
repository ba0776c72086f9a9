"""The report of a search that a signal ends. It is the last thing that the search does, and only if there is time.

Whoever sends the signal may kill the process some seconds later. So by then the study is saved, Ray has ended and the
lease is given back: a kill costs the report alone. The page is made in a thread that ends with the process.
"""

from __future__ import annotations

import shlex
import threading
from collections.abc import Sequence
from pathlib import Path

from optuna.trial import FrozenTrial
from rich.console import Console

from bigbatch.base.waits import REPORT_BEGINS_S, REPORT_S
from bigbatch.tune.console.wrapped import say
from bigbatch.tune.search.interrupts import StopRequest


class LateReport:
    """A context manager that writes the report of the study in ``folder`` at its end, if a signal has ended the search.

    Enter it before all that must end first.
    """

    def __init__(self, folder: Path, stop: StopRequest, console: Console) -> None:
        self._folder, self._stop, self._console = folder, stop, console
        self.trials: Sequence[FrozenTrial] = ()
        """What the report shows; without any there is none."""

    def __enter__(self) -> LateReport:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:  # else it fails, or there was a second Ctrl-C
            self.write()

    def write(self, most_s: float = REPORT_S) -> None:
        """Write it, or say how to get it. Takes at most ``most_s`` seconds."""
        if not self.trials:
            return
        said: list[str] = []
        if self._stop.signalled_s() <= REPORT_BEGINS_S:
            # daemon: a report that takes longer must not keep the process.
            writing = threading.Thread(target=lambda: said.append(self._report()), daemon=True, name="report")
            writing.start()
            writing.join(most_s)
        text = said[0] if said else f"For a report: bigbatch report {shlex.quote(str(self._folder))}"
        say(self._console, text)

    def _report(self) -> str:
        from bigbatch.tune.report.page import report_at_end  # needed only now

        return report_at_end(self._folder, self.trials)
