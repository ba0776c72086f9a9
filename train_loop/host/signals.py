"""Handle stop signals: the first one saves, a later Ctrl-C ends at once. For searches, full runs and single ranks.

A Slurm job (``cluster/job``) handles its signals in another way: it asks Slurm what each one means.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Sequence
from types import FrameType

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
"""Signals that ask a run to save and end: Ctrl-C, a batch system, a closed terminal, a near time limit."""
SAVING = "stopping after this step, with a checkpoint; Ctrl-C again to stop at once\n"


class StopSignals:
    """Calls ``asked`` at the first of the signals. A later Ctrl-C raises KeyboardInterrupt; other signals do nothing.

    Use it as a context manager, which restores the handlers at its end; or ``take`` the signals until the process ends.
    In a child process that inherits the handler, it does nothing.

    Args:
        asked: called once, in the signal's handler, with the signal's number.
        signals: the signals to handle. A signal that the process was started to ignore (``nohup``) stays ignored.
        also_ignored: handle those too, because the parent process passes its own signals on.
        same_signal_s: a Ctrl-C within this time after the first signal is the same one, received twice.
    """

    def __init__(
        self,
        asked: Callable[[int], None],
        signals: Sequence[int] = STOP_SIGNALS,
        *,
        also_ignored: bool = False,
        same_signal_s: float = 0.0,
    ) -> None:
        self._asked, self._signals = asked, signals
        self._also_ignored, self._same_signal_s = also_ignored, same_signal_s
        self._pid = os.getpid()
        self._before: dict[int, signal.Handlers | int | Callable[[int, FrameType | None], object] | None] = {}
        self._since = 0.0
        self.first: int | None = None
        """The number of the first signal; None before it."""

    def __enter__(self) -> StopSignals:
        self.take()
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def take(self) -> None:
        """Install the handlers; again after Ray or a library has replaced them."""
        for number in self._signals:
            if self._also_ignored or signal.getsignal(number) != signal.SIG_IGN:
                handler = signal.signal(number, self._handle)
                self._before.setdefault(int(number), handler)

    def waited_s(self) -> float:
        """Seconds since the first signal, 0 before it."""
        return 0.0 if self.first is None else time.monotonic() - self._since

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if os.getpid() != self._pid:
            return
        if self.first is None:
            self.first, self._since = signum, time.monotonic()
            self._asked(signum)
        elif signum == signal.SIGINT and self.waited_s() > self._same_signal_s:
            raise KeyboardInterrupt


def say_from_handler(text: str) -> None:
    """Write to stderr from a signal handler. The signal may have interrupted print(), and stderr may be closed."""
    with contextlib.suppress(OSError):
        os.write(2, text.encode())
