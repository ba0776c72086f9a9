"""Begin the trials of a search's second part, see ``tune/strategies/follow_up.py``. No Ray here."""

from __future__ import annotations

import optuna
from optuna.trial import TrialState

from bigbatch.tune.strategies.follow_up import FollowUp, count_configurations, first_part
from bigbatch.tune.study.trial_facts import FOLLOWS_ATTR


class FollowUpQueue:
    """The second part of one study. Its only memory is the study. ``follow_up``: None: the search has one part."""

    def __init__(self, study: optuna.Study, follow_up: FollowUp | None) -> None:
        self._study, self._follow_up = study, follow_up

    def may_begin_another(self) -> bool:
        """Whether another trial may begin now. Enqueues it if it is one of the second part.

        False: a trial of the first part still runs, and the second part follows from all of them.
        """
        if self._follow_up is None:
            return True
        trials = self._study.get_trials(deepcopy=False)
        first = first_part(trials)
        if not self._follow_up.is_due(count_configurations(first)):
            return True
        if any(trial.state == TrialState.RUNNING for trial in first):
            return False
        if found := self._follow_up.next_trial(trials):
            attrs = {**found.attrs, FOLLOWS_ATTR: dict(found.says)}
            self._study.enqueue_trial(dict(found.params), user_attrs=attrs)
        return True
