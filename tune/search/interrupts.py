"""Acknowledge Ctrl-C and similar signals at once, also while the driver's thread waits for Ray.

Python runs signal handlers in the main thread, and not during a call into Ray, which may last seconds. So Python also
writes the signal's number to a pipe (``signal.set_wakeup_fd``). A thread reads the pipe and prints the acknowledgement.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
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
        self._signalled_at: float | None = None
        self._event = threading.Event()

    def set(self, reason: str, signum: int | None = None) -> None:
        """Request the end. ``signum``: the signal, if there was one."""
        if signum is not None:
            self.signal = signum  # also after a spent budget: a second Ctrl-C must still end the search
            self._signalled_at = self._signalled_at or time.monotonic()
        if not self._event.is_set():
            self.reason = reason
            self._event.set()

    def is_set(self) -> bool:
        """Whether the search should end."""
        return self._event.is_set()

    def signalled_s(self) -> float:
        """Seconds since the first signal; 0 without one."""
        return 0.0 if self._signalled_at is None else time.monotonic() - self._signalled_at


class Interrupts:
    """Handles the stop signals of a search: the first ends it in order, a second Ctrl-C at once. A context manager."""

    def __init__(self, stop: StopRequest) -> None:
        self._stop = stop
        self._said = False
        self._pipe: tuple[int, int] | None = None
        self._signals = StopSignals(self._asked)
        self.text = STARTING
        """The text of the acknowledgement."""
        self._show: Callable[[str], None] | None = None

    def __enter__(self) -> Interrupts:
        self._signals.take()
        self._pipe = os.pipe()
        for end in self._pipe:
            # set_wakeup_fd takes no descriptor that blocks; the reading thread has to wait.
            os.set_blocking(end, False)
        os.set_blocking(self._pipe[0], True)
        # A full pipe needs no warning: one number in it is enough.
        other = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        if other != -1:  # a notebook's event loop listens there
            signal.set_wakeup_fd(other)
            self._close()
        else:
            threading.Thread(target=self._listen, args=(self._pipe[0],), daemon=True, name="interrupts").start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._pipe is not None:
            signal.set_wakeup_fd(-1)
            self._close()
        self._signals.give_back()

    def take_again(self) -> None:
        """Install the handlers again after Ray or a library has replaced them."""
        self._signals.take()
        if self._pipe is not None:
            signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)

    @contextmanager
    def shown_by(self, display: object) -> Iterator[None]:
        """Within the block, ``display.acknowledge`` shows the acknowledgement, if the display has that method.

        Afterwards the text says that the search has ended.
        """
        self.text, self._show = SEARCHING, getattr(display, "acknowledge", None)
        try:
            yield
        finally:
            self._show, self.text = None, ENDING

    def _asked(self, signum: int) -> None:
        self._stop.set("interrupted" if signum == signal.SIGINT else f"by {signal.Signals(signum).name}", signum)
        if self._pipe is None:
            self._acknowledge(None)

    def _listen(self, reader: int) -> None:
        try:
            # One byte for each signal.
            while numbers := os.read(reader, 64):
                if set(numbers) & self._signals.taken:
                    self._acknowledge(self._show)
        except OSError:
            return
        finally:
            os.close(reader)

    def _acknowledge(self, show: Callable[[str], None] | None) -> None:
        """Acknowledge once. A signal handler passes no ``show``: it may have interrupted code that holds its lock."""
        if not self._said:
            self._said = True
            show(self.text) if show else say_from_handler(f"\n{self.text}\n")

    def _close(self) -> None:
        """Close the writing end. The reader then ends and closes the other one."""
        assert self._pipe is not None
        os.close(self._pipe[1])
        self._pipe = None
