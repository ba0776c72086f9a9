"""What a trial of the study says about itself: its planned epochs and warmup, whether it is paused, what it continues.

A pause is not the end of a configuration. The study keeps it as a PRUNED trial with ``PAUSED_ATTR``, so that samplers
learn from it. Optuna does not change a trial that has ended; so a continuation is a new trial of the same parameters.
It names the paused one in ``CONTINUES_ATTR``, takes over its checkpoint, and counts in its place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from bigbatch.cluster.host import json_values

PAUSED_ATTR = "paused_in_epoch"
"""User attribute of a paused trial: the last epoch that it trained."""
STOPPED_ATTR = "stopped_in_epoch"
"""User attribute of a trial that its strategy has stopped for good: the epoch. It is written before the trial is told,
so that a driver that is killed in between does not forget the decision."""
CONTINUES_ATTR = "continues"
"""User attribute of a continuation: the number of the paused trial."""
DIVERGED_ATTR = "diverged"
"""User attribute of a trial whose loss or validation was not finite: True. Its hyperparameters are the reason. A trial
that fails otherwise (a lost process, no memory, an unreadable image) does not have it, and says nothing about them."""
REFUSED_ATTR = "refused"
"""User attribute of a trial that could not begin: True. The space gave no valid configuration, or one of which it knows
that it violates a constraint. Nothing was trained, so it is none of ``--trials``."""
EXHAUSTED_ATTR = "exhausted"
"""User attribute of a study whose sampler has no other configuration: True."""
ENQUEUED_ATTR = "enqueued"
"""User attribute of a trial that ``--enqueue`` asked for, e.g. ``recipe:lamb-32k at batch 512``."""
GIVEN_ATTR = "given_config"
"""User attribute of such a trial: the whole configuration that it trains. Its parameters are the nearest ones."""
FAILURE_ATTR = "failure_kind"
"""User attribute of a failed trial: its ``FailureKind``."""
HEALED_ATTR = "healed"
"""User attribute of a trial whose micro-batch was halved for lack of device memory: its halvings, oldest first."""
DROPPED_ATTR = "checkpoint_dropped/"
"""Prefix of a study's user attributes, with the number of a paused trial whose checkpoint was removed for room. Such
a trial cannot be continued. It is the study's attribute, because Optuna does not change a trial that has ended."""
CONFIRMS_ATTR = "confirms"
"""User attribute of a trial that trains a configuration again with another seed: the number of the confirmed trial."""
SEED_ATTR = "confirmation_seed"
"""User attribute of a confirmation: its seed."""
OWNER_ATTR = "driver"
"""User attribute of a trial in a database: ``KEY.RUN`` of the driver that runs it, or ran it last."""
WORKERS_ATTR = "workers"
"""User attribute: the workers of the trial's latest attempt."""


def planned_epochs(trial: FrozenTrial) -> int | None:
    """The epochs of the trial's whole run; None before its configuration is known."""
    value = json_values.number_or_none(configuration(trial), "epochs")
    return None if value is None else int(value)


def warmup_epochs(trial: FrozenTrial) -> float:
    """The epochs of warmup in the trial's configuration, 0 if it has none."""
    schedule = configuration(trial).get("schedule")
    return json_values.number(schedule, "warmup_epochs", 0.0) if isinstance(schedule, Mapping) else 0.0


def configuration(trial: FrozenTrial) -> Mapping[str, object]:
    """The trial's configuration as a plain dict; empty if it has none yet."""
    found = trial.user_attrs.get("config")
    return found if isinstance(found, Mapping) else {}


def is_paused(trial: FrozenTrial) -> bool:
    """Whether the trial was paused. It may have been continued since."""
    return trial.state == TrialState.PRUNED and PAUSED_ATTR in trial.user_attrs


def has_diverged(trial: FrozenTrial) -> bool:
    """Whether the trial ended because its loss or its validation was not finite."""
    return trial.state == TrialState.FAIL and bool(trial.user_attrs.get(DIVERGED_ATTR))


def was_refused(trial: FrozenTrial) -> bool:
    """Whether the trial ended before it began, because its configuration is not one that may be trained."""
    return trial.state.is_finished() and bool(trial.user_attrs.get(REFUSED_ATTR))


def continued_trials(trials: Sequence[FrozenTrial]) -> dict[int, int]:
    """Number of a paused trial → number of its continuation."""
    return {int(t.user_attrs[CONTINUES_ATTR]): t.number for t in trials if CONTINUES_ATTR in t.user_attrs}


def epochs_before(trials: Sequence[FrozenTrial], attrs: Mapping[str, object]) -> int:
    """The epochs that a continuation finds trained in the checkpoint that it takes over; 0 for another trial.

    Args:
        trials: all trials of the study.
        attrs: the trial's user attributes.
    """
    number = json_values.whole_number_or_none(attrs, CONTINUES_ATTR)
    if number is None or number >= len(trials) or trials[number].user_attrs.get(DROPPED_ATTR):
        return 0
    return json_values.whole_number(trials[number].user_attrs, PAUSED_ATTR)


def waiting_to_continue(trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """Paused trials that no other trial continues, in the order of their numbers."""
    continued = continued_trials(trials)
    return [t for t in trials if is_paused(t) and t.number not in continued]


def dropped_checkpoints(study: Study) -> set[int]:
    """Numbers of paused trials whose checkpoint was removed to make room."""
    return {int(key.removeprefix(DROPPED_ATTR)) for key in study.user_attrs if key.startswith(DROPPED_ATTR)}


def has_enough(study: Study, configurations: int, wanted: float) -> bool:
    """Whether a study with so many configurations gets no new one: it has as many as wanted, or there is no other."""
    return configurations >= wanted or is_exhausted(study)


def is_exhausted(study: Study) -> bool:
    """Whether the study's sampler, one of the user's own, has said that it has no other configuration."""
    return EXHAUSTED_ATTR in study._storage.get_study_user_attrs(study._study_id)


def ordered_values(values: Sequence[object]) -> tuple[object, ...]:
    """Numbers by size; other values in the order in which the space lists them."""
    if all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values):
        return tuple(sorted(values, key=lambda value: float(value)))  # type: ignore[arg-type]
    return tuple(values)
