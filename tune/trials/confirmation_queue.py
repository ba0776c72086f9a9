"""Begin the confirmations of a finished search, see ``tune/runs/confirmation.py``. No Ray here."""

from __future__ import annotations

from collections.abc import Callable

import optuna
from optuna.trial import FrozenTrial, TrialState

from bigbatch.tune.runs.confirmation import Confirmation
from bigbatch.tune.runs.run import Kind, of_kind

MissingConfirmations = Callable[[list[FrozenTrial]], list[Confirmation]]
"""From all trials of a study to the confirmations that are still to be made."""


def closed_in_words(runs: int) -> str:
    """What is said when a search ends before its last trial, so that its confirmations fit into the budget."""
    return f"The rest of the budget is for {runs} confirmation{'s' * (runs != 1)}: the search itself has ended."


class ConfirmationQueue:
    """The confirmations of one study. Its only memory is the study."""

    def __init__(self, study: optuna.Study, missing: MissingConfirmations | None) -> None:
        self._study, self._missing = study, missing

    @property
    def wanted(self) -> bool:
        """Whether anything may be confirmed."""
        return self._missing is not None

    def left(self) -> list[FrozenTrial] | list[Confirmation]:
        """Confirmations that wait in the study, or else those that are still to be enqueued."""
        trials = self._study.get_trials(deepcopy=False)
        waiting = [t for t in of_kind(trials, Kind.CONFIRMATION) if t.state == TrialState.WAITING]
        return waiting or (self._missing(trials) if self._missing is not None else [])

    def begin_next(self) -> optuna.trial.Trial:
        """Begin the first one that is left, past everything else that waits in the study. Raises IndexError if none is.

        What else waits is for a longer search, e.g. initial points beyond ``--trials``; ``study.ask`` would take it.
        """
        first = self.left()[0]
        if isinstance(first, Confirmation):
            params = self._study.get_trials(deepcopy=False)[first.trial].params
            self._study.enqueue_trial(params, user_attrs=first.attrs())
            # enqueue_trial does not return the trial. It is the last one, as no other driver adds any in this one's
            # turn.
            first = self._study.get_trials(deepcopy=False)[-1]
        # Optuna has no public call that begins a certain trial.
        self._study._storage.set_trial_state_values(first._trial_id, TrialState.RUNNING)
        return optuna.trial.Trial(self._study, first._trial_id)
