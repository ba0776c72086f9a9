"""Turn the parameters of an Optuna trial into the configuration that is trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import optuna

from bigbatch.search_spaces.constraints import SpaceTrial
from bigbatch.search_spaces.registry import Space
from bigbatch.search_spaces.workload import Workload
from bigbatch.train_loop.config import RUNTIME_KEYS, TrainConfig
from bigbatch.tune.runs.feasible import CONSTRAINTS_ATTR
from bigbatch.tune.runs.run import (
    GIVEN_ATTR,
    SEED_ATTR,
    confirmed_by,
    earlier_of,
)


class Configurations(Protocol):
    """Makes configurations. ``name`` stands in messages."""

    @property
    def name(self) -> str:
        """E.g. the space's name."""

    def new(self, trial: optuna.trial.Trial) -> TrainConfig:
        """The configuration of a trial that has none yet. May raise anything: a user's space is called."""

    def again(self, stored: Mapping[str, object]) -> TrainConfig:
        """The configuration of a trial that has begun, from its stored form."""


@dataclass(frozen=True)
class SpaceConfigurations:
    """The configurations of a space.

    The seed is the same in all trials: initial weights and data order do not change, so that only the configuration
    makes a difference.
    """

    space: Space
    workload: Workload
    overrides: Mapping[str, object]
    """``--set`` keys, which the space does not search."""
    seed: int
    workers: int
    """Of each trial."""

    @property
    def name(self) -> str:
        """The space's name."""
        return self.space.name

    def new(self, trial: optuna.trial.Trial) -> TrainConfig:
        """Sample the space; note its constraints. Raises ConfigError if the batch does not divide over the workers."""
        asked = SpaceTrial(trial)
        config = self.space(asked, self.workload, self.overrides).replace_keys({"seed": self.seed})
        if GIVEN_ATTR in trial.user_attrs:  # the study has the nearest parameters; what is trained was given
            config = self.again(trial.user_attrs[GIVEN_ATTR])
        config.check_workers(self.workers)
        if asked.constraints:
            bounds = {name: constraint.to_dict() for name, constraint in asked.constraints.items()}
            trial.set_user_attr(CONSTRAINTS_ATTR, bounds)
        return config

    def again(self, stored: Mapping[str, object]) -> TrainConfig:
        """The stored configuration; ``--resume`` may have changed runtime keys."""
        runtime = {key: value for key, value in self.overrides.items() if key in RUNTIME_KEYS}
        return TrainConfig.from_dict(dict(stored)).replace_keys(runtime)


def configuration_of(trial: optuna.trial.Trial, configurations: Configurations) -> TrainConfig:
    """The configuration of a trial that is to begin or to go on. May raise anything: a user's space is called."""
    attrs = trial.user_attrs
    if "config" in attrs:  # interrupted earlier
        return configurations.again(attrs["config"])
    config = configurations.new(trial)
    earlier = earlier_of(trial)
    earlier = confirmed_by(trial) if earlier is None else earlier
    # The space was asked so that the study has the parameters. What is trained is what was paused, failed or is
    # confirmed.
    if earlier is not None:
        config = configurations.again(trial.study.get_trials(deepcopy=False)[earlier].user_attrs["config"])
        return config.replace_keys({"seed": attrs[SEED_ATTR]}) if SEED_ATTR in attrs else config
    return config
