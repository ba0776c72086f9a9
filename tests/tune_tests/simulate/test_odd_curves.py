"""Curves as other programs write them: whole numbers as 16.0, 0 and 1 for false and true, nulls, numbers as texts."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from invented_curves import invented_table

from bigbatch.train_loop.config import ConfigError
from bigbatch.tune.runs.objective import Objective
from bigbatch.tune.simulate.curves import CurveTable
from bigbatch.tune.simulate.readers import read_curves
from bigbatch.tune.simulate.replay import replay
from bigbatch.tune.strategies import make_strategy


def line(params: dict[str, object], values: list[float | None], **facts: object) -> str:
    return json.dumps({"params": params, "curve": [[10.0 * (i + 1), v] for i, v in enumerate(values)], **facts})


def table_of(folder: Path, *lines: str, name: str = "runs.jsonl") -> CurveTable:
    (folder / name).write_text("\n".join(lines) + "\n")
    return read_curves([folder / name])


WHOLE = (line({"lr": 0.1}, [0.2, 0.3, 0.4, 0.5]), line({"lr": 0.2}, [0.2, 0.3, 0.4, 0.6]))


@pytest.mark.parametrize(("epochs", "diverged"), [(4, True), (4.0, 1), (4.0, 1.0)])
def test_a_diverged_run_is_known_however_it_is_written(tmp_path: Path, epochs: object, diverged: object) -> None:
    table = table_of(tmp_path, *WHOLE, line({"lr": 9.0}, [0.1, None], epochs=epochs, diverged=diverged))
    assert [c.diverged for c in table.curves] == [False, False, True] and table.curves[2].epochs == 4


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"epochs": "4"}, "line 3: epochs of a run must be a whole number; got '4'"),
        ({"epochs": 4.5}, "epochs of a run must be a whole number; got 4.5"),
        ({"diverged": "no"}, "diverged of a run must be true or false; got 'no'"),
        ({"diverged": 2}, "diverged of a run must be true or false; got 2"),
        ({"warmup_epochs": "1"}, "warmup_epochs must be a number; got '1'"),
    ],
)
def test_facts_of_another_kind_are_refused(tmp_path: Path, facts: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        table_of(tmp_path, *WHOLE, line({"lr": 9.0}, [0.1, 0.2, 0.3, 0.4], **facts))
    assert words in str(refused.value)


def test_a_parameter_that_is_null_does_not_exist(tmp_path: Path) -> None:
    """pandas writes such lines."""
    sgd = [line({"opt": "sgd", "lr": 0.1 * i, "m": 0.5 + 0.04 * i}, [0.2, 0.1 * i]) for i in range(1, 10)]
    adam = [line({"opt": "adam", "lr": 0.1 * i, "m": None}, [0.2, 0.1 * i]) for i in range(1, 10)]
    found = {d.name: d for d in table_of(tmp_path, *sgd, *adam).dimensions}
    assert found["m"].active_when == {"opt": ("sgd",)}


def test_numbers_as_texts_are_refused_and_a_few_choices_are_not(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a number must not be a text; got 'lr' with '0.1'. Write it without quotes"):
        table_of(tmp_path, *(line({"lr": f"0.{i}"}, [0.2, 0.5]) for i in range(1, 20)))
    assert len(table_of(tmp_path, *(line({"size": str(i)}, [0.2, 0.5]) for i in (18, 34, 50))).dimensions) == 1


def test_a_compressed_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "runs.jsonl.gz").write_bytes(gzip.compress("\n".join(WHOLE).encode()))
    assert len(read_curves([tmp_path / "runs.jsonl.gz"]).curves) == 2


SPACE = {"dimensions": {"lr": {"low": 0.01, "high": 1.0}, "opt": {"choices": ["a", "c"]},
                        "m": {"low": 0.0, "high": 1.0, "when": {"opt": ["a"]}}}}  # fmt: skip


@pytest.mark.parametrize("params", [{"lr": 0.1, "opt": "b"}, {"lr": "0.1", "opt": "c"}, {"lr": True, "opt": "c"}])
def test_a_row_outside_a_declared_space_meets_one_line(tmp_path: Path, params: dict[str, object]) -> None:
    inside = [line({"lr": 0.1 * i, "opt": "c"}, [0.2, 0.1 * i]) for i in range(1, 9)]
    table = table_of(tmp_path, json.dumps(SPACE), *inside, line(params, [0.2, 0.3]))
    with pytest.raises(ConfigError, match="the space must hold every row"):
        replay(table, lambda facts: make_strategy("random", "none", facts), 1, 0, 1.0)


def test_without_a_choice_goes_with_what_it_decides(tmp_path: Path) -> None:
    rows = [line({"lr": 0.1, "opt": "c"}, [0.2, 0.3]), line({"lr": 0.2, "opt": "a", "m": 0.5}, [0.2, 0.4])]
    table = table_of(tmp_path, json.dumps(SPACE), *rows)
    with pytest.raises(ConfigError, match="'m' exists only for some values of 'opt'; got --without opt. Leave"):
        table.without(["opt"])
    assert [d.name for d in table.without(["opt", "m"]).dimensions] == ["lr"]


def test_studies_of_different_metrics_are_no_pool(tmp_path: Path) -> None:
    from bigbatch.tune.simulate.curves import RecordedRuns, pooled

    curves = table_of(tmp_path, *WHOLE).curves
    parts = [RecordedRuns(name, curves, None, Objective(name)) for name in ("val_top1", "val_iou")]
    with pytest.raises(ConfigError, match="must agree in metric, direction and declared dimensions"):
        pooled(parts)


def test_a_run_that_was_paused_and_goes_on_is_one_run() -> None:
    table = invented_table("wide", seed=1, rows=30)
    found = replay(table, lambda facts: make_strategy("random", "look", facts), 2, 0, 1e9)
    assert len({epoch.trial for epoch in found.epochs}) > 30, "some were continued"
    assert found.begun == 30
