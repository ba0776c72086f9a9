"""The confirmations that a running search leads to, as runs for which a budget keeps room (``budget.KeptBack``).

They are those that the rule would ask for if the trials that run now had ended. A trial that still runs counts for its
value of the frontier until enough others there have ended, because it may become the best one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from optuna.trial import TrialState

from bigbatch.base import json_values
from bigbatch.tune.budget.budget import KeptBack
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

    def beside(self, trials: Sequence[AnyTrial], number: int, config: Mapping[str, object]) -> KeptBack:
        """What to keep back if the trial with that number begins. ``config``: its configuration, as ``to_dict``."""
        return self._kept(trials, {number: config})

    def of_finished(self, trials: Sequence[AnyTrial]) -> KeptBack:
        """What to keep back if no trial of the search ran on."""
        return self._kept(trials, None)

    def _kept(self, trials: Sequence[AnyTrial], asking: Mapping[int, Mapping[str, object]] | None) -> KeptBack:
        """``asking``: by number the configurations of trials that ask. None: no running trial counts."""
        rule = self.facts.rule

        def config_of(trial: AnyTrial) -> Mapping[str, object]:
            return (asking or {}).get(trial.number, configuration(trial))

        def runs() -> list[PaceRun]:
            now = search_trials(trials) if asking is not None else []
            running = [t for t in now if t.state == TrialState.RUNNING and "epochs" in config_of(t)]
            ended = [t for t in of_kind(trials, Kind.CONFIRMATION) if t.state.is_finished()]
            there = {(confirmed_by(t), t.user_attrs.get(SEED_ATTR)) for t in ended}
            wanted = (self._affordable if rule.affordable else self._of_each_value)(trials, running)
            return [
                (pace_key(config_of(trial)), json_values.whole_number(config_of(trial), "epochs"))
                for trial, seeds in wanted
                for seed in seeds
                if (trial.number, seed) not in there
            ]

        return KeptBack(rule.best * len(self.facts.frontier.values) * rule.seeds, self.max_epochs, runs)

    def _affordable(
        self, trials: Sequence[AnyTrial], running: Sequence[AnyTrial]
    ) -> list[tuple[AnyTrial, Sequence[int]]]:
        found = trials_to_confirm(trials, self.facts)
        searched = counted_trials(trials)
        if found or len(searched) < LEAST_TRIALS or any(t.state == TrialState.COMPLETE for t in searched):
            return found
        # None has ended: the answer will be one of those that run.
        return [(trial, self._seeds) for trial in running[:1]]

    def _of_each_value(
        self, trials: Sequence[AnyTrial], running: Sequence[AnyTrial]
    ) -> list[tuple[AnyTrial, Sequence[int]]]:
        facts = self.facts
        groups = {value: point[: facts.rule.best] for value, point in best_of_each_value(trials, facts).items()}
        for trial in running:
            group = groups.setdefault(value_of_trial(trial, facts.frontier), [])
            if len(group) < facts.rule.best:
                group.append(trial)
        return [(trial, self._seeds) for group in groups.values() for trial in group]

    @property
    def _seeds(self) -> Sequence[int]:
        return fresh_seeds(self.facts, self.facts.rule.seeds)
