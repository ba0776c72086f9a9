"""What is trained next: the configuration of an Optuna trial's parameters, or of a confirmation.

Confirmations begin when the search has ended, see ``tune/runs/confirmation.py``. No Ray here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import optuna
from optuna.trial import FrozenTrial, TrialState

from bigbatch.search_spaces.registry import Space
from bigbatch.search_spaces.trial import SpaceTrial
from bigbatch.search_spaces.workload import Workload
from bigbatch.train_loop.config import RUNTIME_KEYS, TrainConfig
from bigbatch.tune.runs.confirmation import Confirmation
from bigbatch.tune.runs.feasible import CONSTRAINTS_ATTR
from bigbatch.tune.runs.run import CONFIRMS_ATTR, GIVEN_ATTR, SEED_ATTR, Kind, confirmed_by, earlier_of, of_kind


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
    # The space was asked only to give the study the parameters. The earlier trial's configuration is trained.
    if earlier is not None:
        config = configurations.again(trial.study.get_trials(deepcopy=False)[earlier].user_attrs["config"])
        return config.replace_keys({"seed": attrs[SEED_ATTR]}) if SEED_ATTR in attrs else config
    return config


MissingConfirmations = Callable[[list[FrozenTrial]], list[Confirmation]]
"""From all trials of a study to the confirmations that are still to be made."""


class ConfirmationQueue:
    """The confirmations of one study. Its only memory is the study."""

    def __init__(self, study: optuna.Study, missing: MissingConfirmations | None) -> None:
        self._study, self._missing = study, missing

    @property
    def wanted(self) -> bool:
        """Whether anything may be confirmed."""
        return self._missing is not None

    def left(self) -> list[FrozenTrial] | list[Confirmation]:
        """Confirmations that wait in the study, or else those that are still to be enqueued."""
        trials = self._study.get_trials(deepcopy=False)
        waiting = [t for t in of_kind(trials, Kind.CONFIRMATION) if t.state == TrialState.WAITING]
        return waiting or (self._missing(trials) if self._missing is not None else [])

    def begin_next(self) -> optuna.trial.Trial:
        """Begin the first confirmation that is left, before all else that waits in the study. Raises IndexError if none
        is.

        All else is for a longer search, e.g. initial points beyond ``--trials``; ``study.ask`` would take it.
        """
        first = self.left()[0]
        if isinstance(first, Confirmation):
            params = self._study.get_trials(deepcopy=False)[first.trial].params
            self._study.enqueue_trial(params, user_attrs={CONFIRMS_ATTR: first.trial, SEED_ATTR: first.seed})
            # enqueue_trial does not return the trial. It is the last one, as no other driver adds any in this one's
            # turn.
            first = self._study.get_trials(deepcopy=False)[-1]
        # Optuna has no public call that begins a certain trial.
        self._study._storage.set_trial_state_values(first._trial_id, TrialState.RUNNING)
        return optuna.trial.Trial(self._study, first._trial_id)
