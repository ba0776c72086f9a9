"""What crosses from the driver to the processes of a trial: one frozen record, a plain dict at Ray's boundary alone."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from bigbatch.train_loop.config import TrainConfig
from bigbatch.train_loop.launch.trial_task import TrialTask

TASK = TrialTask(
    name="trial-0007", config=TrainConfig(epochs=3).replace_keys({"lr": 0.25}), workers=2,
    worker_resources={"CPU": 1.5, "GPU": 1.0}, restarts=3, ray_storage=Path("/scratch/ray"),
    checkpoint_dir=Path("/study/checkpoints/trial-0007"), checkpoint_every_s=20.0,
    log_file=Path("/study/logs/trial-0007.log"), stop_file=Path("/study/.stop"), stage_folder="/local",
    records_file=Path("/study/records.jsonl"), log_every_steps="10%",
)  # fmt: skip


@pytest.mark.parametrize(
    "task", [TASK, dataclasses.replace(TASK, stage_folder=None, records_file=None)], ids=["whole", "without options"]
)
def test_a_task_survives_the_way_through_plain_values(task: TrialTask) -> None:
    plain = task.to_dict()
    assert TrialTask.from_dict(plain) == task
    assert TrialTask.from_dict(json.loads(json.dumps(plain))) == task, "also through JSON: nothing but plain values"


@pytest.mark.parametrize("field", dataclasses.fields(TrialTask), ids=lambda field: field.name)
def test_a_missing_key_is_named(field: dataclasses.Field[Any]) -> None:
    plain = TASK.to_dict()
    del plain[field.name]
    with pytest.raises(ValueError, match=f"missing: {field.name}, unknown: none"):
        TrialTask.from_dict(plain)


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("wokers", 3, "missing: none, unknown: wokers"),
        *((key, value, key) for key, value in {"workers": "2", "name": 7, "config": [1], "restarts": True}.items()),
    ],
)
def test_an_unknown_key_and_a_value_of_another_type_are_named(key: str, value: object, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        TrialTask.from_dict({**TASK.to_dict(), key: value})
