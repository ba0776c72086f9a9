"""The cheap runs of a study with ``--fidelity``, see ``tune/study/fidelity.py``.

A cheap run is a trial with ``CHEAP_ATTR``. At its end it is PRUNED, never COMPLETE: so it is not the best, not in the
frontier and not confirmed. The strategy sees it as a finished trial (``tune/strategies/search_only.py``).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

from optuna.trial import FrozenTrial, TrialState

from bigbatch.tune.study.fidelity import CHEAP_RUN
from bigbatch.tune.study.trial_facts import CONFIRMS_ATTR, FOLLOWS_ATTR


def is_to_be_cheap(attrs: Mapping[str, object]) -> bool:
    """Whether a trial with these user attributes is a cheap run, in a search with ``--fidelity``."""
    return FOLLOWS_ATTR not in attrs and CONFIRMS_ATTR not in attrs


def ran_cheaply(trial: FrozenTrial) -> bool:
    """Whether the trial is a cheap run that has reached its last epoch."""
    return trial.state == TrialState.PRUNED and trial.user_attrs.get("ended_because") == CHEAP_RUN


def as_finished(trial: FrozenTrial) -> FrozenTrial:
    """A cheap run as the finished trial that a strategy sees; another trial as it is. The given one is not changed."""
    if not ran_cheaply(trial):
        return trial
    shown = copy.copy(trial)
    shown.state = TrialState.COMPLETE
    shown.values = [cheap_value(trial)]
    return shown


def cheap_value(trial: FrozenTrial) -> float:
    """The objective at the end of a cheap run."""
    return trial.intermediate_values[max(trial.intermediate_values)]
