"""A run in a terminal: a line an epoch, and Ctrl-C that saves first."""

from __future__ import annotations

import os
import signal
import time
from types import FrameType

from train_loop.reporter import PrintReporter

SAME_SIGNAL_S = 3.0
"""torchrun passes a Ctrl-C on that its workers have already got from the terminal."""


class StopOnSignal(PrintReporter):
    """Ctrl-C stops the run after the current step, with a checkpoint; a later second one at once."""

    def __init__(self, rank: int) -> None:
        super().__init__(rank)
        self._rank = rank
        self._pid = os.getpid()
        self._since: float | None = None
        signal.signal(signal.SIGINT, self._note)

    def stop_requested(self) -> bool:
        return self._since is not None

    def _note(self, signum: int, frame: FrameType | None) -> None:
        if os.getpid() != self._pid:  # a loader process, which has inherited the handler
            return
        now = time.monotonic()
        if self._since is not None and now - self._since > SAME_SIGNAL_S:
            raise KeyboardInterrupt
        if self._since is None:
            self._since = now
            if self._rank == 0:  # print() may be what the signal has interrupted
                os.write(2, b"stopping after this step, with a checkpoint; Ctrl-C again to stop at once\n")
