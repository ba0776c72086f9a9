"""When a trial is looked at, and how well its value there tells its end."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from typing import NamedTuple

from optuna.trial import FrozenTrial, TrialState
from scipy.special import ndtr

from bigbatch.tune.models.known_curves import rank_correlation
from bigbatch.tune.models.protocol import SearchFacts
from bigbatch.tune.runs.run import planned_epochs, warmup_epochs

LOOK_AFTER = 0.1
"""The look comes after this part of a run."""
AFTER_WARMUP = 0.05
"""The least part of a run between warmup and look: a value at the peak of the learning rate says little."""
LOOKS_A_SLOT, FEWEST_LOOKS = 2, 8
"""In the first round LOOKS_A_SLOT trials for each slot, FEWEST_LOOKS at least, are looked at before one goes on."""
LITTLE_Z = 0.4
"""Early values say little if Fisher's z of their rank correlation with the ends is below this, the z of 0.38."""
PRIOR_Z, PRIOR_SD = 0.6, 0.5
"""What is expected of Fisher's z before any run has ended, as mean and standard deviation (normal). The chance that
early values say little is then 0.34."""
TRIAL_STEP, SEED_STEP = (math.sqrt(5) - 1) / 2, math.sqrt(2) - 1
"""Steps of the points that decide which trials are not paused: the golden ratio's fraction, an irrational number."""


class LookedRun(NamedTuple):
    """A run that has ended: its gains at the look and at the end, and the group of runs that compare with it."""

    early: float
    end: float
    group: object = None
    """The frontier's value. Runs of different lengths compare: the look is at the same part of each."""


def look_epoch(trial: FrozenTrial, max_epochs: int) -> int:
    """The epoch after which a trial is paused. If the run has no more epochs than that, it is too short for a look."""
    epochs = planned_epochs(trial) or max_epochs
    return max(1, math.ceil(LOOK_AFTER * epochs), math.ceil(warmup_epochs(trial) + AFTER_WARMUP * epochs))


def first_looks(facts: SearchFacts) -> int:
    """How many trials the first round has. The best ones go on when the last of them has begun."""
    return max(FEWEST_LOOKS, LOOKS_A_SLOT * facts.slots)


def looked_of(trial: FrozenTrial, facts: SearchFacts) -> LookedRun | None:
    """A complete trial's gains at its look and its end; None for other trials, or without a look or a value there."""
    at = look_epoch(trial, facts.max_epochs)
    early = trial.intermediate_values.get(at)
    if trial.state != TrialState.COMPLETE or not trial.values or early is None:
        return None
    if at >= (planned_epochs(trial) or facts.max_epochs):
        return None
    value = trial.params.get(facts.frontier) if facts.frontier else None
    gain = facts.objective.gain
    return LookedRun(gain(early), gain(trial.values[0]), value)


def chance_of_little(runs: Sequence[LookedRun]) -> float:
    """The probability that early values say little about final values, judged by the runs that have ended.

    Fisher's z of their rank correlation is normal with a variance of 1 / (runs − 3) (Fisher 1921). With the prior it
    gives a normal posterior; the chance is its part below LITTLE_Z. Each further group of runs takes one degree of
    freedom. Runs that cannot be ranked leave the prior as it is.
    """
    found = rank_correlation([r.early for r in runs], [r.end for r in runs], [r.group for r in runs])
    free = len(runs) - 2 - len({run.group for run in runs})
    precision, mean = PRIOR_SD**-2, PRIOR_Z
    if found is not None and free > 0:
        # The z of a correlation of 1 is infinite.
        z = math.atanh(min(0.999, max(-0.999, found)))
        mean = (precision * mean + free * z) / (precision + free)
        precision += free
    return float(ndtr((LITTLE_Z - mean) * math.sqrt(precision)))


def is_let_go(chance: float, place: int, seed: int, value: object = None) -> bool:
    """Whether a trial is not paused at its look. A part of the trials is not, evenly spread over a search.

    That part is ``chance``, the probability that pauses choose the wrong runs (probability matching, Thompson 1933).
    The points are an additive recurrence with the golden ratio, which spreads any number of them evenly (Knuth 1998,
    section 6.4).

    Args:
        place: how many configurations of the same frontier value came before. Not the trial's number: batches take
            turns, so some batches would get many of these trials and others none.
        value: that frontier value; each value starts at another point. None without a frontier.
    """
    # Python's hash of a text differs between processes: a resumed search would decide otherwise.
    offset = 0.0 if value is None else zlib.crc32(str(value).encode()) / 2**32
    return (offset + seed * SEED_STEP + place * TRIAL_STEP) % 1 < chance
