"""A trial between its begin and its end, and the study that a manager keeps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import optuna
from optuna.trial import FrozenTrial

from bigbatch.search_spaces.constraints import Constraint
from bigbatch.train_loop.config import TrainConfig
from bigbatch.tune.budget.ledger import Ledger
from bigbatch.tune.runs.observer import TrialView
from bigbatch.tune.runs.run import EPOCH_ATTR
from bigbatch.tune.runs.tables import epoch_of
from bigbatch.tune.storage.patient_journal import Disk

if TYPE_CHECKING:  # it imports SQLAlchemy, which the journal does not need
    from bigbatch.tune.storage.drivers import Drivers


class StudyKeeper(Protocol):
    """What a manager needs of a ``StudyStore``. The simulator has one in memory."""

    study: optuna.Study
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

    def checkpoint_folder(self, number: int) -> Path:
        """Of the trial with that number, whether it exists or not."""


class SharedGpus(Protocol):
    """How many trials share each GPU, as a manager asks and tells it."""

    def __call__(self) -> int:
        """The trials that share a GPU with one that begins now, with itself."""

    def lacked_memory(self, per_gpu: int) -> None:
        """A trial ran out of memory where ``per_gpu`` shared a GPU: fewer do from now on."""


@dataclass
class LiveTrial:
    """A trial that has begun and has not ended."""

    trial: optuna.trial.Trial
    view: TrialView
    config: TrainConfig
    started: float
    """By the manager's clock."""
    constraints: Sequence[Constraint] = ()
    waiting_for_first: bool = True
    """Whether no epoch has ended since the trial was started."""
    pausing: bool = False
    """Whether the strategy has paused it. Its processes still write their checkpoint."""
    gives_way: bool = False
    """Whether it ends the same way because the rest of a budget is for confirmations. It then waits in the study."""
    per_gpu: int = 1
    """The trials that share its GPU, with itself."""
    run: Sequence[FrozenTrial] = ()
    """The trial itself and those whose run it goes on with; see ``trials_of_run``."""
    reported: int = 0
    """The last epoch whose value the study has."""
    unrecorded: list[dict[str, object]] = field(default_factory=list)
    """Records that the study does not have yet: what their look has led to is not done."""

    def record_epochs(self) -> None:
        """Write the records that the study does not have yet."""
        for record in self.unrecorded:
            self.trial.set_user_attr(f"{EPOCH_ATTR}{epoch_of(record):05d}", record)
        self.unrecorded = []


class Over(Exception):
    """No more trials are needed, or none may start."""
