"""``EpochRecord`` is the only list of an epoch's fields: tables, trackers, lines and documentation have them all."""

import dataclasses
import re
import typing
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from optuna.trial import TrialState, create_trial

from bigbatch.train_loop.launch import wandb_run
from bigbatch.train_loop.reporter import EpochRecord
from bigbatch.tune.runs import tables
from helpers.paths import ROOT

RECORD = EpochRecord(
    epoch=1, epochs=2, train_loss=1.5, train_top1=0.25, val_loss=1.25, val_top1=0.5, learning_rate=0.1,
    optimizer_steps=3, skipped_steps=1, loader_processes=5, images_per_s=6.0, train_s=7.0, data_s=3.0,
    step_s=4.0, bn_s=0.5, val_s=0.25, checkpoint_s=0.125, memory_bytes=2**33, noise_scale=64.0, resumed_from_epoch=8,
    gpu_energy_j=9.5, gpu_utilization=0.75, checkpoint_write_s=0.5,
    metrics={"val_miou": 0.5, "val_dice": None},
    baseline={"val_top1": 0.125, "val_miou": 0.25},
)  # fmt: skip


def test_every_field_reaches_the_table_with_its_type_and_value(tmp_path: Path) -> None:
    """The types are those of the annotations, the values those of the record."""
    trial = create_trial(state=TrialState.COMPLETE, value=0.5, user_attrs={"epoch/00001": RECORD.to_dict()})
    trial.number = 3
    tables.write_epochs([trial], tmp_path / "epochs.parquet")
    table = pq.read_table(tmp_path / "epochs.parquet")
    pairs = {"metrics": [("val_miou", 0.5), ("val_dice", None)]}  # as Arrow gives a map
    pairs |= {"baseline": [("val_top1", 0.125), ("val_miou", 0.25)]}
    assert table.to_pylist() == [{"trial": 3, **dataclasses.asdict(RECORD), **pairs}]
    assert all(pa.types.is_map(table.schema.field(name).type) for name in pairs)
    for name, kind in typing.get_type_hints(EpochRecord).items():
        if name in pairs:
            continue
        whole = int in (kind, *typing.get_args(kind))
        assert pa.types.is_integer(table.schema.field(name).type) == whole, name
        assert pa.types.is_floating(table.schema.field(name).type) != whole, name


def test_columns_that_a_stored_table_has_are_still_there() -> None:
    """The list is that of commit 6dde4d6, without bad_images: users' notebooks read these names."""
    stored = """epoch train_loss train_top1 val_loss val_top1 learning_rate optimizer_steps skipped_steps
        loader_processes images_per_s train_s data_s step_s bn_s val_s checkpoint_s noise_scale resumed_from_epoch"""
    assert set(stored.split()) <= set(tables.EPOCHS.names)


def test_a_record_survives_the_way_through_plain_values() -> None:
    assert EpochRecord.from_dict(RECORD.to_dict()) == RECORD


def test_trackers_get_only_fields_and_the_figures_that_one_watches() -> None:
    assert {"train_loss", "val_loss", "val_top1", "learning_rate"} <= set(wandb_run.METRICS)
    assert set(wandb_run.METRICS) < {field.name for field in dataclasses.fields(EpochRecord)}


def test_the_documented_columns_are_the_fields() -> None:
    """Where this fails: put the expected rows into docs/study-folder.md."""
    section = (ROOT / "docs" / "study-folder.md").read_text(encoding="utf-8").partition("## epochs.parquet")[2]
    rows = [line for line in section.partition("\n## ")[0].splitlines() if line.startswith("| `")]
    expected = ["| `trial` | as above |"]
    expected += [f"| `{name}` | {column.meaning} |" for name, column in EpochRecord.columns().items()]
    assert rows == expected, "\n".join(["write:", *expected])


def test_the_documented_columns_of_trials_are_the_schemas() -> None:
    text = (ROOT / "docs" / "study-folder.md").read_text(encoding="utf-8")
    section = text.partition("## trials.parquet")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (`[^|]+`) \|", section, flags=re.MULTILINE)
    documented = [name for cell in cells for name in re.findall(r"`([\w.*]+)`", cell)]
    schema = [field.name for field in tables.TRIALS if not field.name.startswith("config.")]
    assert sorted(documented) == sorted([*schema, "config.*"])
