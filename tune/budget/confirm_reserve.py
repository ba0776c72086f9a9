"""The confirmations that a running search leads to, as runs for which a budget keeps room (``budget.KeptBack``).

They are those that the rule would ask for if the trials that run now had ended. A trial that still runs counts for its
value of the frontier until enough others there have ended, because it may become the best one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from optuna.trial import TrialState

from bigbatch.base import json_values
from bigbatch.tune.budget.pace import PaceRun, pace_key
from bigbatch.tune.runs.confirm_rule import LEAST_TRIALS
from bigbatch.tune.runs.confirmation import ConfirmationFacts, best_of_each_value, fresh_seeds, trials_to_confirm
from bigbatch.tune.runs.frontier import counted_trials, value_of_trial
from bigbatch.tune.runs.run import (
    SEED_ATTR,
    AnyTrial,
    Kind,
    configuration,
    confirmed_by,
    of_kind,
    search_trials,
)


@dataclass(frozen=True)
class ConfirmationReserve:
    """What a budget keeps back for the confirmations of one search.

    Args:
        max_epochs: of its longest run.
    """

    facts: ConfirmationFacts
    max_epochs: int

    @property
    def most(self) -> int:
        """How many runs these are at most."""
        rule, frontier = self.facts.rule, self.facts.frontier
        return rule.best * len(frontier.values) * rule.seeds

    def beside(self, trials: Sequence[AnyTrial], number: int, config: Mapping[str, object]) -> KeptConfirmations:
        """What to keep back if the trial with that number begins. ``config``: its configuration, as ``to_dict``."""
        return KeptConfirmations(self, trials, {number: config})

    def of_finished(self, trials: Sequence[AnyTrial]) -> KeptConfirmations:
        """What to keep back if no trial of the search ran on."""
        return KeptConfirmations(self, trials, {}, running=False)


@dataclass(frozen=True)
class KeptConfirmations:
    """A ``KeptBack`` at one moment of a search."""

    reserve: ConfirmationReserve
    trials: Sequence[AnyTrial]
    asking: Mapping[int, Mapping[str, object]]
    running: bool = True
    """Whether the trials that run count."""

    @property
    def most(self) -> int:
        """As the reserve's."""
        return self.reserve.most

    @property
    def most_epochs(self) -> int:
        """As the reserve's."""
        return self.reserve.max_epochs

    def runs(self) -> list[PaceRun]:
        """The runs, one for each seed that a trial still lacks."""
        facts, trials = self.reserve.facts, self.trials
        ended = [t for t in of_kind(trials, Kind.CONFIRMATION) if t.state.is_finished()]
        there = {(confirmed_by(t), t.user_attrs.get(SEED_ATTR)) for t in ended}
        return [
            (pace_key(self._config(trial)), json_values.whole_number(self._config(trial), "epochs"))
            for trial, seeds in (self._affordable() if facts.rule.affordable else self._of_each_value())
            for seed in seeds
            if (trial.number, seed) not in there
        ]

    def _affordable(self) -> list[tuple[AnyTrial, Sequence[int]]]:
        found = trials_to_confirm(self.trials, self.reserve.facts)
        searched = counted_trials(self.trials)
        if found or len(searched) < LEAST_TRIALS or any(t.state == TrialState.COMPLETE for t in searched):
            return found
        # None has ended: the answer will be one of those that run.
        return [(trial, self._seeds) for trial in self._running()[:1]]

    @property
    def _seeds(self) -> Sequence[int]:
        return fresh_seeds(self.reserve.facts, self.reserve.facts.rule.seeds)

    def _of_each_value(self) -> list[tuple[AnyTrial, Sequence[int]]]:
        facts = self.reserve.facts
        groups = {value: point[: facts.rule.best] for value, point in best_of_each_value(self.trials, facts).items()}
        for trial in self._running():
            group = groups.setdefault(value_of_trial(trial, facts.frontier), [])
            if len(group) < facts.rule.best:
                group.append(trial)
        return [(trial, self._seeds) for group in groups.values() for trial in group]

    def _running(self) -> list[AnyTrial]:
        """The trials of the search that run or ask, without those that were only asked about."""
        if not self.running:
            return []
        running = [t for t in search_trials(self.trials) if t.state == TrialState.RUNNING]
        return [t for t in running if "epochs" in self._config(t)]

    def _config(self, trial: AnyTrial) -> Mapping[str, object]:
        return self.asking.get(trial.number, configuration(trial))
