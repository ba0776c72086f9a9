"""``pareto.json``: with several objectives, the trials that no other one beats."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bigbatch.base.atomic_files import write_json
from bigbatch.tune.runs.objectives import Objectives
from bigbatch.tune.runs.run import AnyTrial

SCHEMA_VERSION = 1
PARETO_FILE = "pareto.json"


def write_front(objectives: Objectives, trials: Sequence[AnyTrial], path: Path) -> None:
    """Write the front, the best trial in the first objective first. The keys are in docs/objectives.md."""
    front = [
        {
            "trial": trial.number,
            "values": objectives.named(trial.values),
            "parameters": trial.params,
            "config": trial.user_attrs.get("config", {}),
        }
        for trial in objectives.front(trials)
    ]
    described = [{"name": objective.name, "direction": objective.direction} for objective in objectives.each]
    write_json(path, {"schema_version": SCHEMA_VERSION, "objectives": described, "front": front}, indent=2)
