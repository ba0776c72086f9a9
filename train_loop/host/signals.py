"""The first signal saves, a Ctrl-C after it ends at once: for a search, a full run under Ray, and a rank without Ray.

A Slurm job (``cluster/job``) has another task with its signals. It asks Slurm what each one means, and decides then.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Sequence
from types import FrameType

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
"""What asks a run to save and end: Ctrl-C, a batch system, a closed terminal, a time limit that is near."""
SAVING = "stopping after this step, with a checkpoint; Ctrl-C again to stop at once\n"


class StopSignals:
    """Calls ``asked`` at the first of the signals. A later Ctrl-C raises KeyboardInterrupt; other signals do nothing.

    Use it as a context manager, which gives the signals back at its end, or ``take`` them to the process's end.
    A child process that inherits the handler does nothing with it.

    Args:
        asked: is called once, in the signal's handler, with the signal's number.
        signals: those to take. One that the process was started to ignore (``nohup``) stays ignored.
        also_ignored: take those too, because whoever has started this process hands its own signals on.
        same_signal_s: a Ctrl-C that follows the first signal so soon is the same one, which has come twice.
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
        """The number of the first signal, None before it."""

    def __enter__(self) -> StopSignals:
        self.take()
        return self

    def __exit__(self, *_: object) -> None:
        self.give_back()

    def give_back(self) -> None:
        """Put the handlers in place that were there before the first ``take``."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @property
    def taken(self) -> set[int]:
        """Numbers of the signals that are handled here."""
        return set(self._before)

    def take(self) -> None:
        """Also a second time: Ray and libraries put handlers of their own in place."""
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
    """Write to stderr from a signal handler: print() may be what was interrupted, and stderr may be gone."""
    with contextlib.suppress(OSError):
        os.write(2, text.encode())
