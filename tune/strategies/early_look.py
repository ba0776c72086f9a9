"""``--stopping look``: each trial is looked at once, early, and paused. The most promising go on (i-Epoch, Egele et al.
2024, arXiv 2404.04111).

A trial pauses after a tenth of its run, but not before its warmup has ended. Every fourth free slot continues the
paused trial whose end is predicted to be the best; the others get new configurations. When all configurations were
tried, continuing goes on until a third of them has run to the end. No trial is stopped for good.

With a frontier the slots for continuing are divided like the trials: the value goes first of which the smallest part
has gone on. At the end at least one trial of each value has run to its end.

All predictions are those of the curve model (curve_model.py), whatever strategy proposes: values of different epochs
do not compare, and it knows how curves go on.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field

from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from bigbatch.tune.strategies.curve_data import CurveEncoder, curves_of, first_numbers
from bigbatch.tune.strategies.protocol import SearchFacts, TrialDecision
from bigbatch.tune.study.retry import RETRIES_ATTR
from bigbatch.tune.study.trial_facts import (
    CONTINUES_ATTR,
    dropped_checkpoints,
    planned_epochs,
    waiting_to_continue,
    warmup_epochs,
)

LOOK_AFTER = 0.1
"""Of the run."""
AFTER_WARMUP = 0.05
"""Of the run: a value at the peak of the learning rate says little, so the look is this much later."""
EVERY = 4
"""Each slot of this number continues a paused trial."""
FINISHED_SHARE = 1 / 3
"""Of all configurations, the part that runs to its end."""


@dataclass(frozen=True)
class EarlyLook:
    """Pauses each trial once; see above."""

    facts: SearchFacts
    encoder: CurveEncoder = field(repr=False, compare=False)
    name: str = "look"

    def look(self, study: Study, trial: FrozenTrial, epoch: int) -> TrialDecision:
        """PAUSE at the look; a trial that continues a paused one goes on."""
        if epoch < look_epoch(trial, self.facts.max_epochs) or epoch >= _epochs(trial, self.facts.max_epochs):
            return TrialDecision.GO_ON
        return TrialDecision.GO_ON if _continues(trial, study) else TrialDecision.PAUSE

    def to_continue(self, study: Study) -> FrozenTrial | None:
        """The best of the paused trials at every fourth slot, and as long as too few have run to their end."""
        trials = study.get_trials(deepcopy=False)
        if configurations(trials) < self.facts.trials:
            slot = len(trials) + 1
            due = slot % EVERY == 0 and slot > 2 * EVERY
            return self._next(trials, self._progress(study, trials)) if due else None
        progress = self._progress(study, trials)
        if bare := progress.too_few_values:
            return self._best(trials, [t for t in progress.waiting if self._value(t) in bare])
        return self._next(trials, progress) if progress.too_few else None

    def is_over(self, study: Study) -> bool:
        """Whether enough trials have run to their end, or none is left that could."""
        trials = study.get_trials(deepcopy=False)
        progress = self._progress(study, trials, only_finished=True)
        if not progress.too_few and not progress.too_few_values:
            return True
        return not progress.waiting and not any(t.state == TrialState.RUNNING for t in trials)

    def _progress(self, study: Study, trials: Sequence[FrozenTrial], only_finished: bool = False) -> Progress:
        return Progress.of(trials, self.facts, dropped_checkpoints(study), only_finished)

    def _value(self, trial: FrozenTrial) -> object:
        return _frontier_value(trial, self.facts)

    def _next(self, trials: Sequence[FrozenTrial], progress: Progress) -> FrozenTrial | None:
        """The best paused trial of the frontier's value of which the smallest part has gone on."""
        values = {self._value(t) for t in progress.waiting}
        if not values:
            return None
        value = min(values, key=lambda v: (progress.share(v), str(v)))
        return self._best(trials, [t for t in progress.waiting if self._value(t) == value])

    def _best(self, trials: Sequence[FrozenTrial], waiting: Sequence[FrozenTrial]) -> FrozenTrial | None:
        if len(waiting) < 2:
            return waiting[0] if waiting else None
        ends = predicted_ends(trials, self.facts, self.encoder)
        return max(waiting, key=lambda t: (ends.get(t.number, -math.inf), -t.number))


def look_epoch(trial: FrozenTrial, max_epochs: int) -> int:
    """The epoch after which a trial is paused. Not below its epochs: a run too short to be looked at."""
    epochs = _epochs(trial, max_epochs)
    return max(1, math.ceil(LOOK_AFTER * epochs), math.ceil(warmup_epochs(trial) + AFTER_WARMUP * epochs))


def _epochs(trial: FrozenTrial, max_epochs: int) -> int:
    return planned_epochs(trial) or max_epochs


def _continues(trial: FrozenTrial, study: Study) -> bool:
    """Whether the trial continues a paused one, or repeats a failed one that did."""
    while CONTINUES_ATTR not in trial.user_attrs:
        if RETRIES_ATTR not in trial.user_attrs:
            return False
        trial = study.get_trials(deepcopy=False)[int(trial.user_attrs[RETRIES_ATTR])]
    return True


def configurations(trials: Sequence[FrozenTrial]) -> int:
    """How many configurations were tried: trials that neither continue nor repeat another one."""
    return sum(CONTINUES_ATTR not in t.user_attrs and RETRIES_ATTR not in t.user_attrs for t in trials)


def _frontier_value(trial: FrozenTrial, facts: SearchFacts) -> object:
    """The trial's value of the frontier's parameter; None without a frontier."""
    return None if facts.frontier is None else trial.params.get(facts.frontier)


@dataclass
class Progress:
    """How many trials of each frontier value were looked at, and how many have gone on."""

    facts: SearchFacts
    waiting: list[FrozenTrial]
    """Paused trials that can be continued from their checkpoint."""
    seen: dict[object, int] = field(default_factory=dict)
    gone_on: dict[object, int] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        trials: Sequence[FrozenTrial],
        facts: SearchFacts,
        dropped: Container[int] = (),
        only_finished: bool = False,
    ) -> Progress:
        """The progress of a study.

        Args:
            dropped: numbers of paused trials that have no checkpoint any more.
            only_finished: trials that still run on do not count as gone on.
        """
        waiting = waiting_to_continue(trials)
        progress = cls(facts, [t for t in waiting if t.number not in dropped])
        for t in waiting:
            progress.seen[_frontier_value(t, facts)] = progress.seen.get(_frontier_value(t, facts), 0) + 1
        for t in trials:
            runs_on = t.state == TrialState.RUNNING and CONTINUES_ATTR in t.user_attrs and not only_finished
            if t.state == TrialState.COMPLETE or runs_on:
                value = _frontier_value(t, facts)
                progress.seen[value] = progress.seen.get(value, 0) + 1
                progress.gone_on[value] = progress.gone_on.get(value, 0) + 1
        return progress

    def share(self, value: object) -> float:
        """Of the trials of a frontier value that were looked at, the part that has gone on."""
        return self.gone_on.get(value, 0) / max(1, self.seen.get(value, 0))

    @property
    def too_few(self) -> bool:
        """Whether fewer trials have gone on than should run to their end."""
        return sum(self.gone_on.values()) < max(1, math.ceil(self.facts.trials * FINISHED_SHARE))

    @property
    def too_few_values(self) -> set[object]:
        """Values of the frontier of which trials wait and none has gone on."""
        if self.facts.frontier is None:
            return set()
        return {_frontier_value(t, self.facts) for t in self.waiting} - self.gone_on.keys()


def predicted_ends(
    trials: Sequence[FrozenTrial], facts: SearchFacts, encoder: CurveEncoder | None = None
) -> dict[int, float]:
    """Number of each trial with values → its predicted value at the end of its run, larger is better.

    With too few trials for a model, the last value instead.
    """
    curves = curves_of(trials, facts)
    learned = (encoder or CurveEncoder(facts)).learn(curves)
    if learned is None:
        by_first = {c.number: c.gains[max(c.gains)] for c in curves if c.gains}
    else:
        by_first = {c.number: float(end) for c, end in zip(learned.curves, learned.ends(), strict=True)}
    return {number: by_first[first] for number, first in first_numbers(trials).items() if first in by_first}


def checkpoints_to_drop(
    trials: Sequence[FrozenTrial], facts: SearchFacts, sizes: Mapping[int, int], budget_bytes: int
) -> list[int]:
    """The paused trials whose checkpoints have to go, so that the others fit into the budget, worst predicted first.

    Args:
        sizes: number of each paused trial with a checkpoint → its bytes.
        budget_bytes: what these checkpoints may take together.
    """
    held, dropped = sum(sizes.values()), list[int]()
    if held <= budget_bytes:
        return dropped
    ends = predicted_ends(trials, facts)
    for number in sorted(sizes, key=lambda n: (ends.get(n, -math.inf), -n)):
        if held <= budget_bytes:
            break
        dropped.append(number)
        held -= sizes[number]
    return dropped
