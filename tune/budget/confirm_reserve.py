"""The confirmations that a running search leads to, as runs for which a budget keeps room.

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
from bigbatch.tune.runs.frontier import value_of_trial
from bigbatch.tune.runs.run import (
    SEED_ATTR,
    AnyTrial,
    Kind,
    configuration,
    confirmed_by,
    counted_trials,
    of_kind,
    search_trials,
)


@dataclass(frozen=True)
class ConfirmationReserve:
    """What a budget keeps back for the confirmations of one search."""

    facts: ConfirmationFacts

    def of_finished(self, trials: Sequence[AnyTrial]) -> list[PaceRun]:
        """The runs to keep room for if no trial of the search ran on."""
        return self._runs(trials, [], {})

    def beside(self, trials: Sequence[AnyTrial], number: int, config: Mapping[str, object]) -> list[PaceRun]:
        """The runs to keep room for if trial ``number`` begins. ``config``: its configuration, as ``to_dict``."""
        asking = {number: config}
        running = [t for t in search_trials(trials) if t.state == TrialState.RUNNING]
        return self._runs(trials, [t for t in running if "epochs" in asking.get(t.number, configuration(t))], asking)

    def _runs(
        self, trials: Sequence[AnyTrial], running: Sequence[AnyTrial], asking: Mapping[int, Mapping[str, object]]
    ) -> list[PaceRun]:
        ended = [t for t in of_kind(trials, Kind.CONFIRMATION) if t.state.is_finished()]
        there = {(confirmed_by(t), t.user_attrs.get(SEED_ATTR)) for t in ended}
        wanted = (self._affordable if self.facts.rule.affordable else self._of_each_value)(trials, running)
        configs = [(asking.get(trial.number, configuration(trial)), trial.number, seeds) for trial, seeds in wanted]
        return [
            (pace_key(config), json_values.whole_number(config, "epochs"))
            for config, number, seeds in configs
            for seed in seeds
            if (number, seed) not in there
        ]

    def _affordable(
        self, trials: Sequence[AnyTrial], running: Sequence[AnyTrial]
    ) -> list[tuple[AnyTrial, Sequence[int]]]:
        found = trials_to_confirm(trials, self.facts)
        searched = counted_trials(trials)
        if found or len(searched) < LEAST_TRIALS or any(t.state == TrialState.COMPLETE for t in searched):
            return found
        # None has ended: the answer will be one of those that run.
        return [(trial, fresh_seeds(self.facts, self.facts.rule.seeds)) for trial in running[:1]]

    def _of_each_value(
        self, trials: Sequence[AnyTrial], running: Sequence[AnyTrial]
    ) -> list[tuple[AnyTrial, Sequence[int]]]:
        facts, best = self.facts, self.facts.rule.best
        groups = {value: point[:best] for value, point in best_of_each_value(trials, facts).items()}
        for trial in running:
            group = groups.setdefault(value_of_trial(trial, facts.frontier), [])
            group += [trial] if len(group) < best else []
        return [(trial, fresh_seeds(facts, facts.rule.seeds)) for group in groups.values() for trial in group]
