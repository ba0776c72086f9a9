"""A sampler and a pruner of the user's own: functions in a file, for ``--strategy`` and ``--stopping``.

A strategy has no memory but the study (docs/decisions/024). So the function is called again for each trial, or for each
look, and the state of its sampler is lost after the trial.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TypeVar

import optuna
from optuna.pruners import BasePruner
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from bigbatch.train_loop.config import ConfigError
from bigbatch.train_loop.config.rules import is_own, shown_name
from bigbatch.train_loop.plugins.registry import OwnFunction, check_call, load_function, users_code
from bigbatch.tune.models.protocol import Dimension
from bigbatch.tune.models.study_view import view_of, whole_study
from bigbatch.tune.proposers.passing_sampler import Asked, PassingSampler
from bigbatch.tune.runs.objective import Direction
from bigbatch.tune.runs.run import EXHAUSTED_ATTR

STRATEGY, STOPPING, SEED = "--strategy", "--stopping", "seed"
T = TypeVar("T", BaseSampler, BasePruner)


def own_sampler(word: str, seed: int) -> BaseSampler:
    """What the user's function or class returns. Raises ConfigError and OwnCodeError."""
    return OwnSampler(word, _made(STRATEGY, word, BaseSampler, {SEED: seed}))  # type: ignore[type-abstract]


def own_pruner(word: str) -> BasePruner:
    """What the user's function or class returns. Raises ConfigError and OwnCodeError."""
    return OwnPruner(word, _made(STOPPING, word, BasePruner, {}))  # type: ignore[type-abstract]


def check_own_strategy(
    strategy: str, stopping: str, dimensions: Sequence[Dimension], directions: Sequence[Direction]
) -> None:
    """Make what the user's functions make, and let the sampler propose one trial. Raises ConfigError and OwnCodeError.

    Args:
        dimensions: the parameters that it proposes.
        directions: of the objectives, ``maximize`` or ``minimize``.
    """
    if is_own(stopping):
        own_pruner(stopping)
    if is_own(strategy):
        study = optuna.create_study(sampler=own_sampler(strategy, 0), directions=list(directions))
        with users_code(STRATEGY, strategy):
            study.ask({dimension.name: dimension.distribution for dimension in dimensions if dimension.always})


def _made(option: str, word: str, kind: type[T], known: Mapping[str, int]) -> T:
    """What the function of ``word`` returns. It gets those of the ``known`` arguments that it has parameters for."""
    function = load_function(option, word)
    given = {name: value for name, value in known.items() if _takes(function, name)}
    check_call(option, word, function, (), given)
    with users_code(option, word):
        made = function(**given)
    if not isinstance(made, kind):
        example = "optuna.samplers.NSGAIISampler(seed=seed)" if option == STRATEGY else "optuna.pruners.MedianPruner()"
        got = "None" if made is None else f"a {type(made).__name__}"
        raise ConfigError(
            f"{option} must name a function that returns an optuna {kind.__name__}; got {got} from "
            f"{shown_name(word)}. Return e.g. {example}."
        )
    return made


def _takes(function: OwnFunction, name: str) -> bool:
    try:
        found = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False
    return name in found and found[name].kind is not inspect.Parameter.POSITIONAL_ONLY


class OwnPruner(BasePruner):
    """Asks the user's pruner; its errors name the user's file."""

    def __init__(self, word: str, pruner: BasePruner) -> None:
        self._word, self._pruner = word, pruner

    def prune(self, study: Study, trial: FrozenTrial) -> bool:
        """As the user's pruner."""
        with users_code(STOPPING, self._word):
            return self._pruner.prune(study, trial)


class OwnSampler(PassingSampler):
    """Passes each question on to the user's sampler; its errors name the user's file.

    A sampler that has proposed all that there is (``GridSampler``) calls ``study.stop()``. The study then notes it, and
    the trial manager asks for no other configuration.
    """

    def __init__(self, word: str, sampler: BaseSampler) -> None:
        self._word, self._sampler = word, sampler

    def asked(self, study: Study, trial: FrozenTrial) -> Asked:
        """The user's sampler, with a study that can be stopped."""
        whole = whole_study(study)
        stop = lambda: whole.set_user_attr(EXHAUSTED_ATTR, True)  # noqa: E731
        return Asked(self._sampler, view_of(study, list, stop=stop), trial)

    def around(self) -> AbstractContextManager[object]:
        """Names the user's file in an error."""
        return users_code(STRATEGY, self._word)

    def after_trial(self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None) -> None:
        """As the user's sampler, for trials that it sees. Confirmations, for example, are hidden from it."""
        if any(shown.number == trial.number for shown in study.get_trials(deepcopy=False)):
            super().after_trial(study, trial, state, values)
