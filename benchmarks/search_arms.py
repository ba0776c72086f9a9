"""The searches that search_efficiency.py compares: ours by name, what came before, Ray's own, and bounds.

``stock`` is Ray Tune's ``OptunaSearch`` with ``ASHAScheduler``, both with their defaults, replayed without Ray: one
TPESampler for the whole search; a rung keeps the values of trials that came by, and stops one below the 75th percentile
of those before it, first after one epoch; a stopped trial is told COMPLETE with the value at which it was cut; a
diverged one stays RUNNING, because Optuna refuses its value.

``previous`` is what ``bigbatch tune`` did at commit 5e57802: TPE, and Optuna's successive halving from a quarter of the
longest run.

``bound_best_first`` knows the table and runs its best rows first. ``bound_losers_stopped`` draws rows at random and
stops for certain, after a tenth of its run, each that is not among the best hundredth. No search can do better by
proposing, or by stopping at that point.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import optuna
from optuna.pruners import SuccessiveHalvingPruner
from optuna.samplers import TPESampler
from optuna.study import Study
from optuna.trial import FrozenTrial
from replay.curves import CurveTable
from replay.search import Replay, ReplayedEpoch, RowConfigurations, drive, replay
from replay.stand_ins import RowPool, SimulatedClock, SnappingSampler, StartedTrial
from search_outcomes import top_rows

from bigbatch.tune.models.protocol import Fits, Lasts, SearchFacts, Strategy, TrialDecision
from bigbatch.tune.strategies import Combined, make_strategy

RAYS_FACTOR = 4
"""Ray's ASHAScheduler: ``reduction_factor``; its ``grace_period`` is 1."""
LOOK = 0.1

Enough = Callable[[ReplayedEpoch], bool]


def run(arm: str, table: CurveTable, slots: int, seed: int, budget_h: float, enough: Enough) -> Replay:
    """One simulated search. ``arm``: one of FIXED, or ``STRATEGY+STOPPING`` as ``bigbatch tune`` names them."""
    if arm == "stock":
        return _driven(Stock(table, seed), table, slots, budget_h, enough)
    if arm.startswith("bound_"):
        driver = Omniscient(table, seed, best_first=arm == "bound_best_first")
        return _driven(driver, table, slots, budget_h, enough)

    def make(facts: SearchFacts) -> Strategy:
        if arm == "previous":
            return previous(facts)
        strategy, _, stopping = FIXED.get(arm, arm).partition("+")
        return make_strategy(strategy, stopping, facts)

    return replay(table, make, slots, seed, budget_h, enough=enough)


FIXED = {
    "random": "random+none",
    "random_asha": "random+asha",
    "stock": "",
    "previous": "",
    "ours": "auto+auto",
    "bound_best_first": "",
    "bound_losers_stopped": "",
}


def _driven(driver: Stock | Omniscient, table: CurveTable, slots: int, budget_h: float, enough: Enough) -> Replay:
    found = drive(driver, table, slots, budget_h, driver.clock, enough=enough)
    return Replay(found, driver.decision_s, len({epoch.trial for epoch in found}))


# What came before


def previous(facts: SearchFacts) -> Strategy:
    """The strategy of commit 5e57802."""
    startup = max(4, min(10, facts.trials // 3))

    def sampler(number: int) -> TPESampler:
        own = (facts.seed * 1_000_003 + number * 7919) % 2**31
        return TPESampler(seed=own, n_startup_trials=startup, multivariate=True, group=True, constant_liar=True)

    first = max(1, facts.max_epochs // 4)
    return Combined(sampler, PreviousHalving(SuccessiveHalvingPruner(first, 3)))


@dataclass(frozen=True)
class PreviousHalving:
    """Optuna's pruner, asked and obeyed after every epoch."""

    pruner: SuccessiveHalvingPruner

    def look(self, study: Study, trial: FrozenTrial, epoch: int) -> TrialDecision:
        return TrialDecision.STOP if self.pruner.prune(study, trial) else TrialDecision.GO_ON

    def to_continue(self, study: Study, fits: Fits | None = None, lasts: Lasts | None = None) -> FrozenTrial | None:
        return None

    def is_over(self, study: Study) -> bool:
        return True


# Ray's own


@dataclass
class Stock:
    """``OptunaSearch`` and ``ASHAScheduler``, as far as a search without faults meets them."""

    table: CurveTable
    seed: int
    decision_s: list[float] = field(default_factory=list)
    clock: SimulatedClock = field(default_factory=SimulatedClock)

    def __post_init__(self) -> None:
        direction = self.table.objective.direction
        self.pool = RowPool(self.table)
        sampler = SnappingSampler(TPESampler(seed=self.seed), self.pool)
        self.study = optuna.create_study(sampler=sampler, direction=direction)
        rungs = int(math.log(self.table.max_epochs) / math.log(RAYS_FACTOR) + 1)
        self.rungs: list[tuple[int, dict[int, float]]] = [(RAYS_FACTOR**k, {}) for k in reversed(range(rungs))]
        self.trials: dict[int, optuna.Trial] = {}

    def start(self) -> StartedTrial | None:
        """``OptunaSearch.suggest``."""
        if not self.pool.left:
            return None
        began = time.perf_counter()
        trial = self.study.ask()
        RowConfigurations(self.pool).new(trial)
        self.trials[trial.number] = trial
        self.decision_s.append(time.perf_counter() - began)
        return StartedTrial(trial.number, self.pool.row(trial.number))

    def observe(self, number: int, epoch: int, value: float | None) -> bool:
        """``on_trial_result`` of searcher and scheduler, and ``on_trial_complete``."""
        if value is None:
            return True  # told a value that is not a number: Optuna refuses, the trial stays RUNNING
        trial, began = self.trials[number], time.perf_counter()
        trial.report(value, epoch)
        over = epoch >= self.table.curves[self.pool.row(number)].epochs or self._stops(number, epoch, value)
        if over:
            self.study.tell(trial, value)
        self.decision_s.append(time.perf_counter() - began)
        return over

    def _stops(self, number: int, epoch: int, value: float) -> bool:
        gain = self.table.objective.gain(value)
        for milestone, recorded in self.rungs:
            if epoch < milestone or number in recorded:
                continue
            before = list(recorded.values())
            recorded[number] = gain
            return bool(before) and bool(gain < np.nanpercentile(before, (1 - 1 / RAYS_FACTOR) * 100))
        return False


# Bounds


@dataclass
class Omniscient:
    """Knows how every row ends."""

    table: CurveTable
    seed: int
    best_first: bool
    decision_s: list[float] = field(default_factory=list)
    clock: SimulatedClock = field(default_factory=SimulatedClock)

    def __post_init__(self) -> None:
        rows = np.random.default_rng(self.seed).permutation(len(self.table.curves)).tolist()
        self.top = set(top_rows(self.table))
        self.waiting = list(self.table.order) if self.best_first else rows
        self.row: list[int] = []

    def start(self) -> StartedTrial | None:
        """The next row."""
        if not self.waiting:
            return None
        self.row.append(self.waiting.pop(0))
        return StartedTrial(len(self.row) - 1, self.row[-1])

    def observe(self, number: int, epoch: int, value: float | None) -> bool:
        """Losers end after a tenth of their run, unless all rows are wanted."""
        epochs = self.table.curves[self.row[number]].epochs
        stopped = not self.best_first and self.row[number] not in self.top and epoch >= LOOK * epochs
        return value is None or epoch >= epochs or stopped
