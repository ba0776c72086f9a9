"""What a constant prediction is worth in an objective: a run that is not better has learned nothing."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

from bigbatch.base import json_values
from bigbatch.tune.runs import metrics
from bigbatch.tune.runs.objective import Objective
from bigbatch.tune.runs.objectives import facts_of_runs
from bigbatch.tune.runs.run import AnyTrial, epoch_records
from bigbatch.tune.runs.target import TimeToTarget

KNOWN_AT_CHANCE = ("val_top1", "val_loss")


def baseline_of(trials: Sequence[AnyTrial], description: Mapping[str, object], objective: Objective) -> float | None:
    """The value that a constant prediction reaches on the validation examples that choose. None: nobody knows it.

    What the user states comes first, then what runs have measured, then chance: the same value for balanced classes.

    Args:
        trials: of the study, in any state.
        description: study.json.
        objective: one of the study's. What costs, and the time to a target, has no such value.
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
