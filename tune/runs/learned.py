"""Whether a run has learned anything, whether it still learns, and how much its value changes by itself.

A run has *learned* if its value is better than what a constant prediction reaches (``baseline_of``), by more than its
own uncertainty. Of a proportion that uncertainty is its interval, of another metric the run's own setbacks from epoch
to epoch.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence

from bigbatch.base import json_values
from bigbatch.tune.runs import metrics
from bigbatch.tune.runs.objective import Objective, TimeToTarget
from bigbatch.tune.runs.objectives import facts_of_runs
from bigbatch.tune.runs.run import AnyTrial, epoch_records

HELD_OUT, FRESH_SEEDS, CHOSEN = "held_out", "fresh_seeds", "chosen"
"""What a reported value was measured by: examples that did not choose, seeds that did not, or the choice itself."""
NOTHING_LEARNED, INDISTINCT = "nothing_learned", "indistinct"
"""Why an answer is not usable."""
LAST_PART = 3
"""Changes from epoch to epoch are those of the last third of a run, when its rate is low."""
STEEP = 0.2
"""A run still rises steeply if its last quarter brought at least this part of all that it learned …"""
LEAST_GAIN = 0.01
"""… and at least this part of its value."""


def last_change(values: Sequence[float]) -> float | None:
    """By how much a run's value changes from epoch to epoch: the median over its last third. None with one epoch.

    Args:
        values: of its epochs, the first one first.
    """
    changes = [abs(after - before) for before, after in zip(values, values[1:], strict=False)]
    changes = [change for change in changes if math.isfinite(change)]
    return statistics.median(changes[-math.ceil(len(changes) / LAST_PART) :]) if changes else None


def worst_setback(values: Sequence[float], objective: Objective) -> float:
    """The largest setback of a run from one epoch to the next, in the second half of its changes: those of the first
    half show learning, not uncertainty. 0 with one epoch."""
    gains = [objective.gain(value) for value in values if math.isfinite(value)]
    changes = [after - before for before, after in zip(gains, gains[1:], strict=False)]
    return max([0.0, *(-change for change in changes[len(changes) // 2 :])])


def has_learned(value: float, uncertainty: float, baseline: float | None, objective: Objective) -> bool | None:
    """Whether a run is better than a constant prediction by more than its uncertainty. None if that is not known.

    Args:
        value, baseline: in the metric's unit.
        uncertainty: how far the value may be from the truth on the side of the baseline.
    """
    if baseline is None or not math.isfinite(baseline):
        return None
    gain = objective.gain(value) - objective.gain(baseline)
    return gain > uncertainty + 1e-9 * abs(baseline)  # a mean of values at chance may differ in its last digit


def still_rises(values: Sequence[float], baseline: float | None, objective: Objective) -> bool:
    """Whether the last quarter of a run brought ``STEEP`` of its whole gain, so that a longer one would be better.

    The gain counts from the baseline where it is known, else from the first epoch. It must be more than the run loses
    from one epoch to the next, and more than ``LEAST_GAIN`` of its value. It needs three epochs.
    """
    gains = [objective.gain(value) for value in values if math.isfinite(value)]
    if len(gains) < 3:
        return False
    # A run that ends below the baseline has gained nothing.
    start = gains[0] if baseline is None else min(objective.gain(baseline), gains[-1])
    last = gains[-1] - gains[-1 - math.ceil((len(gains) - 1) / 4)]
    setback = max(0.0, *(before - after for before, after in zip(gains, gains[1:], strict=False)))
    return last >= STEEP * (gains[-1] - start) and last > max(setback, LEAST_GAIN * abs(gains[-1]))


def cannot_be_told_apart(ends: Sequence[float], changes: Sequence[float | None]) -> bool:
    """Whether runs end as near to each other as each of them changes from one epoch to the next.

    Args:
        ends: final values of two runs or more; fewer can always be told apart.
        changes: ``last_change`` of each.
    """
    known = [change for change in changes if change is not None]
    return len(ends) > 1 and bool(known) and max(ends) - min(ends) <= statistics.median(known)


KNOWN_AT_CHANCE = ("val_top1", "val_loss")


def baseline_of(trials: Sequence[AnyTrial], description: Mapping[str, object], objective: Objective) -> float | None:
    """The value that a constant prediction reaches on the validation examples that choose. None: nobody knows it.

    What the user states comes first, then what runs have measured, then chance: the same value for balanced classes.

    Args:
        trials: of the study, in any state.
        description: study.json.
        objective: one of the study's. A cost, or the time to a target, has no such value.
    """
    if isinstance(objective, TimeToTarget) or objective.name.endswith(metrics.COSTS):
        return None
    measured = (record for trial in trials for record in epoch_records(trial))
    for source in itertools.chain((description,), measured):
        value = json_values.number(json_values.mapping(source, metrics.BASELINE), objective.name, math.nan)
        if math.isfinite(value):
            return value
    facts = facts_of_runs(description)
    if description.get("trainable") or objective.name not in KNOWN_AT_CHANCE or facts.num_classes < 2:
        return None
    chance = facts.worst(objective.name)
    return chance if math.isfinite(chance) else None
