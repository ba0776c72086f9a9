"""What stands for a cluster and for a space in a replay: slots in simulated time, and a pool of unused rows.

The slots train rows of a table, one epoch after the other, without order among the slots.

Nobody recorded the run of exactly the proposed parameters. The trial gets the nearest unused row's parameters instead,
in the study too, so that the strategy learns what was tried.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial

from bigbatch.tune.models.unit_space import UnitSpace
from replay.curves import CurveTable


class SimulatedClock:
    """Seconds since the replay's begin. Hand it to whatever asks for the time, as ``time.monotonic``."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@dataclass(frozen=True)
class StartedTrial:
    """A trial that a free slot begins or continues."""

    number: int
    row: int
    epoch: int = 0
    """Epochs that it has behind it: those of the paused trial that it continues."""


class ReplayDriver(Protocol):
    """What decides in a replay: what a slot begins, and what happens after an epoch."""

    def start(self) -> StartedTrial | None:
        """What a free slot does next; None: nothing now."""

    def observe(self, number: int, epoch: int, value: float | None) -> bool:
        """Take in a trial's epoch (1-based). ``value`` None: it diverged in it. Returns whether the trial has ended."""


@dataclass(frozen=True)
class EpochEnd:
    """An epoch of a trial that ended in the replay."""

    at_s: float
    trial: int
    row: int
    epoch: int
    value: float | None
    """None: the run diverged in this epoch."""


def run_slots(
    driver: ReplayDriver, table: CurveTable, slots: int, clock: SimulatedClock, until_s: float, resume_s: float
) -> Iterator[EpochEnd]:
    """Replay until ``until_s`` or until the driver starts nothing more. Yields each epoch before the driver sees it.

    Args:
        resume_s: what a continued trial waits before its next epoch: its processes start, its checkpoint is read.
    """
    waiting: list[tuple[float, int, StartedTrial]] = []
    count = 0

    def push(trial: StartedTrial, at_s: float) -> None:
        nonlocal count
        count += 1
        # The count decides between equal times; trials themselves have no order.
        heapq.heappush(waiting, (at_s, count, trial))

    while True:
        while len(waiting) < slots and (begun := driver.start()) is not None:
            extra_s = resume_s if begun.epoch else 0.0
            push(begun, clock.now_s + extra_s + epoch_seconds(table, begun.row, begun.epoch + 1))
        if not waiting:
            return
        at_s, _, trial = heapq.heappop(waiting)
        if at_s > until_s:
            return
        clock.now_s = at_s
        curve, epoch = table.curves[trial.row], trial.epoch + 1
        value = curve.values[epoch - 1] if epoch <= len(curve.values) else None
        yield EpochEnd(at_s, trial.number, trial.row, epoch, value)
        if not driver.observe(trial.number, epoch, value):
            onward = StartedTrial(trial.number, trial.row, epoch)
            push(onward, at_s + epoch_seconds(table, trial.row, epoch + 1))


def epoch_seconds(table: CurveTable, row: int, epoch: int) -> float:
    """How long that epoch (1-based) of the row took. One that ended in divergence at an unknown time: a mean one."""
    curve = table.curves[row]
    if epoch > len(curve.seconds):
        return table.epoch_s
    return curve.seconds[epoch - 1] - (curve.seconds[epoch - 2] if epoch > 1 else 0.0)


class RowPool:
    """The rows of a table, each given out once."""

    def __init__(self, table: CurveTable) -> None:
        self.table = table
        self._space = UnitSpace(table.dimensions)
        rows = range(len(table.curves))
        self._positions = np.array([self._space.encode(table.params(row)) for row in rows])
        self._free = np.ones(len(table.curves), bool)
        self._row_of: dict[int, int] = {}

    @property
    def left(self) -> int:
        """How many rows are unused."""
        return int(self._free.sum())

    def take(self, number: int, proposed: Mapping[str, object]) -> int:
        """The row for trial ``number``: the unused one that is nearest to what was proposed. One must be left.

        A trial that had to wait for room in the budget keeps the row that it was given first.
        """
        if number in self._row_of:
            return self._row_of[number]
        rows = np.flatnonzero(self._free)
        distances = ((self._positions[rows] - self._space.encode(proposed)) ** 2).sum(axis=1)
        row = int(rows[distances.argmin()])
        self._free[row] = False
        self._row_of[number] = row
        return row

    def row(self, number: int) -> int:
        """The row that trial ``number`` has."""
        return self._row_of[number]

    def hand_on(self, paused: int, number: int) -> None:
        """Trial ``number`` continues the paused one: it has the same row."""
        self._row_of[number] = self._row_of[paused]


class SnappingSampler(BaseSampler):
    """Asks a sampler for the whole configuration and gives the trial the nearest unused row's."""

    def __init__(self, inner: BaseSampler, pool: RowPool) -> None:
        self._inner, self._pool = inner, pool

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        """As the inner sampler."""
        self._inner.before_trial(study, trial)

    def after_trial(self, study: Study, trial: FrozenTrial, state: object, values: object) -> None:
        """As the inner sampler."""
        self._inner.after_trial(study, trial, state, values)  # type: ignore[arg-type]

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """All parameters: every one comes from the row."""
        return {d.name: d.distribution for d in self._pool.table.dimensions}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, object]:
        """The parameters of the row nearest to the proposal."""
        inner, proposed = self._inner, dict[str, object]()
        own_space = inner.infer_relative_search_space(study, trial)
        together = inner.sample_relative(study, trial, own_space)
        for d in self._pool.table.dimensions:
            if d.is_active(proposed):
                known = d.name in together
                value = together.get(d.name)
                proposed[d.name] = value if known else inner.sample_independent(study, trial, d.name, d.distribution)
        return self._pool.table.params(self._pool.take(trial.number, proposed))

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> object:
        """Never asked: ``sample_relative`` gives every parameter that exists."""
        raise AssertionError(f"{param_name} is no parameter of trial {trial.number}'s row")
