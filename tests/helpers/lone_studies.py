"""Studies in memory whose trials a test writes by hand, one epoch after the other."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, IntDistribution
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial

from bigbatch.tune.models.curve_history import CurveHistory
from bigbatch.tune.models.protocol import SearchFacts, Stopping, Strategy, TrialDecision
from bigbatch.tune.proposers.samplers import PerTrialSampler
from bigbatch.tune.runs.knowledge import Curve
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
    study: optuna.Study, stopping: Stopping, trial: Trial, values: Iterable[float], *,
    steps_an_epoch: int | None = None,
) -> TrialDecision:  # fmt: skip
    """Report values, an epoch each, until the stopping says otherwise than go on. Returns its last word."""
    decision = TrialDecision.GO_ON
    for epoch, value in enumerate(values, 1):
        record: Mapping[str, object] = {} if steps_an_epoch is None else {"optimizer_steps": steps_an_epoch * epoch}
        trial.set_user_attr(f"{EPOCH_ATTR}{epoch:05d}", record)
        trial.report(value, epoch)
        decision = stopping.look(study, frozen(study, trial), epoch)
        if decision != TrialDecision.GO_ON:
            break
    return decision


def next_trial(study: optuna.Study, strategy: Strategy) -> Trial:
    """The next trial of a driver that has just been started: its sampler remembers nothing."""
    study.sampler = PerTrialSampler(strategy.sampler)
    return study.ask()


def rise(study: optuna.Study, trial: Trial, end: float, epochs: int, start: float = 0.0) -> None:
    """Let a trial rise evenly from ``start`` to ``end``, and tell it."""
    trial.set_user_attr("config", {"epochs": epochs})
    for epoch in range(1, epochs + 1):
        trial.report(start + (end - start) * epoch / epochs, epoch)
    study.tell(trial, end)


def made(
    params: Mapping[str, Any],
    distributions: Mapping[str, BaseDistribution],
    values: Mapping[int, float],
    state: TrialState = TrialState.COMPLETE,
    /,
    **attrs: object,
) -> FrozenTrial:
    """A trial with these values by epoch; where it is complete, the last one is its own."""
    return create_trial(
        state=state,
        value=values[max(values)] if state == TrialState.COMPLETE else None,
        params=dict(params),
        distributions={name: distributions[name] for name in params},
        intermediate_values=dict(values),
        user_attrs=attrs,
    )


def waiting_to_continue(trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """Paused trials that no other trial continues, in their order: computed anew, as a reference."""
    continued = {trial.user_attrs.get("continues") for trial in trials}
    paused = [t for t in trials if t.state == TrialState.PRUNED and "paused_in_epoch" in t.user_attrs]
    return [trial for trial in paused if trial.number not in continued]


def curves_of(trials: Sequence[FrozenTrial], facts: SearchFacts) -> list[Curve]:
    """The curves of these trials alone."""
    history = CurveHistory(facts)
    history.take_in(trials)
    return history.curves()
