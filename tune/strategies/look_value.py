"""When a trial is looked at, and how well its value there tells its end."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from optuna.trial import FrozenTrial, TrialState

from bigbatch.tune.strategies.known_prediction import rank_correlation
from bigbatch.tune.strategies.protocol import SearchFacts
from bigbatch.tune.study.trial_facts import planned_epochs, warmup_epochs

LOOK_AFTER = 0.1
"""Of the run."""
AFTER_WARMUP = 0.05
"""Of the run: a value at the peak of the learning rate says little, so the look is this much later."""
LEAST_Z, LEAST_RUNS = 0.4, 6
"""Early values say little if Fisher's z of their rank correlation with the ends is, with one standard error more, below
the first figure: a correlation of 0.38. Fewer finished runs than the second figure say nothing."""


class LookedRun(NamedTuple):
    """A run to its end: its gains at the look and at the end, and the group of runs that compare with it."""

    early: float
    end: float
    group: tuple[object, int | None]
    """The frontier's value and the planned epochs."""


def look_epoch(trial: FrozenTrial, max_epochs: int) -> int:
    """The epoch after which a trial is paused. Not below its epochs: a run too short to be looked at."""
    epochs = planned_epochs(trial) or max_epochs
    return max(1, math.ceil(LOOK_AFTER * epochs), math.ceil(warmup_epochs(trial) + AFTER_WARMUP * epochs))


def looked_of(trial: FrozenTrial, facts: SearchFacts) -> LookedRun | None:
    """What a complete trial says about early values; None for another one, or without a value at its look."""
    early = trial.intermediate_values.get(look_epoch(trial, facts.max_epochs))
    if trial.state != TrialState.COMPLETE or not trial.values or early is None:
        return None
    value = trial.params.get(facts.frontier) if facts.frontier else None
    gain = facts.objective.gain
    return LookedRun(gain(early), gain(trial.values[0]), (value, planned_epochs(trial)))


def correlation(runs: Sequence[LookedRun]) -> float | None:
    """Spearman's rank correlation of early values and ends, within the groups. None if nothing can be ranked."""
    return rank_correlation([r.early for r in runs], [r.end for r in runs], [r.group for r in runs])


def says_little(runs: Sequence[LookedRun]) -> bool:
    """Whether early values say little about the ends of these runs (Fisher's transformation of the correlation).

    Each group of runs takes one degree of freedom.
    """
    if len(runs) < LEAST_RUNS:
        return False
    found, free = correlation(runs), len(runs) - 2 - len({run.group for run in runs})
    if found is None or free < 1:
        return False
    return math.atanh(min(0.999, max(-0.999, found))) + 1 / math.sqrt(free) < LEAST_Z
