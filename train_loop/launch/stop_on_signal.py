"""A run without Ray that saves before it ends by a signal."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from types import FrameType

from bigbatch.cluster.host.waits import SAME_SIGNAL_S
from bigbatch.train_loop.host.signals import say_from_handler
from bigbatch.train_loop.reporter import PrintReporter


class StopOnSignal(PrintReporter):
    """Ctrl-C stops the run after the current step, with a checkpoint; a later second one at once.

    Args:
        rank: of this process; rank 0 speaks.
        signals: what stops the run. torchrun ends the ranks that are left with SIGTERM once one has
            failed: there it must not be taken for a request.
    """

    def __init__(self, rank: int, signals: Sequence[int] = (signal.SIGINT,)) -> None:
        super().__init__(rank)
        self._rank = rank
        self._pid = os.getpid()
        self._since: float | None = None
        self.signum: int | None = None
        for number in signals:
            signal.signal(number, self._note)

    def stop_requested(self) -> bool:
        return self._since is not None

    def _note(self, signum: int, frame: FrameType | None) -> None:
        if os.getpid() != self._pid:  # a loader process, which has inherited the handler
            return
        now = time.monotonic()
        if self._since is not None and now - self._since > SAME_SIGNAL_S:
            raise KeyboardInterrupt
        if self._since is None:
            self._since, self.signum = now, signum
            if self._rank == 0:
                say_from_handler("stopping after this step, with a checkpoint; Ctrl-C again to stop at once\n")
