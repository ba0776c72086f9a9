"""How many loader processes a run keeps where ``data.loader.workers=-1``: judged by the epoch before.

An epoch that is too quick to judge changes nothing. Which process decodes an image decides nothing in it, so neither
the order of images nor their pixels depend on what is measured here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

SUPPLY_MARGIN = 1.2
"""Times the rate at which batches are taken: then waiting for images costs little."""
TOLERATED_SLOWDOWN = 1.02
"""An epoch with fewer processes may take so much longer."""
SHRINK_BELOW = 0.75
"""Processes are given up where so many or fewer would do: to start others costs seconds."""
MIN_MEASURED_S = 1.0
"""Of an epoch at least, or it says nothing."""

T = TypeVar("T")


@dataclass(frozen=True)
class ReadCost:
    """What reading some batches cost, seconds."""

    taken_s: float
    """In which the consumer was busy with batches, so what they would take if they came at once."""
    busy_s: float
    """That processes worked, summed over them."""


def timed_batches(batches: Iterator[T], busy_s: Callable[[], float], done: Callable[[ReadCost], None]) -> Iterator[T]:
    """``batches``; after the last one, what they cost. A read that is left early says nothing.

    Args:
        busy_s: seconds that the processes have worked so far.
    """
    taken, before = 0.0, busy_s()
    for batch in batches:
        given = time.perf_counter()
        yield batch
        del batch  # or its slot would be held while the next one is waited for
        taken += time.perf_counter() - given
    done(ReadCost(taken, busy_s() - before))


def enough_processes(reads: Sequence[ReadCost], now: int, most: int) -> int:
    """Processes for an epoch like the one that ``reads`` were of, which had ``now``; at most ``most``.

    The fewest with which it would take hardly longer than with all there may be. Validation takes images several
    times as fast as training, but is short: it may wait a little.
    """

    def seconds(processes: int) -> float:
        return sum(max(read.taken_s, SUPPLY_MARGIN * read.busy_s / processes) for read in reads)

    if seconds(most) < MIN_MEASURED_S:
        return now
    wanted = next(count for count in range(1, most + 1) if seconds(count) <= TOLERATED_SLOWDOWN * seconds(most))
    return wanted if wanted > now or wanted <= SHRINK_BELOW * now else now
