"""The stop signals of a search, and the requests to end it early."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from bigbatch.train_loop.host.signals import StopSignals, say_from_handler

STOPPING = "Saving and stopping; Ctrl-C again to stop at once."


class StopRequest:
    """A request to end the search early: after a signal, or when a budget is spent. The first reason is kept."""

    def __init__(self) -> None:
        self.acknowledge: Callable[[str], None] = lambda text: say_from_handler(f"\n{text}\n")
        """Called in the signal's handler. A live table shows the text by itself."""
        self.reason: str | None = None
        self.signal: int | None = None
        self._event = threading.Event()

    def set(self, reason: str, signum: int | None = None) -> None:
        """Request the end. ``signum``: the signal, if there was one."""
        if signum is not None:
            self.signal = signum  # also after a spent budget: a second Ctrl-C must still end the search
        if not self._event.is_set():
            self.reason = reason
            self._event.set()

    def is_set(self) -> bool:
        """Whether the search should end."""
        return self._event.is_set()

    @contextmanager
    def acknowledged_by(self, shown: Callable[[str], None] | None) -> Iterator[None]:
        """Let ``shown`` acknowledge signals within the block; None: as outside."""
        before, self.acknowledge = self.acknowledge, shown or self.acknowledge
        try:
            yield
        finally:
            self.acknowledge = before


def stop_signals(stop: StopRequest) -> StopSignals:
    """The stop signals of a search: the first ends it in order, a second Ctrl-C at once.

    Python runs the handler between two calls into Ray, so its message may come a second later.
    """

    def asked(signum: int) -> None:
        stop.set("interrupted" if signum == signal.SIGINT else f"by {signal.Signals(signum).name}", signum)
        stop.acknowledge(STOPPING)

    return StopSignals(asked)
