"""Convert the study's trials into the views that observers get."""

from __future__ import annotations

import time
from collections.abc import Sequence

from optuna.trial import TrialState

from bigbatch.train_loop.config import TrainConfig
from bigbatch.tune.runs.objectives import Objectives
from bigbatch.tune.runs.observer import TrialView
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

FINISHED = ("COMPLETE", "PRUNED", "FAIL")


def trial_views(trials: Sequence[AnyTrial], objectives: Objectives | None = None) -> list[TrialView]:
    """The trials that have begun. ``objectives``: the study's; None: the default."""
    again, continued = retried_trials(trials), continued_trials(trials)
    begun = [t for t in trials if ("config" in t.user_attrs or t.state.is_finished()) and not was_refused(t)]
    return [trial_view(t, again.get(t.number), continued.get(t.number), objectives) for t in begun]


def trial_view(
    trial: AnyTrial,
    retried_by: int | None = None,
    continued_by: int | None = None,
    objectives: Objectives | None = None,
) -> TrialView:
    """The view of one trial of the study."""
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
        objectives=objectives or Objectives(),
        values=tuple(trial.values or ()) if trial.state == TrialState.COMPLETE else (),
    )


def ended_trials(found: Sequence[TrialView]) -> list[TrialView]:
    """The trials that have ended, as ``--trials`` counts them."""
    return [v for v in found if v.state in FINISHED and not v.is_replaced and v.confirms is None]
