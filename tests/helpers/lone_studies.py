"""Studies in memory whose trials a test writes by hand, one epoch after the other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import optuna
from optuna.distributions import IntDistribution
from optuna.trial import FrozenTrial, Trial

from bigbatch.tune.models.protocol import Stopping, TrialDecision
from bigbatch.tune.runs.objective import Direction
from bigbatch.tune.runs.run import EPOCH_ATTR


def new_study(direction: Direction = "maximize") -> optuna.Study:
    return optuna.create_study(direction=direction, sampler=optuna.samplers.RandomSampler(seed=0))


def begin(study: optuna.Study, params: Mapping[str, int], *, epochs: int, warmup: float = 0.0) -> Trial:
    """A running trial with these parameters, each from a range that has only its value."""
    trial = study.ask({name: IntDistribution(value, value) for name, value in params.items()})
    trial.set_user_attr("config", {"epochs": epochs, "schedule": {"warmup_epochs": warmup}})
    return trial


def frozen(study: optuna.Study, trial: Trial) -> FrozenTrial:
    return study.get_trials(deepcopy=False)[trial.number]


def go(
    study: optuna.Study, stopping: Stopping, trial: Trial, values: Iterable[float], *, first: int = 1,
    steps_an_epoch: int | None = None,
) -> TrialDecision:  # fmt: skip
    """Report values, an epoch each, until the stopping says otherwise than go on. Returns its last word."""
    decision = TrialDecision.GO_ON
    for epoch, value in enumerate(values, first):
        record: Mapping[str, object] = {} if steps_an_epoch is None else {"optimizer_steps": steps_an_epoch * epoch}
        trial.set_user_attr(f"{EPOCH_ATTR}{epoch:05d}", record)
        trial.report(value, epoch)
        decision = stopping.look(study, frozen(study, trial), epoch)
        if decision != TrialDecision.GO_ON:
            break
    return decision
