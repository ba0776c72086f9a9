"""The plan of a search: the checked facts that are known before Ray starts."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bigbatch.search_spaces.check import ParamRange
from bigbatch.search_spaces.registry import Space
from bigbatch.search_spaces.trainable_space import TrainableSpace
from bigbatch.search_spaces.workload import Workload
from bigbatch.train_loop.data.info import DataInfo
from bigbatch.tune.plan.frontier_plan import FrontierPlan
from bigbatch.tune.plan.gpu_sharing import AT_MOST, GpuSharing
from bigbatch.tune.plan.machine import Machine, Share
from bigbatch.tune.plan.options import SearchOptions
from bigbatch.tune.runs.confirm_rule import NOTHING, ConfirmRule
from bigbatch.tune.runs.knowledge import WARM_START, KnownStudy
from bigbatch.tune.runs.objective import HALF_A_POINT, TimeToTarget, Tolerance
from bigbatch.tune.runs.objectives import Objectives

if TYPE_CHECKING:
    from bigbatch.train_loop.data.sets.scan import FolderScan
    from bigbatch.tune.plan.enqueued_trial import EnqueuedTrial


@dataclass(frozen=True)
class SearchPlan:
    """The plan of one search. study.json keeps ``to_dict``; ``--resume`` compares ``identity`` with it."""

    study: str
    folder: Path
    space: Space
    data: DataInfo
    model: str
    model_was_auto: bool
    trials: int
    max_epochs: int
    budget_gpu_hours: float | None
    time_budget_s: float | None
    strategy: str
    stopping: str
    workers: int
    overrides: dict[str, Any]
    """``--set``: dotted keys of every configuration, and fixed parameters of the space. Neither is searched."""
    storage: str | None
    resume: bool
    seed: int
    address: str
    wandb: str
    machine: Machine
    share: Share
    ranges: Mapping[str, ParamRange]
    workload: Workload
    options: SearchOptions
    sharing: GpuSharing = field(default_factory=GpuSharing)
    """How many trials share a GPU. ``share`` has how many do now."""
    frontier: FrontierPlan | None = None
    """The values that the search compares, each with its own best configuration. None: all trials compare."""
    tolerance: Tolerance = HALF_A_POINT
    """By how much the answer may be worse than the best."""
    confirm: ConfirmRule = NOTHING
    """Which of the best trials are trained again with fresh seeds."""
    enqueued: tuple[EnqueuedTrial, ...] = ()
    """The configurations that the search tries first."""
    warm_start: tuple[KnownStudy, ...] = ()
    """What other studies say."""
    open_ended: bool = False
    """Whether the budget is the only limit. ``trials`` is then a guess, for which slots and disk are planned."""
    objectives: Objectives = field(default_factory=Objectives)
    baseline: Mapping[str, float] = field(default_factory=dict)
    """What a constant prediction reaches in an objective, as far as the user states it."""
    constraints: tuple[str, ...] = ()
    """The constraints of the space, in words."""
    own_code: Mapping[str, str] = field(default_factory=dict)
    """Fingerprints of the users' files that the search may use, by component."""
    scan: FolderScan | None = field(default=None, repr=False, compare=False)
    """The images of an image folder, listed once for all trials."""

    def __post_init__(self) -> None:
        if self.objectives.several or isinstance(self.objectives.first, TimeToTarget):
            # Its answer is the largest value that costs at most a tolerance of one objective.
            object.__setattr__(self, "frontier", None)

    @property
    def trainable(self) -> str | None:
        """``FILE.py:FUNCTION`` of a whole training function; None: our training loop trains."""
        return self.space.trainable if isinstance(self.space, TrainableSpace) else None

    @property
    def restarts(self) -> int:
        """How often a trial is started again after one of its processes dies. A cluster may lose nodes."""
        return 1 if self.address == "local" else 5

    @property
    def most_trials(self) -> int:
        """How many configurations the strategy proposes; without an end where a budget is the only limit."""
        return sys.maxsize if self.open_ended else self.trials

    @property
    def trial_limit(self) -> int | None:
        """How many trials the search makes; None: as many as the budget allows."""
        return None if self.open_ended else self.trials

    def identity(self) -> dict[str, object]:
        """The facts that define the study: a resumed search must have the same."""
        return {
            "space": self.space.name,
            "space_fingerprint": self.space.fingerprint,
            "trainable": self.trainable,
            "data": self.data.path or self.data.name,
            # Not known before the cluster is joined. A study that is killed earlier must not keep a guess.
            "model": None if self.model_was_auto and not self.machine.nodes else self.model,
            "max_epochs": self.max_epochs,
            "seed": self.seed,
            "objective": self.objectives.text,
            "overrides": json.loads(json.dumps(self.overrides)),  # as stored: JSON turns tuples into lists
            "lr_factors": dict(self.workload.lr_factors) or None,
            "batches": list(self.workload.batches) or None,
            "lr_spread": self.workload.lr_spread,
            "smaller_step": self.workload.smaller_step,
            "image_size": self.data.image_size,
            "train_size": self.data.train_size,
            "val_size": self.data.val_size,
            "holdout_size": self.data.holdout_size,
            "num_classes": self.data.num_classes,
            "classes_digest": hashlib.sha256(json.dumps(self.data.class_names).encode()).hexdigest()[:16],
        }

    def to_dict(self) -> dict[str, object]:
        """The plan as study.json keeps it."""
        return {
            **self.identity(),
            "space_source": self.space.source,
            "are_classes": self.data.are_classes,
            "trials": self.trial_limit,
            "budget_gpu_hours": self.budget_gpu_hours,
            "time_budget_s": self.time_budget_s,
            "strategy": self.strategy,
            "stopping": self.stopping,
            "workers": self.workers,
            "frontier": dataclasses.asdict(self.frontier) if self.frontier else None,
            "tolerance": str(self.tolerance),
            "baseline": dict(self.baseline),
            "confirm": str(self.confirm),
            "wandb": self.wandb,
            "machine": self.machine.to_dict(),
            "concurrency": self.share.concurrency,
            AT_MOST: self.sharing.at_most,
            "enqueued": [trial.to_dict() for trial in self.enqueued],
            WARM_START: [study.to_dict() for study in self.warm_start],
            "own_code": dict(self.own_code),
            "options": self.options.kept(),
        }
