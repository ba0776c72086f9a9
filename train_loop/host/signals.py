"""A run in a terminal: Ctrl-C that saves first, and other signals like it."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from typing import Any

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
    with contextlib.suppress(OSError):
        os.write(2, text.encode())
