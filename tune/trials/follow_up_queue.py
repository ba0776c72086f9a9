"""Begin the trials of a search's second part, see ``tune/strategies/follow_up.py``. No Ray here."""

from __future__ import annotations

import optuna
from optuna.trial import TrialState

from bigbatch.tune.strategies.follow_up import FollowUp, count_configurations, first_part
from bigbatch.tune.study.trial_facts import FOLLOWS_ATTR, Kind, kind_of


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

    def holds_back(self) -> bool:
        """Whether the second part is due, and only trials of the first part wait that have not begun: published recipes
        and points of other studies may cost more than its share of a budget."""
        if self._follow_up is None:
            return False
        trials = self._study.get_trials(deepcopy=False)
        waiting = [t for t in trials if t.state == TrialState.WAITING]
        if any("config" in t.user_attrs for t in waiting) or count_configurations(first_part(waiting)) < len(waiting):
            return False  # one was interrupted, continues or repeats another one, or is of the second part
        return self._follow_up.is_due(
            count_configurations([t for t in first_part(trials) if t.state != TrialState.WAITING])
        )

    def begin_next(self) -> optuna.trial.Trial | None:
        """Begin the trial of the second part that waits, past everything else that waits. None: none does."""
        if self._follow_up is None:
            return None
        waiting = self._study.get_trials(deepcopy=False, states=(TrialState.WAITING,))
        for trial in waiting:
            if kind_of(trial) == Kind.FOLLOW_UP:
                self._study._storage.set_trial_state_values(trial._trial_id, TrialState.RUNNING)
                return optuna.trial.Trial(self._study, trial._trial_id)
        return None
