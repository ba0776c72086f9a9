"""The files of a scaling study: ``scale.json`` says what is measured, ``scaling.json`` what came out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from bigbatch.base import json_values
from bigbatch.base.atomic_files import write_json
from bigbatch.train_loop.config import ConfigError, differing_keys
from bigbatch.tune.scaling.analysis import ScalingAnalysis, as_json
from bigbatch.tune.scaling.scale_plan import ScalePlan
from bigbatch.tune.storage.description import provenance

PLAN_FILE, RESULT_FILE = "scale.json", "scaling.json"
PLAN_VERSION = RESULT_VERSION = 1


def plan_values(plan: ScalePlan) -> dict[str, object]:
    """What decides the numbers of a scaling study: a study goes on only with the same."""
    return {
        "mode": plan.mode,
        "base_workers": plan.base_workers,
        "epochs": plan.epochs,
        "profile_steps": plan.profile_steps,
        "retune_trials": plan.retune_trials,
        "objective": plan.objective.text,
        "config": plan.config.to_dict(),
    }


def stored_plan(output: Path) -> Mapping[str, object] | None:
    """``scale.json`` of a folder; None if it holds no scaling study. Raises ConfigError for a damaged file."""
    path = output / PLAN_FILE
    try:
        values = json_values.json_object(path.read_text())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{PLAN_FILE} must be readable JSON; got {str(path)!r} ({error}). Write --output with another folder."
        ) from None
    if values.get("schema_version") != PLAN_VERSION:
        raise ConfigError(
            f"this version reads {PLAN_FILE} of schema {PLAN_VERSION}; got {values.get('schema_version')!r} in "
            f"{str(path)!r}. Write --output with another folder."
        )
    return values


def check_same_scaling(plan: ScalePlan) -> None:
    """Raise ConfigError if the folder holds a scaling study with other values."""
    stored = stored_plan(plan.output)
    if stored is None:
        return
    planned = plan_values(plan)
    changes = differing_keys({key: stored.get(key) for key in planned}, planned)
    if changes:
        raise ConfigError(
            f"a scaling study goes on as it began; {str(plan.output)!r} holds one with other values: "
            f"{', '.join(changes)}. Write --output with another folder."
        )


def write_plan(plan: ScalePlan) -> None:
    """``scale.json``. Several jobs may write the same."""
    workers = sorted({size.workers for size in plan.sizes} | set(_stored_workers(plan.output)))
    values = {"schema_version": PLAN_VERSION, "source": str(plan.source), "workers": workers, **plan_values(plan)}
    write_json(plan.output / PLAN_FILE, values, indent=2)


def _stored_workers(output: Path) -> list[int]:
    stored = stored_plan(output)
    found = json.loads(json.dumps(stored.get("workers", []))) if stored else []
    return [workers for workers in found if isinstance(workers, int)]


def write_result_of(plan: ScalePlan, found: ScalingAnalysis) -> Path:
    """``scaling.json``. Returns its path."""
    path = plan.output / RESULT_FILE
    values = {
        "schema_version": RESULT_VERSION,
        "source": str(plan.source),
        "per_node": plan.machine.per_node,
        "unit": plan.machine.unit,
        **plan_values(plan),
        **as_json(found),
        "provenance": provenance(),
    }
    write_json(path, values, indent=2)
    return path
