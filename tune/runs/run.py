"""A trial of a study: what kind of run it is, which runs it goes on with, how it ended, and its epochs.

``Run`` is a trial as the study's files hold it; ``FrozenTrial`` is the same trial where Optuna has it open. They have
the same fields, and every function here takes either. Needs no Optuna.

A pause is not the end of a configuration. The study keeps it as a PRUNED trial with ``PAUSED_ATTR``, so that samplers
learn from it. Optuna does not change a trial that has ended; so a continuation is a new trial of the same parameters.
It names the paused one in ``CONTINUES_ATTR``, takes over its checkpoint, and counts in its place.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, TypeVar

from bigbatch.base import json_values
from bigbatch.cluster.host.optuna_journal import (
    CONFIRMS_ATTR as CONFIRMS_ATTR,
    CONTINUES_ATTR as CONTINUES_ATTR,
    EPOCH_PREFIX,
    REFUSED_ATTR as REFUSED_ATTR,
    RETRIES_ATTR as RETRIES_ATTR,
    State,
    StoredTrial,
    WithAttrs,
    counted_trials as counted_trials,
    was_refused as was_refused,
)

if TYPE_CHECKING:
    from typing import TypeAlias

    from optuna.study import Study
    from optuna.trial import FrozenTrial

    AnyTrial: TypeAlias = "FrozenTrial | Run"
else:
    AnyTrial = Any

OneTrial = TypeVar("OneTrial", bound="AnyTrial")


EPOCH_ATTR = EPOCH_PREFIX
PAUSED_ATTR = "paused_in_epoch"
"""User attribute of a paused trial: the last epoch that it trained."""
STOPPED_ATTR = "stopped_in_epoch"
"""User attribute of a trial that its strategy has stopped for good: the epoch. It is written before the study gets the
trial's end: so the decision is not lost if the driver is killed in between."""
DIVERGED_ATTR = "diverged"
"""User attribute of a trial whose loss or validation was not finite: True. Its hyperparameters are the reason. A trial
that fails otherwise (a lost process, no memory, an unreadable image) does not have it, and says nothing about them."""
EXHAUSTED_ATTR = "exhausted"
"""User attribute of a study whose sampler has no other configuration: True."""
ENQUEUED_ATTR = "enqueued"
"""User attribute of a trial that ``--enqueue`` asked for, e.g. ``recipe:lamb-32k at batch 512``."""
GIVEN_ATTR = "given_config"
"""User attribute of such a trial: the whole configuration that it trains. Its parameters are the nearest ones."""
FAILURE_ATTR = "failure_kind"
"""User attribute of a failed trial: its ``FailureKind``."""
DIED_ATTR = "died_after_epoch"
"""User attribute of a trial whose processes died: the last epoch that it had then."""
HALVINGS_ATTR = "halvings"
"""User attribute of a trial whose micro-batch was halved for lack of device memory: its halvings, oldest first."""
DROPPED_ATTR = "checkpoint_dropped/"
"""Prefix of a study's user attributes, with the number of a paused trial whose checkpoint was removed for room. Such
a trial cannot be continued. It is the study's attribute, because Optuna does not change a trial that has ended."""
SEED_ATTR = "confirmation_seed"
"""User attribute of a confirmation: its seed."""
OWNER_ATTR = "driver"
"""User attribute of a trial in a database: ``KEY.RUN`` of the driver that runs it, or ran it last."""
WORKERS_ATTR = "workers"
"""User attribute: the workers of the trial's latest attempt."""
TRIALS_PER_GPU_ATTR = "trials_per_gpu"
"""User attribute: the trials that shared each GPU in the trial's latest attempt. It is absent where none ever did."""


class Kind(enum.Enum):
    """Why a trial was begun."""

    SEARCH = "search"
    """The strategy proposed it, or it was given."""
    CONTINUATION = "continuation"
    """It goes on from a paused trial."""
    RETRY = "retry"
    """It repeats a failed trial."""
    CONFIRMATION = "confirmation"
    """It trains a configuration again with another seed."""


def kind_of(trial: WithAttrs) -> Kind:
    """Why the trial was begun. A confirmation stays one when it is retried."""
    attrs = trial.user_attrs
    if CONFIRMS_ATTR in attrs:
        return Kind.CONFIRMATION
    if CONTINUES_ATTR in attrs:
        return Kind.CONTINUATION
    return Kind.RETRY if RETRIES_ATTR in attrs else Kind.SEARCH


def of_kind(trials: Iterable[OneTrial], *kinds: Kind) -> list[OneTrial]:
    """The trials of these kinds."""
    return [trial for trial in trials if kind_of(trial) in kinds]


def search_trials(trials: Iterable[OneTrial]) -> list[OneTrial]:
    """All trials but the confirmations."""
    return [trial for trial in trials if CONFIRMS_ATTR not in trial.user_attrs]


def earlier_of(trial: WithAttrs) -> int | None:
    """The number of the trial that this one continues or retries, and in whose place it counts; else None."""
    attrs = trial.user_attrs
    return json_values.whole_number_or_none(attrs, CONTINUES_ATTR if CONTINUES_ATTR in attrs else RETRIES_ATTR)


def confirmed_by(trial: WithAttrs) -> int | None:
    """The number of the trial that a confirmation trains again. None: it is no confirmation."""
    return json_values.whole_number_or_none(trial.user_attrs, CONFIRMS_ATTR)


def as_shown(trial: OneTrial, **changes: object) -> OneTrial:
    """A copy of the trial with other attributes, e.g. ``values``: the study caches the given one."""
    shown = object.__new__(type(trial))  # copy.copy is ten times slower
    shown.__dict__.update(trial.__dict__)
    for name, value in changes.items():
        setattr(shown, name, value)
    return shown


def epoch_records(trial: AnyTrial) -> list[dict[str, Any]]:
    """A trial's epoch records, the first epoch first."""
    attrs = trial.user_attrs
    # The numbers of epochs have leading zeros, so the texts sort as they do.
    return [attrs[key] for key in sorted(attrs) if key.startswith(EPOCH_ATTR) and isinstance(attrs[key], dict)]


@dataclass
class Run(StoredTrial):
    """A trial of a study, as its files hold it."""

    @staticmethod
    def of(trial: AnyTrial) -> Run:
        """The trial; of one that Optuna has open a copy, whose attributes may be changed."""
        if isinstance(trial, Run):
            return trial
        from optuna.distributions import distribution_to_json

        found = {one.name: copy(getattr(trial, one.name)) for one in fields(Run)}
        kinds = {name: distribution_to_json(kind) for name, kind in trial.distributions.items()}
        return Run(**found | {"state": State(trial.state), "values": trial.values or [], "distributions": kinds})

    @property
    def kind(self) -> Kind:
        """Why it was begun."""
        return kind_of(self)

    @property
    def config(self) -> Mapping[str, Any]:
        """Its configuration; empty before it has one."""
        return configuration(self)

    @property
    def records(self) -> list[dict[str, Any]]:
        """Of its epochs, the first epoch first."""
        return epoch_records(self)

    @property
    def epochs(self) -> int:
        """The last epoch that has ended."""
        return max((json_values.whole_number(record, "epoch") for record in self.records), default=0)

    @property
    def batch(self) -> int | None:
        """The global batch size."""
        return json_values.whole_number_or_none(json_values.mapping(self.config, "batch"), "global_size")

    @property
    def optimizer(self) -> str:
        """The optimizer's name; empty if it is not known."""
        return json_values.text(json_values.mapping(self.config, "optimizer"), "name")

    @property
    def peak_lr(self) -> float | None:
        """The peak learning rate as trained."""
        return json_values.number_or_none(json_values.mapping(self.config, "optimizer"), "peak_lr")

    @property
    def gpu_hours(self) -> float | None:
        """Its device hours, without those of the trial that it continues."""
        return json_values.number_or_none(self.user_attrs, "gpu_hours")

    @property
    def because(self) -> str:
        """Why it ended, in the search's words; empty if it is not known."""
        return ended_because(self)

    def last_of(self, metric: str) -> float | None:
        """The metric after its last epoch; None if it is not known."""
        record: Mapping[str, Any] = next(reversed(self.records), {})
        own = json_values.mapping(record, "metrics")
        return json_values.number_or_none(own if metric in own else record, metric)


@dataclass
class Runs:
    """The trials of a study."""

    trials: list[Run] = field(default_factory=list)

    @property
    def ended(self) -> int:
        """How many trials have ended, as ``--trials`` counts them."""
        return count_ended(self.trials)

    @property
    def begun(self) -> list[Run]:
        """The trials that have begun, without those that were refused."""
        return begun(self.trials)


def begun(trials: Iterable[OneTrial]) -> list[OneTrial]:
    """The trials that have begun, without those that were refused."""
    return [t for t in trials if (t.state != State.WAITING or configuration(t)) and not was_refused(t)]


def count_ended(trials: Sequence[AnyTrial]) -> int:
    """The number of trials that have ended, as ``--trials`` counts."""
    return sum(trial.state.is_finished() for trial in counted_trials(trials))


def ended_because(trial: AnyTrial) -> str:
    """Why the trial ended, in the search's words; empty if it is not known."""
    return json_values.text(trial.user_attrs, "ended_because")


def planned_epochs(trial: AnyTrial) -> int | None:
    """The epochs of the trial's whole run; None before its configuration is known."""
    value = json_values.number_or_none(configuration(trial), "epochs")
    return None if value is None else int(value)


def warmup_epochs(trial: AnyTrial) -> float:
    """The epochs of warmup in the trial's configuration, 0 if it has none."""
    schedule = configuration(trial).get("schedule")
    return json_values.number(schedule, "warmup_epochs", 0.0) if isinstance(schedule, Mapping) else 0.0


def configuration(trial: AnyTrial) -> Mapping[str, object]:
    """The trial's configuration as a plain dict; empty if it has none yet."""
    found = trial.user_attrs.get("config")
    return found if isinstance(found, Mapping) else {}


def is_paused(trial: AnyTrial) -> bool:
    """Whether the trial was paused. It may have been continued since."""
    return trial.state == State.PRUNED and PAUSED_ATTR in trial.user_attrs


def trials_per_gpu_of(trial: WithAttrs) -> int:
    """The trials that shared a GPU in the trial's latest attempt, with itself; 1: it had its devices alone."""
    return json_values.whole_number(trial.user_attrs, TRIALS_PER_GPU_ATTR, 1)


def devices_of(trial: WithAttrs) -> float:
    """Devices that the trial's latest attempt held: one for each worker, a part of one where trials shared a GPU."""
    return json_values.whole_number(trial.user_attrs, WORKERS_ATTR, 1) / trials_per_gpu_of(trial)


def has_diverged(trial: AnyTrial) -> bool:
    """Whether the trial ended because its loss or its validation was not finite."""
    return trial.state == State.FAIL and bool(trial.user_attrs.get(DIVERGED_ATTR))


def failed_trials(trials: Sequence[AnyTrial]) -> list[AnyTrial]:
    """Failed trials of the search that may succeed if they are retried: they did not diverge, were not refused before
    they began, and have no retry yet."""
    again = retried_trials(trials)
    failed = [t for t in search_trials(trials) if t.state == State.FAIL and not has_diverged(t) and not was_refused(t)]
    return [trial for trial in failed if trial.number not in again]


def continued_trials(trials: Sequence[AnyTrial]) -> dict[int, int]:
    """Number of a paused trial → number of its continuation."""
    return _named_by(trials, CONTINUES_ATTR)


def retried_trials(trials: Sequence[AnyTrial]) -> dict[int, int]:
    """Number of a failed trial → number of its retry."""
    return _named_by(trials, RETRIES_ATTR)


def _named_by(trials: Iterable[AnyTrial], name: str) -> dict[int, int]:
    """Number of the trial that an attribute names → number of the trial that has the attribute."""
    having = (trial for trial in trials if name in trial.user_attrs)
    found = ((json_values.whole_number_or_none(trial.user_attrs, name), trial.number) for trial in having)
    return {named: number for named, number in found if named is not None}


def replaced_trials(trials: Sequence[AnyTrial]) -> dict[int, int]:
    """Number of a failed or paused trial → number of the trial that stands for it now."""
    return {**retried_trials(trials), **continued_trials(trials)}


def given_trials(trials: Sequence[AnyTrial]) -> dict[int, int]:
    """Number of each trial that trains a configuration that was given, e.g. a published recipe → number of the trial
    with which that configuration began. Continuations and retries of such trials train it too."""
    found: dict[int, int] = {}
    for trial in trials:
        note_given(trial, found)
    return found


def note_given(trial: AnyTrial, found: dict[int, int]) -> None:
    """Add the trial to ``found`` (as ``given_trials``, with the earlier trials) if its configuration was given."""
    earlier = earlier_of(trial)
    if earlier is not None and earlier in found:
        found[trial.number] = found[earlier]
    elif GIVEN_ATTR in trial.user_attrs:
        found[trial.number] = trial.number


def before_equal_ones(trial: AnyTrial, given: Mapping[int, int]) -> tuple[bool, int]:
    """The sort key of equally good trials, smallest first: given configurations, e.g. published recipes, come first,
    because they have proved themselves elsewhere too; then the earliest one.

    Args:
        given: as ``given_trials``.
    """
    return trial.number not in given, given.get(trial.number, trial.number)


def trials_of_run(trials: Sequence[OneTrial], number: int) -> list[OneTrial]:
    """The trial with this number, the one that it repeats or continues, the one before that, and so on. Together they
    are one run: what it costs is the sum over them.

    Args:
        trials: all trials of the study.
    """
    found = [trials[number]]
    # Only back to smaller numbers: a study that someone has edited must not keep this loop going for ever.
    while (earlier := earlier_of(found[-1])) is not None and earlier < found[-1].number:
        found.append(trials[earlier])
    return found


def epochs_before(trials: Sequence[AnyTrial], attrs: Mapping[str, object]) -> int:
    """The epochs that a continuation finds trained in the checkpoint that it takes over; 0 for another trial.

    Args:
        trials: all trials of the study.
        attrs: the trial's user attributes.
    """
    number = json_values.whole_number_or_none(attrs, CONTINUES_ATTR)
    if number is None or number >= len(trials) or trials[number].user_attrs.get(DROPPED_ATTR):
        return 0
    return json_values.whole_number(trials[number].user_attrs, PAUSED_ATTR)


def epochs_done(trials: Sequence[AnyTrial], number: int) -> int:
    """How many epochs of a trial that is about to begin are already trained. ``trials``: all trials of the study."""
    trial = trials[number]
    return max(len(epoch_records(trial)), epochs_before(trials, trial.user_attrs))


def has_enough(study: Study, configurations: int, wanted: float) -> bool:
    """Whether a study with so many configurations gets no new one: it has as many as wanted, or there is no other."""
    return configurations >= wanted or is_exhausted(study)


def is_exhausted(study: Study) -> bool:
    """Whether the study's sampler, one of the user's own, has said that it has no other configuration."""
    # study.user_attrs would copy all of them.
    return EXHAUSTED_ATTR in study._storage.get_study_user_attrs(study._study_id)


def ordered_values(values: Sequence[object]) -> tuple[object, ...]:
    """Numbers by size; other values in the order in which the space lists them."""
    if all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values):
        return tuple(sorted(values, key=lambda value: float(value)))  # type: ignore[arg-type]
    return tuple(values)
