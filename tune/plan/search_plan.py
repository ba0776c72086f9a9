"""The plan of a search: the checked facts that are known before Ray starts.

Two parts of the plan come first: the frontier, the parameter whose values a search compares; and the trials with a
whole configuration, which a search tries before it proposes its own.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bigbatch.base import json_values
from bigbatch.search_spaces.check import ParamRange
from bigbatch.search_spaces.distribution import kept_choice
from bigbatch.search_spaces.registry import Space
from bigbatch.search_spaces.trainable_space import TrainableSpace
from bigbatch.search_spaces.workload import Workload
from bigbatch.train_loop.config import ConfigError, TrainConfig
from bigbatch.train_loop.data.info import DataInfo
from bigbatch.tune.plan.machine import AT_MOST, GpuSharing, Machine, Share
from bigbatch.tune.plan.options import SearchOptions
from bigbatch.tune.runs.confirm_rule import NOTHING, ConfirmRule
from bigbatch.tune.runs.knowledge import WARM_START, KnownStudy
from bigbatch.tune.runs.objective import HALF_A_POINT, TimeToTarget, Tolerance
from bigbatch.tune.runs.objectives import Objectives

if TYPE_CHECKING:
    from bigbatch.train_loop.data.sets.scan import FolderScan

MAX_VALUES = 16
"""Each value gets at least half of an equal share of the trials: with more values, none would get enough."""


@dataclass(frozen=True)
class FrontierPlan:
    """The parameter that a space declares as its frontier, and its values in this search."""

    name: str
    values: tuple[object, ...]
    """Smallest first; choices that are no numbers in the space's order. One value if ``--set`` or ``--batch`` fixes the
    parameter."""

    @property
    def searched(self) -> str | None:
        """The parameter's name, for ``SearchFacts.frontier``; None if there is only one value: all trials compare."""
        return self.name if len(self.values) > 1 else None


def frontier_plan(
    space: Space, ranges: Mapping[str, ParamRange], overrides: Mapping[str, object]
) -> FrontierPlan | None:
    """The frontier of a search; None if the space declares none.

    Raises ConfigError if the parameter is not in every trial, or is neither a choice nor a whole number of few values.
    """
    name = space.frontier
    if name is None:
        return None
    if (key := space.key_of(name)) in overrides:
        convert = space.parameter_keys[name][1] if name in space.parameter_keys else lambda value: value
        return FrontierPlan(name, (kept_choice(convert(overrides[str(key)])),))
    if name in overrides:
        return FrontierPlan(name, (overrides[name],))
    found = ranges.get(name)
    if found is None or not found.always:
        where = "no trial" if found is None else "only some trials"
        raise _refused(space, f"which is in {where}", "Suggest it in each trial")
    values = _values(found)
    if not values:
        raise _refused(space, f"with the range {found.describe()}", f"Suggest one of at most {MAX_VALUES} choices")
    return FrontierPlan(name, values)


def _values(found: ParamRange) -> tuple[object, ...]:
    """All values of a range; empty if it is a float or has more than ``MAX_VALUES``."""
    if found.kind == "int":
        step = int(found.step or 1)
        # Not all of them: a range may have millions.
        values: tuple[object, ...] = tuple(range(int(found.low), int(found.high) + 1, step)[: MAX_VALUES + 1])
    else:
        values = found.choices
    if len(values) > MAX_VALUES:
        return ()
    numbers = [v for v in values if isinstance(v, (int, float)) and not isinstance(v, bool) and math.isfinite(v)]
    return tuple(sorted(numbers)) if len(numbers) == len(values) else values


def _refused(space: Space, what: str, fix: str) -> ConfigError:
    return ConfigError(
        f"FRONTIER of a space names a choice, or a whole number of at most {MAX_VALUES} values, that every trial has; "
        f"got {space.frontier!r} of space {space.name!r}, {what}. {fix}, or leave FRONTIER out."
    )


@dataclass(frozen=True)
class EnqueuedTrial:
    """A trial with a whole configuration. study.json keeps it, so that a resumed study needs no file."""

    source: str
    config: TrainConfig

    @property
    def label(self) -> str:
        """E.g. ``recipe:nus-lars-32k at batch 1024``. A study has each label once."""
        return f"{self.source} at batch {self.config.batch.global_size}"

    def to_dict(self) -> dict[str, object]:
        """As study.json keeps it."""
        return {"source": self.source, "config": self.config.to_dict()}


def stored_trials(stored: Mapping[str, object]) -> tuple[EnqueuedTrial, ...]:
    """The trials in study.json."""
    found = json_values.objects(stored, "enqueued")
    return tuple(EnqueuedTrial(str(one["source"]), TrainConfig.from_dict(one["config"])) for one in found)  # type: ignore[arg-type]


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
        """How many configurations the strategy proposes; no limit if a budget is the only one."""
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
            "batches": list(self.workload.batches) or None,
            "smaller_step": self.workload.smaller_step,
            "image_size": self.data.image_size,
            "train_size": self.data.train_size,
            "val_size": self.data.val_size,
            "holdout_size": self.data.holdout_size,
            "num_classes": self.data.num_classes,
            "classes_digest": hashlib.sha256(json.dumps(self.data.class_names).encode()).hexdigest()[:16],
            "content": self.data.content,
            "some_bytes": list(self.data.some_bytes),
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
            WARM_START: [study.to_dict(self.objectives.first) for study in self.warm_start],
            "own_code": dict(self.own_code),
            "options": self.options.kept(),
        }
