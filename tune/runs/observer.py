"""The events that a search sends to its observers (the display, W&B, tests), and the views of trials that they get."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from optuna.trial import TrialState

from bigbatch.train_loop.config import TrainConfig
from bigbatch.train_loop.host.disk_space import full_errno
from bigbatch.train_loop.progress import StepProgress
from bigbatch.tune.runs.feasible import INFEASIBLE
from bigbatch.tune.runs.objectives import Objectives
from bigbatch.tune.runs.run import (
    CONFIRMS_ATTR,
    CONTINUES_ATTR,
    RETRIES_ATTR,
    AnyTrial,
    continued_trials,
    epoch_records,
    is_paused,
    retried_trials,
    was_refused,
)
from bigbatch.tune.runs.tables import epoch_of

Phase = Literal["starting", "running"]


@dataclass
class TrialView:
    """The current state of a trial. ``state`` is Optuna's: RUNNING, COMPLETE, PRUNED, FAIL, WAITING."""

    number: int
    params: dict[str, object]
    config: TrainConfig | None
    """None if the space gave no valid configuration. Then the trial has failed before it began."""
    state: str = "RUNNING"
    records: list[dict[str, object]] = field(default_factory=list)
    """Epoch records, oldest first (bigbatch.train_loop.reporter.EpochRecord)."""
    ended_because: str | None = None
    started_at: float = field(default_factory=time.time)
    """Seconds since the epoch."""
    resumed: bool = False
    retries: int | None = None
    """The number of the failed trial that this trial repeats."""
    retried_by: int | None = None
    """The number of the trial that repeats this failed one. This trial is then no longer counted."""
    continues: int | None = None
    """The number of the paused trial that this trial continues."""
    continued_by: int | None = None
    """The number of the trial that continues this paused one. This trial is then no longer counted."""
    confirms: int | None = None
    """The number of the trial whose configuration this trial repeats with another seed. It does not count."""
    paused: bool = False
    """Whether the strategy has paused it; its state is then PRUNED."""
    phase: Phase = "running"
    """The phase of a trial in state RUNNING: ``starting`` its workers, or ``running``."""
    objectives: Objectives = field(default_factory=Objectives)
    """What the search optimises."""
    values: Sequence[float] = ()
    """The values that the study got at the trial's end, one for each objective."""
    steps: StepProgress | None = None
    """Its position within an epoch, as its worker last reported."""

    @property
    def is_replaced(self) -> bool:
        """Whether another trial repeats or continues this one, and counts in its place."""
        return self.retried_by is not None or self.continued_by is not None

    @property
    def epochs(self) -> int:
        """The number of epochs to train; 0 without a configuration."""
        return self.config.epochs if self.config is not None else 0

    @property
    def epoch(self) -> int:
        """The last finished epoch; 0 before the first."""
        return epoch_of(self.records[-1]) if self.records else 0

    @property
    def value(self) -> float | None:
        """The metric that a person watches, after the last epoch: by default validation top-1, 0 to 1."""
        return self.objectives.first.shown.value(self.records[-1]) if self.records else None

    @property
    def is_infeasible(self) -> bool:
        """Whether it ended because it violates a constraint of its space."""
        return self.state == "PRUNED" and (self.ended_because or "").startswith(INFEASIBLE)

    @property
    def worth(self) -> str:
        """``value`` in words, e.g. ``86.9 %``."""
        return self.objectives.first.shown.worth(self.value)

    @property
    def ends(self) -> Sequence[float]:
        """What the finished trial is worth, one value for each objective."""
        return self.values or self.objectives.finals(self.records)


def ranked(trials: Iterable[TrialView]) -> list[TrialView]:
    """The trials that ran to their end, best first: by the first objective, then the next one, then the number."""

    def key(trial: TrialView) -> tuple[float, ...]:
        gains = trial.objectives.gains(trial.ends)
        # NaN is neither less nor more than a number: with it the order would depend on the trials' places.
        return (*(-math.inf if math.isnan(gain) else gain for gain in gains), -trial.number)

    return sorted((t for t in trials if t.state == "COMPLETE" and t.confirms is None), key=key, reverse=True)


class Observer(Protocol):
    """The driver calls these methods in its thread, one at a time. An observer has those that it needs:

    - ``trial_planned(trial)``: the trial has its configuration.
    - ``trial_started(trial)``: its first worker runs. It is not called for a trial that could not begin.
    - ``steps_done(trial)``: ``trial.steps`` has changed.
    - ``epoch_ended(trial, record)``: an epoch has ended; ``record``: its EpochRecord as a dict.
    - ``trial_ended(trial)``: it has ended or was interrupted; ``trial.state`` and ``trial.ended_because`` say how.
    - ``search_said(text)``: a line that belongs to no trial.
    """


def tell(observers: list[Observer], event: str, *arguments: object) -> None:
    """Call the method ``event`` of every observer that has it.

    An observer that fails, such as an unreachable tracker, is removed from the list, with a warning. A full disk
    does not remove the observer; the study reports it.
    """
    # A copy: one that fails leaves the list meanwhile.
    for observer in list(observers):
        try:
            getattr(observer, event, lambda *_: None)(*arguments)
        except Exception as error:
            # The search itself meets a full disk, and ends.
            if full_errno(error) is not None:
                continue
            observers.remove(observer)
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            name = type(observer).__name__
            print(f"warning: the search continues without {name}: {reason}", file=sys.stderr, flush=True)


FINISHED = ("COMPLETE", "PRUNED", "FAIL")


def trial_views(trials: Sequence[AnyTrial], objectives: Objectives | None = None) -> list[TrialView]:
    """The trials that have begun. ``objectives``: the study's; None: the default."""
    again, continued = retried_trials(trials), continued_trials(trials)
    begun = [t for t in trials if ("config" in t.user_attrs or t.state.is_finished()) and not was_refused(t)]
    return [_view(t, again.get(t.number), continued.get(t.number), objectives or Objectives()) for t in begun]


def _view(trial: AnyTrial, retried_by: int | None, continued_by: int | None, objectives: Objectives) -> TrialView:
    config = trial.user_attrs.get("config")
    ended = trial.datetime_complete or trial.datetime_start
    seconds = (ended - trial.datetime_start).total_seconds() if ended and trial.datetime_start else 0.0
    return TrialView(
        number=trial.number,
        params=dict(trial.params),
        config=TrainConfig.from_dict(config) if config is not None else None,
        state=trial.state.name,
        records=epoch_records(trial),
        ended_because=trial.user_attrs.get("ended_because"),
        started_at=time.time() - seconds,
        resumed=trial.user_attrs.get("attempts", 1) > 1,
        retries=trial.user_attrs.get(RETRIES_ATTR),
        retried_by=retried_by,
        continues=trial.user_attrs.get(CONTINUES_ATTR),
        continued_by=continued_by,
        confirms=trial.user_attrs.get(CONFIRMS_ATTR),
        paused=is_paused(trial),
        objectives=objectives,
        values=tuple(trial.values or ()) if trial.state == TrialState.COMPLETE else (),
    )


def ended_trials(found: Sequence[TrialView]) -> list[TrialView]:
    """The trials that have ended, as ``--trials`` counts them."""
    return [v for v in found if v.state in FINISHED and not v.is_replaced and v.confirms is None]
