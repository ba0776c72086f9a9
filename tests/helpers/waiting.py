"""The one place where tests wait: until something happens, never for a fixed time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

LOOK_EVERY_S = 0.02


def wait_until(
    condition: Callable[[], object], why: str | Callable[[], str], limit_s: float = 240, every_s: float = LOOK_EVERY_S
) -> None:
    """Return once ``condition()`` is true; where it never is, an AssertionError says ``why`` after ``limit_s``.

    The limit matters in failure alone: it is minutes, for a busy machine may be ten times slower. ``every_s``: the time
    between two looks, longer where a look costs much.
    """
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not in {limit_s:g} s: {why if isinstance(why, str) else why()}")
        time.sleep(every_s)


@dataclass
class SetClock:
    """A clock that a test sets, in seconds."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now
