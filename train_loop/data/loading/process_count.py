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
"""Processes should read this many times as fast as batches are taken. Then waiting for images costs little."""
TOLERATED_SLOWDOWN = 1.02
"""An epoch with fewer processes may take this much longer."""
SHRINK_BELOW = 0.75
"""The number is reduced only if at most this part of the processes is needed: restarting them costs seconds."""
MIN_MEASURED_S = 1.0
"""An epoch shorter than this measures nothing."""

T = TypeVar("T")


@dataclass(frozen=True)
class ReadCost:
    """The cost of reading some batches, in seconds."""

    taken_s: float
    """Time in which the consumer worked on batches: the epoch would take this long if reading cost nothing."""
    busy_s: float
    """Time in which processes worked, summed over all processes."""


def timed_batches(batches: Iterator[T], busy_s: Callable[[], float], done: Callable[[ReadCost], None]) -> Iterator[T]:
    """Yield ``batches``; after the last one, pass their cost to ``done``. A read that ends early measures nothing.

    Args:
        busy_s: seconds that the processes have worked so far.
    """
    taken, before = 0.0, busy_s()
    for batch in batches:
        given = time.perf_counter()
        yield batch
        del batch  # else it would hold its slot while the next one is awaited
        taken += time.perf_counter() - given
    done(ReadCost(taken, busy_s() - before))


def enough_processes(reads: Sequence[ReadCost], now: int, most: int) -> int:
    """The number of processes for an epoch like the measured one, at most ``most``.

    It is the lowest number with which the epoch would hardly take longer than with ``most``. Validation uses images
    several times as fast as training, but it is short and may wait a little.

    Args:
        reads: costs of the measured epoch.
        now: its number of processes.
    """

    def seconds(processes: int) -> float:
        return sum(max(read.taken_s, SUPPLY_MARGIN * read.busy_s / processes) for read in reads)

    if seconds(most) < MIN_MEASURED_S:
        return now
    wanted = next(count for count in range(1, most + 1) if seconds(count) <= TOLERATED_SLOWDOWN * seconds(most))
    return wanted if wanted > now or wanted <= SHRINK_BELOW * now else now
