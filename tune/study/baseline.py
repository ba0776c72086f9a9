"""What a constant prediction is worth on the examples that choose."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from optuna.trial import FrozenTrial

from bigbatch.cluster.host import json_values
from bigbatch.tune.study.objective import Objective


def baseline_of(trials: Sequence[FrozenTrial], description: Mapping[str, object], objective: Objective) -> float | None:
    stated = json_values.number_or_none(json_values.mapping(description, "baseline"), objective.name)
    if stated is not None:
        return stated
    return (
        objective.worst
        if objective.name in ("val_top1", "val_loss") and math.isfinite(objective.worst) and 0 < objective.worst != 1.0
        else None
    )
