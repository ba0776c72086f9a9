"""The stop signals of a search, and the requests to end it early."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from bigbatch.train_loop.host.signals import StopSignals, say_from_handler

STARTING = "Stopping; Ctrl-C again to stop at once."
SEARCHING = "Saving; Ctrl-C again to stop at once."
ENDING = "The search has ended and is saved; Ray's processes are stopping."


class StopRequest:
    """A request to end the search early: after a signal, or when a budget is spent. The first reason is kept."""

    def __init__(self) -> None:
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


class Interrupts:
    """Handles the stop signals of a search: the first ends it in order, a second Ctrl-C at once. A context manager.

    Python runs the handler between two calls into Ray, so that what it says may come a second later.
    """

    def __init__(self, stop: StopRequest) -> None:
        self._stop, self._signals = stop, StopSignals(self._asked)
        self._text: str | None = STARTING

    def __enter__(self) -> Interrupts:
        self._signals.take()
        return self

    def __exit__(self, *_: object) -> None:
        self._signals.give_back()

    def take_again(self) -> None:
        """Install the handlers again after Ray or a library has replaced them."""
        self._signals.take()

    @contextmanager
    def while_trials_are_shown(self, quiet: bool) -> Iterator[None]:
        """Within the block nothing is written past the display, in which the watch says ``SEARCHING``.

        A ``quiet`` display shows nothing: there it is said at once.
        """
        self._text = SEARCHING if quiet else None
        try:
            yield
        finally:
            self._text = ENDING

    def _asked(self, signum: int) -> None:
        self._stop.set("interrupted" if signum == signal.SIGINT else f"by {signal.Signals(signum).name}", signum)
        if self._text is not None:
            say_from_handler(f"\n{self._text}\n")
