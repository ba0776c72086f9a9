"""A run in a terminal: Ctrl-C that saves first, and other signals like it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

from train_loop.reporter import PrintReporter

SAME_SIGNAL_S = 3.0
"""torchrun passes a Ctrl-C on that its workers have already got from the terminal."""


STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
"""What asks a run to save and end: Ctrl-C, a batch system, a closed terminal, a time limit that is near."""


def take_signals(handle: Callable[[int, Any], None]) -> dict[int, Any]:
    """Install ``handle`` for the stop signals; returns what they did before. ``nohup`` stays in force."""
    before: dict[int, Any] = {}
    for number in STOP_SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:
            before[number] = signal.signal(number, handle)
    return before


def give_signals_back(before: dict[int, Any]) -> None:
    for number, handler in before.items():
        signal.signal(number, handler)


def say_from_handler(text: str) -> None:
    """Write to stderr from a signal handler: print() may be what was interrupted, and stderr may be gone."""
    try:
        os.write(2, text.encode())
    except OSError:
        pass


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
