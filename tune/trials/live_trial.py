"""A running trial, the study that a manager works on, and what the manager asks before it acts. No Ray.

Other drivers may share the study (``tune/storage/drivers.py``). Without a database there are none, and every answer is
the one of a driver that is alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import optuna
from optuna.trial import FrozenTrial, TrialState

from bigbatch.train_loop.config import TrainConfig
from bigbatch.tune.budget.ledger import Ledger
from bigbatch.tune.runs import retry
from bigbatch.tune.runs.run import EPOCH_ATTR, Run, count_ended
from bigbatch.tune.runs.tables import epoch_of
from bigbatch.tune.storage.journal_file import Disk

if TYPE_CHECKING:  # it imports SQLAlchemy, which the journal does not need
    from bigbatch.tune.storage.drivers import Drivers


class StudyKeeper(retry.StudyWithCheckpoints, Protocol):
    """What a manager needs of a ``StudyStore``. A replay has one in memory."""

    ledger: Ledger
    disk: Disk
    drivers: Drivers | None
    """The drivers of a study in a database; None without one."""

    def recover(self) -> None:
        """Repair trials that a killed driver left RUNNING."""

    def refresh(self) -> None:
        """Rewrite the files made from the study, if it is time for that."""

    def drop_checkpoints(self) -> None:
        """Remove checkpoints that nobody needs."""


class SharedGpus(Protocol):
    """How many trials share each GPU, as a manager asks and tells it."""

    def __call__(self) -> int:
        """The trials that share a GPU with one that begins now, with itself."""

    def lacked_memory(self, per_gpu: int) -> None:
        """A trial ran out of memory where ``per_gpu`` shared a GPU: fewer do from now on."""


class ClusterNodes(Protocol):
    """The nodes of a search, by Ray's ids, as a manager asks and tells them."""

    @property
    def count(self) -> int:
        """How many there are."""

    def can_avoid(self, nodes: Collection[str]) -> bool:
        """Whether a trial fits on the others."""

    def give_up(self, node: str) -> None:
        """No trial of this search begins there any more."""


@dataclass
class LiveTrial(Run):
    """A run that has begun here and has not ended: what the study has of it, and what only its manager knows."""

    trial: optuna.trial.Trial = field(kw_only=True)
    """By which the study is written."""
    chain: Sequence[FrozenTrial] = ()
    """The trial itself and those that it goes on with; see ``trials_of_run``."""
    works: bool = True
    """Whether its workers run; else they only start."""
    waiting_for_first: bool = True
    """Whether no epoch has ended since the trial was started."""
    pausing: bool = False
    """Whether the strategy has paused it. Its processes still write their checkpoint."""
    unrecorded: dict[str, object] = field(default_factory=dict)
    """Attributes with records that the study does not have yet: the strategy's decision on their epoch is not carried
    out yet."""

    @property
    def train_config(self) -> TrainConfig:
        """What it trains."""
        return TrainConfig.from_dict(dict(self.config))

    def note(self, attrs: Mapping[str, object]) -> None:
        """Write user attributes to the study."""
        for name, value in attrs.items():
            self.trial.set_user_attr(name, value)
        self.user_attrs |= attrs

    def take_in(self, record: dict[str, object]) -> None:
        """Add the record of an epoch. The study gets it with ``record_epochs``."""
        new = {f"{EPOCH_ATTR}{epoch_of(record):05d}": record}
        self.user_attrs |= new
        self.unrecorded |= new

    def record_epochs(self) -> None:
        """Write the records that the study does not have yet."""
        self.note(self.unrecorded)
        self.unrecorded = {}


class Over(Exception):
    """No more trials are needed, or none may start."""


TAKEN_OVER = "another driver of the study has taken it over, because this one gave no sign of life"


class SharedStudy:
    """The study of ``store``, and the drivers that work on it."""

    def __init__(self, store: StudyKeeper) -> None:
        self._store, self._study, self._drivers = store, store.study, store.drivers

    @property
    def with_others(self) -> bool:
        """Whether the study has ever had another driver."""
        return self._drivers is not None and self._drivers.with_others

    @contextlib.contextmanager
    def turn(self) -> Iterator[bool]:
        """The time in which this driver decides, and no other one. Gives False if another driver does not end its turn.

        At its beginning the trials of dead drivers are repaired.
        """
        if self._drivers is None:
            yield True
            return
        from bigbatch.tune.storage.database import study_lock

        with study_lock(self._study._storage, self._study.study_name) as may:
            if may:
                self._drivers.look()
                if self.with_others:
                    self._store.recover()
            yield may

    def begins(self, trial: optuna.trial.Trial) -> None:
        """This driver runs the trial from now on."""
        if self._drivers is not None:
            self._drivers.begins(trial, self._store.checkpoint_folder(trial.number))

    def holds(self, trial: optuna.trial.Trial) -> bool:
        """Whether this driver still runs a trial that it has begun."""
        if self._drivers is None:
            return True
        frozen = self._study._storage.get_trial(trial._trial_id)
        return self._drivers.is_own(frozen) and frozen.state == TrialState.RUNNING

    def ended(self, counted: int) -> int:
        """How many trials have ended, as ``--trials`` counts. ``counted``: those that this driver has counted."""
        return count_ended(self._study.get_trials(deepcopy=False)) if self.with_others else counted

    def elsewhere(self) -> int:
        """How many trials of the search other drivers run."""
        return self._drivers.runs_elsewhere(self._running()) if self.with_others and self._drivers else 0

    def must_stay(self, live: int) -> bool:
        """Whether a driver with nothing to begin must stay: it may have to take over a trial that runs elsewhere."""
        if self._drivers is None or all(map(self._drivers.is_own, self._running())):
            return False
        return live > 0 or self._drivers.waits_for_others()

    def _running(self) -> list[FrozenTrial]:
        return self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
