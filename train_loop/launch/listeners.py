"""A reporter that lets a signal save and end a full run without Ray."""

from __future__ import annotations

import signal
from collections.abc import Sequence

from bigbatch.base.waits import SAME_SIGNAL_S
from bigbatch.train_loop.host.signals import SAVING, StopSignals, say_from_handler
from bigbatch.train_loop.reporter import PrintReporter, Tracker


class StopOnSignal(PrintReporter):
    """Ctrl-C stops the run after the current step, with a checkpoint; a later second one at once.

    Args:
        rank: rank of this process; only rank 0 prints.
        signals: the signals that stop the run. If a rank fails, torchrun ends the others with SIGTERM; under torchrun
            SIGTERM is therefore no stop request.
        tracker: see ``PrintReporter``.
    """

    def __init__(self, rank: int, signals: Sequence[int] = (signal.SIGINT,), tracker: Tracker | None = None) -> None:
        super().__init__(rank, tracker=tracker)
        self._rank = rank
        self._signals = StopSignals(self._asked, signals, also_ignored=True, same_signal_s=SAME_SIGNAL_S)
        self._signals.take()

    @property
    def signum(self) -> int | None:
        """The signal that stops the run; None if none has come."""
        return self._signals.first

    def stop_requested(self) -> bool:
        """Whether a signal has come."""
        return self._signals.first is not None

    def _asked(self, signum: int) -> None:
        if self._rank == 0:
            say_from_handler(SAVING)
