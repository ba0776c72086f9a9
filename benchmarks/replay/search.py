"""Replays a search over recorded curves: the search's own code, in simulated time, with the rows as trials.

Strategy, manager, study and ledger are those of ``bigbatch tune``. Simulated are the time, the machine (slots that
train one trial each) and the training (a row of the table). A proposal becomes the nearest unused row (stand_ins.py).
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import optuna
from optuna.samplers import BaseSampler
from optuna.storages import InMemoryStorage
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState

from bigbatch.train_loop.config import TrainConfig
from bigbatch.tune.budget.budget import Budget, Limits
from bigbatch.tune.budget.ledger import Ledger
from bigbatch.tune.budget.pace import Pace
from bigbatch.tune.models.protocol import Fits, Lasts, SearchFacts, Strategy, TrialDecision
from bigbatch.tune.proposers.samplers import quiet_optuna
from bigbatch.tune.runs.objective import Objective
from bigbatch.tune.runs.objectives import Objectives
from bigbatch.tune.runs.run import CONTINUES_ATTR, Kind, earlier_of
from bigbatch.tune.runs.tables import EPOCH_PARTS
from bigbatch.tune.storage.journal_file import Disk
from bigbatch.tune.strategies import make_strategy
from bigbatch.tune.trials.admission import Admission
from bigbatch.tune.trials.live_trial import Over
from bigbatch.tune.trials.trial_manager import TrialManager
from replay.curves import CurveTable
from replay.stand_ins import (
    ReplayDriver,
    RowPool,
    SimulatedClock,
    SnappingSampler,
    StartedTrial,
    epoch_seconds,
    run_slots,
)

if TYPE_CHECKING:
    from bigbatch.tune.storage.drivers import Drivers

RESUME_S = 10.0
"""What continuing a paused trial costs, in seconds: its processes start, its checkpoint is read."""

BATCH_NAMES = ("global_batch_size", "batch.global_size", "batch_size")
"""Columns of tables that mean the global batch."""

MakeStrategy = Callable[[SearchFacts], Strategy]


@dataclass(frozen=True)
class ReplayedEpoch:
    """An epoch of a simulated search."""

    hours: float
    """Slot hours since the search began: slots × wall hours. With one GPU a slot, GPU hours."""
    trial: int
    parameters: Mapping[str, object]
    value: float | None
    """After this epoch. None: the trial diverged in it."""
    finished: bool
    """Whether the trial has reached its end with this epoch."""


@dataclass(frozen=True)
class Replay:
    """A simulated search."""

    epochs: list[ReplayedEpoch]
    decision_s: list[float]
    """What the driver needed for each decision, in real seconds: to start a trial, and to take in an epoch."""
    begun: int
    """Rows of the table that were begun. A run that was paused and goes on is one."""


def replay_named(
    table: CurveTable,
    strategy: str,
    stopping: str,
    slots: int,
    seed: int = 0,
    budget_h: float = math.inf,
    *,
    trials: int | None = None,
    resume_s: float = RESUME_S,
) -> list[ReplayedEpoch]:
    """The epochs of ``replay`` with ``--strategy`` and ``--stopping`` as ``bigbatch tune`` names them."""

    def make(facts: SearchFacts) -> Strategy:
        return make_strategy(strategy, stopping, facts)

    return replay(table, make, slots, seed, budget_h, trials=trials, resume_s=resume_s).epochs


def replay(
    table: CurveTable,
    make: MakeStrategy,
    slots: int,
    seed: int,
    budget_h: float,
    *,
    trials: int | None = None,
    resume_s: float = RESUME_S,
    enough: Callable[[ReplayedEpoch], bool] = lambda epoch: False,
) -> Replay:
    """A simulated search, with the strategy that ``make`` returns.

    Args:
        slots: trials that run at the same time.
        budget_h: slot hours after which the search ends; a trial begins only if it fits, as with
            ``--budget-gpu-hours``. Infinite: when every row was used.
        trials: configurations that the search tries at most. None: all rows.
        resume_s: what a continued trial waits, in seconds.
        enough: of an epoch: whether the search ends after it.
    """
    quiet_optuna()
    pool, clock = RowPool(table), SimulatedClock()
    # Of a loss nobody knows what a diverged run is worth: the highest first value may be a thousand times the others.
    worst = table.worst if table.objective.direction == "maximize" else math.nan
    objective = replace(table.objective, worst=worst)
    count = min(trials or pool.left, pool.left)
    open_ended = trials is None and math.isfinite(budget_h)
    facts = SearchFacts(table.dimensions, count, table.max_epochs, slots, seed, objective, open_ended=open_ended)
    with tempfile.TemporaryDirectory(prefix="bigbatch-replay-") as folder:
        keeper = MemoryKeeper(Path(folder), clock, objective)
        keeper.ledger.hold(slots)
        manager = TrialManager(
            keeper,
            _SnappedStrategy(make(facts), pool),
            RowConfigurations(pool),
            objectives=Objectives((objective,)),
            trials=count,
            workers=1,
            observers=[],
            admission=Admission(_budget(keeper.ledger, slots, budget_h, clock)),
        )
        driver = _SearchDriver(manager, pool, objective)
        found = drive(driver, table, slots, budget_h, clock, resume_s, enough)
    return Replay(found, driver.decision_s, len({pool.row(epoch.trial) for epoch in found}))


def _budget(ledger: Ledger, slots: int, budget_h: float, clock: SimulatedClock) -> Budget:
    """The budget of a search that holds ``slots`` devices. Nothing has to be written at its end, so that takes no
    time."""
    limits = Limits(budget_h * 3600 if math.isfinite(budget_h) else None)
    return Budget(limits, Pace(), held_s=lambda: ledger.held_s, devices=lambda: slots, clock=clock, ending_s=0.0)


def drive(
    driver: ReplayDriver,
    table: CurveTable,
    slots: int,
    budget_h: float,
    clock: SimulatedClock,
    resume_s: float = RESUME_S,
    enough: Callable[[ReplayedEpoch], bool] = lambda epoch: False,
) -> list[ReplayedEpoch]:
    """What ``driver`` does with the slots, until ``budget_h`` slot hours are spent or an epoch is ``enough``."""
    found = []
    for end in run_slots(driver, table, slots, clock, budget_h * 3600 / slots, resume_s):
        finished = end.value is not None and end.epoch == table.curves[end.row].epochs
        hours = end.at_s * slots / 3600
        found.append(ReplayedEpoch(hours, end.trial, table.params(end.row), end.value, finished))
        if enough(found[-1]):
            break
    return found


class _WaitingFound(InMemoryStorage):
    """Optuna's storage in memory, which also finds trials that wait again: the budget had no room for them."""

    def set_trial_state_values(self, trial_id: int, state: TrialState, values: Sequence[float] | None = None) -> bool:
        """As Optuna's."""
        done = super().set_trial_state_values(trial_id, state, values)
        if state == TrialState.WAITING:
            # Optuna in memory never looks again below the last waiting trial that it has found.
            study_id, number = self._trial_id_to_study_id_and_number[trial_id]
            self._prev_waiting_trial_number[study_id] = min(number, self._prev_waiting_trial_number[study_id])
        return done


class MemoryKeeper:
    """A study in memory, as a ``StudyStore`` for the manager. The ledger's files lie in ``folder``."""

    def __init__(self, folder: Path, clock: SimulatedClock, objective: Objective) -> None:
        self.study = optuna.create_study(storage=_WaitingFound(), study_name="replay", direction=objective.direction)
        self.ledger = Ledger(folder / "ledger", clock)
        self.disk = Disk(folder)
        self.drivers: Drivers | None = None
        self._folder = folder

    def recover(self) -> None:
        """Do nothing: no driver was killed."""

    def refresh(self) -> None:
        """Do nothing: there are no tables."""

    def drop_checkpoints(self) -> None:
        """Do nothing: there are none."""

    def checkpoint_folder(self, number: int) -> Path:
        """A folder that does not exist."""
        return self._folder / "checkpoints" / f"trial-{number:04d}"


class RowConfigurations:
    """Gives a trial its row: the row's parameters to the study, its epochs and warmup to the configuration."""

    name = "recorded curves"

    def __init__(self, pool: RowPool) -> None:
        self._pool = pool

    def new(self, trial: Trial) -> TrainConfig:
        """Ask the sampler, whose proposal becomes a row; a continuation has the paused trial's row."""
        if CONTINUES_ATTR in trial.user_attrs:
            self._pool.hand_on(int(trial.user_attrs[CONTINUES_ATTR]), trial.number)
        params: dict[str, object] = {}
        for dimension in self._pool.table.dimensions:
            if dimension.is_active(params):
                params[dimension.name] = trial._suggest(dimension.name, dimension.distribution)
        curve = self._pool.table.curves[self._pool.row(trial.number)]
        return _configuration(curve.epochs, min(curve.warmup_epochs, curve.epochs), _batch(curve.params))

    def again(self, stored: Mapping[str, object]) -> TrainConfig:
        """The stored configuration."""
        return TrainConfig.from_dict(dict(stored))


@cache
def _configuration(epochs: int, warmup_epochs: float, batch: int | None) -> TrainConfig:
    keys = {"epochs": epochs, "schedule.warmup_epochs": warmup_epochs}
    return TrainConfig().replace_keys(keys if batch is None else {**keys, "batch.global_size": batch})


def _batch(params: Mapping[str, object]) -> int | None:
    """The row's global batch, for which a budget measures epochs separately; None if the row does not say it."""
    found = (params.get(name) for name in BATCH_NAMES)
    # True is an int too, and no batch.
    return next((value for value in found if type(value) is int and value >= 2), None)


class _SnappedStrategy:
    """A strategy whose proposals become rows."""

    def __init__(self, inner: Strategy, pool: RowPool) -> None:
        self._inner, self._pool = inner, pool

    def sampler(self, number: int) -> BaseSampler:
        return SnappingSampler(self._inner.sampler(number), self._pool)

    def look(self, study: Study, trial: FrozenTrial, epoch: int) -> TrialDecision:
        return self._inner.look(study, trial, epoch)

    def to_continue(self, study: Study, fits: Fits | None = None, lasts: Lasts | None = None) -> FrozenTrial | None:
        return self._inner.to_continue(study, fits, lasts)

    def is_over(self, study: Study) -> bool:
        return self._inner.is_over(study)


class _SearchDriver:
    """Lets a manager decide what the slots do."""

    def __init__(self, manager: TrialManager, pool: RowPool, objective: Objective) -> None:
        self._manager, self._pool, self._objective = manager, pool, objective
        self._names: dict[int, str] = {}
        self._epochs: dict[int, int] = {}
        self.decision_s: list[float] = []

    def start(self) -> StartedTrial | None:
        """The manager's next trial."""
        while True:
            began = time.perf_counter()
            try:
                live = self._manager.next_trial(str(len(self.decision_s)))
            except Over:
                return None
            self.decision_s.append(time.perf_counter() - began)
            if live is None:
                return None
            number, row = live.number, self._pool.row(live.number)
            self._names[number] = str(len(self.decision_s) - 1)
            epochs = self._epochs.get(earlier_of(live), 0) if live.kind == Kind.CONTINUATION else 0
            if self._sends_its_past(number, row, epochs):
                return StartedTrial(number, row, epochs)

    def _sends_its_past(self, number: int, row: int, epochs: int) -> bool:
        """A continued trial first reports its past again, as a resumed run does. Returns whether it then goes on."""
        values = self._pool.table.curves[row].values
        return not any(self.observe(number, epoch, values[epoch - 1]) for epoch in range(1, epochs + 1))

    def observe(self, number: int, epoch: int, value: float | None) -> bool:
        """The manager takes in the epoch, and asks its strategy."""
        name, began = self._names[number], time.perf_counter()
        self._epochs[number] = epoch
        # A finite loss: here the value alone says whether the run has diverged.
        record = {"epoch": epoch, self._objective.name: math.nan if value is None else value, "val_loss": 0.0}
        seconds = epoch_seconds(self._pool.table, self._pool.row(number), epoch)
        decision = self._manager.take_in(name, {**record, EPOCH_PARTS[0]: seconds})
        if decision == TrialDecision.PAUSE:
            self._manager.ended(name)
        self.decision_s.append(time.perf_counter() - began)
        return decision != TrialDecision.GO_ON
