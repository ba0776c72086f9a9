"""Early stopping by Optuna's pruners, among trials that compare.

A pruner is asked after each epoch. It sees only the trial's peers, which have the same value of the frontier. It may
stop the trial only after its warmup and its first optimizer steps. During warmup a ranking only shows which trial warms
up faster, and the longest warmup is not the worst one.

So trials with a long warmup come to their first rung later than others. All comparisons are still between values of
equal epochs: a peer counts with its value in the epoch that is judged. If it was stopped before that epoch, it counts
with the value that stopped it. Rungs that begin at the end of each trial's own warmup would compare unequal epochs, and
a first rung behind the longest warmup of the space would come at a third of the run for all trials. Only the latest
``MOST_TRIALS`` peers count, so that a look costs the same in a study of 10,000 trials.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from optuna.study import Study
from optuna.trial import FrozenTrial

from bigbatch.base import json_values
from bigbatch.tune.models.protocol import Fits, Lasts, SearchFacts, TrialDecision
from bigbatch.tune.models.study_view import MOST_TRIALS, Notes, view_of
from bigbatch.tune.proposers.samplers import make_pruner
from bigbatch.tune.proposers.shown_trials import SPARED_ATTR
from bigbatch.tune.runs.feasible import is_infeasible
from bigbatch.tune.runs.run import EPOCH_ATTR, STOPPED_ATTR, as_shown, warmup_epochs

STEPS_TO_JUDGE = 10
"""No trial is stopped before this many optimizer steps. With batch 1,024 on digits a run has 12 steps. A quarter of
its epochs is 3 steps of warmup, and the ranking there differs from the ranking at the end."""
PEERS_SOUGHT = 10 * MOST_TRIALS
"""Peers are sought among this many of the most recent trials: with a frontier, only a part of them compare."""
_RUNGS = [f"completed_rung_{k}" for k in range(20)]
"""Names under which Optuna's successive halving keeps the value of each rung; more than any search has epochs for."""


@dataclass(frozen=True)
class PrunerStopping:
    """Stops trials for good, by Optuna's pruner of that name: asha, median, none or ``FILE.py:FUNCTION``."""

    name: str
    facts: SearchFacts

    def look(self, study: Study, trial: FrozenTrial, epoch: int) -> TrialDecision:
        """STOP if the pruner says so and the trial may already be judged.

        A trial that may not be judged yet is only noted with ``SPARED_ATTR``, for TPE (see shown_trials.py). What the
        pruner notes is written after STOPPED_ATTR: a pruner that finds its own note of this epoch lets the trial go on.
        """
        if trial.user_attrs.get(STOPPED_ATTR) == epoch:  # the driver was killed before it told the study
            return TrialDecision.STOP
        judged = may_be_judged(trial, epoch)
        if not judged and SPARED_ATTR in trial.user_attrs:
            return TrialDecision.GO_ON
        notes: Notes = []
        pruner = make_pruner(self.name, self.facts.max_epochs)  # a new one, which depends on the study alone
        stops = pruner.prune(view_of(study, partial(self._peers_at, trial, epoch), notes=notes), trial)
        if judged and stops:
            # A frozen trial cannot be written to; Optuna's pruners write through the storage, too.
            study._storage.set_trial_user_attr(trial._trial_id, STOPPED_ATTR, epoch)
        for note in notes if judged else ():
            study._storage.set_trial_system_attr(*note)  # type: ignore[arg-type]
        if judged or not stops:
            return TrialDecision.STOP if stops else TrialDecision.GO_ON
        study._storage.set_trial_user_attr(trial._trial_id, SPARED_ATTR, epoch)
        return TrialDecision.GO_ON

    def to_continue(self, study: Study, fits: Fits | None = None, lasts: Lasts | None = None) -> FrozenTrial | None:
        """None: what is stopped is stopped for good."""
        return None

    def is_over(self, study: Study) -> bool:
        """True: nothing waits."""
        return True

    def _peers_at(self, trial: FrozenTrial, epoch: int, trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
        """The other trials that compare with ``trial``, with their values in ``epoch`` as the values of the rungs.

        One that violates a constraint is no competitor.
        """
        value, name = trial.params.get(self.facts.frontier or ""), self.facts.frontier
        peers = [t for t in trials[-PEERS_SOUGHT:] if name is None or t.params.get(name) == value][-MOST_TRIALS:]
        return [_with_rungs_at(t, epoch) for t in peers if t.number != trial.number and not is_infeasible(t)]


def may_be_judged(trial: FrozenTrial, epoch: int) -> bool:
    """Whether the trial's warmup has ended by the end of ``epoch``, and ``STEPS_TO_JUDGE`` steps are done."""
    record = trial.user_attrs.get(f"{EPOCH_ATTR}{epoch:05d}", {})
    steps = json_values.whole_number(record, "optimizer_steps", STEPS_TO_JUDGE)
    return steps >= STEPS_TO_JUDGE and epoch > warmup_epochs(trial)


def _with_rungs_at(trial: FrozenTrial, epoch: int) -> FrozenTrial:
    """The trial as if it had reached every rung in ``epoch``; unchanged if it has no value of that epoch."""
    if epoch not in trial.intermediate_values:
        return trial
    return as_shown(trial, system_attrs=dict.fromkeys(_RUNGS, trial.intermediate_values[epoch]))
