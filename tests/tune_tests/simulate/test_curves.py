"""Tables of curves: what a row may be, the inferred space, the readers, and their refusals."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState

from bigbatch.train_loop.config import ConfigError, TrainConfig
from bigbatch.tune.runs.objective import Objective
from bigbatch.tune.runs.objectives import Objectives
from bigbatch.tune.runs.tables import EPOCH_PARTS, write_epochs, write_trials
from bigbatch.tune.simulate.curves import CurveTable, RecordedCurve, infer_dimensions
from bigbatch.tune.simulate.readers import read_curves
from helpers.lone_studies import begin, new_study


def line(params: dict[str, object], values: list[float | None], **facts: object) -> str:
    return json.dumps({"params": params, "curve": [[10.0 * (i + 1), v] for i, v in enumerate(values)], **facts})


def json_lines(folder: Path, *lines: str, name: str = "runs.jsonl") -> Path:
    path = folder / name
    path.write_text("\n".join(lines) + "\n")
    return path


def test_json_lines_become_a_table_with_a_diverged_run(tmp_path: Path) -> None:
    path = json_lines(
        tmp_path,
        line({"lr": 0.1, "wd": 1e-4}, [0.2, 0.4]),
        line({"lr": 0.2, "wd": 2e-4}, [0.3, 0.5], warmup_epochs=1),
        line({"lr": 9.0, "wd": 1e-4}, [0.1, None], epochs=2, diverged=True),
    )
    table = read_curves([path])
    assert [c.final for c in table.curves] == [0.4, 0.5, None]
    assert (table.order, table.best, table.worst) == ([1, 0], 0.5, 0.1)
    assert table.curves[2].seconds == (10.0, 20.0) and table.curves[1].warmup_epochs == 1
    assert (table.run_s, table.epoch_s, table.max_epochs) == (20.0, 10.0, 2)
    assert table.regret(0.4) == pytest.approx(0.1) and table.regret(None) == pytest.approx(0.4)
    less = read_curves([path], "minimize")
    assert (less.best, less.worst, less.regret(0.5)) == (0.4, 0.3, pytest.approx(0.1))
    slower = table.at_epoch_s(300)
    assert slower.epoch_s == pytest.approx(300) and slower.curves[0].seconds == pytest.approx((300, 600))
    assert [d.name for d in table.without(["wd"]).dimensions] == ["lr"]


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["{"], "line 1"),
        ([json.dumps({"params": {"lr": 1}})], "curve"),
        ([json.dumps({"params": {"lr": 1}, "curve": [[5, 0.1], [4, 0.2]]})], "must grow"),
        ([line({"lr": 1}, [0.1, 0.2], epochs=5)], "each of its 5 epochs"),
        ([line({"lr": 1}, [0.1, None])], "Mark a diverged run"),
        ([line({"lr": 1}, [0.1, 0.2], epochs=2, diverged=True)], "Cut it"),
        ([line({"lr": 1}, [0.1]), line({"lr": 1}, [0.2])], "parameters that differ"),
        ([line({"lr": 1}, [None], diverged=True)], "reached their end"),
        ([line({"lr": [1]}, [0.1]), line({"lr": 2}, [0.2])], "with a list"),
        ([line({"lr": 1}, []), line({"lr": 2}, [0.2])], "line 1: a curve must have at least one epoch"),
        ([line({"lr": 1.0}, [0.1]), line({"lr": float("nan")}, [0.2])], "must be finite; got 'lr' with nan"),
        ([json.dumps({"dimensions": {"lr": {"low": 1}}})], "dimensions must look like"),
    ],
)
def test_a_bad_line_meets_one_clear_line(tmp_path: Path, lines: list[str], words: str) -> None:
    path = json_lines(tmp_path, *lines)
    with pytest.raises(ConfigError) as met:
        _ = read_curves([path]).dimensions
    assert words in str(met.value) and "\n" not in str(met.value)


def test_files_that_are_no_curves_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_text("no")
    for path in (tmp_path / "x.parquet", tmp_path / "x.csv", tmp_path / "absent.jsonl", tmp_path):
        with pytest.raises(ConfigError) as met:
            read_curves([path])
        assert "\n" not in str(met.value)


def test_scales_and_kinds_are_inferred_from_the_values() -> None:
    rng = np.random.default_rng(3)
    rows = [
        {
            "lr": float(10 ** rng.uniform(-3, 1)),
            "smoothing": float(rng.uniform(0.0001, 0.2)),
            "width": int(rng.integers(10, 200)),
            "batch": int(2 ** rng.integers(5, 9)),
            "nesterov": bool(rng.integers(2)),
            "same": 1.0,
        }
        for _ in range(200)
    ]
    found = {d.name: d.distribution for d in infer_dimensions(rows)}
    assert list(found) == ["lr", "smoothing", "width", "batch", "nesterov"]
    lr, smoothing = found["lr"], found["smoothing"]
    assert isinstance(lr, FloatDistribution) and isinstance(smoothing, FloatDistribution)
    assert lr.log and not smoothing.log and isinstance(found["width"], IntDistribution)
    assert found["batch"] == CategoricalDistribution([32, 64, 128, 256])
    assert found["nesterov"] == CategoricalDistribution([False, True])
    with pytest.raises(ConfigError, match="'lr', which no choice decides"):
        infer_dimensions([{"a": 0.1 * i, **({"lr": i} if i % 2 else {})} for i in range(20)])


def test_a_parameter_may_stand_before_the_choice_that_decides_it(tmp_path: Path) -> None:
    lines = [line({"momentum": 0.1 * i, "kind": "sgd"}, [0.1 * i]) for i in range(1, 5)]
    table = read_curves([json_lines(tmp_path, *lines, *(line({"kind": "lamb"}, [0.1]) for _ in range(3)))])
    assert [d.name for d in table.dimensions] == ["kind", "momentum"]


def test_several_files_are_one_pool_unless_they_declare_other_spaces(tmp_path: Path) -> None:
    one = json_lines(tmp_path, line({"lr": 0.1}, [0.2]), name="a.jsonl")
    two = json_lines(tmp_path, line({"lr": 0.2}, [0.4]), name="b.jsonl")
    table = read_curves([one, two])
    assert (table.name, len(table.curves), table.best) == ("a+b", 2, 0.4)
    space = json.dumps({"dimensions": {"lr": {"low": 0.1, "high": 1}}})
    three = json_lines(tmp_path, space, line({"lr": 0.2}, [0.4]), name="c.jsonl")
    with pytest.raises(ConfigError, match="must agree"):
        read_curves([one, three])


def test_a_table_without_whole_runs_is_refused() -> None:
    with pytest.raises(ConfigError, match="reached their end"):
        CurveTable("t", (RecordedCurve({"lr": 1.0}, (), (), 2, diverged=True),))


def test_a_study_of_ours_gives_its_whole_and_its_diverged_runs(tmp_path: Path) -> None:
    """Written as a search writes it; of the paused trial only its continuation is a run."""
    study = new_study()
    config = TrainConfig().replace_keys({"epochs": 3, "schedule.warmup_epochs": 1.0}).to_dict()
    because = "validation was not finite in epoch 3"
    told: list[tuple[int, TrialState, dict[str, object]]] = [
        (3, TrialState.COMPLETE, {}),
        (1, TrialState.PRUNED, {"paused_in_epoch": 1}),
        (3, TrialState.COMPLETE, {"continues": 1}),
        (2, TrialState.PRUNED, {"ended_because": "stopped by the scheduler after epoch 2"}),
        (2, TrialState.FAIL, {"ended_because": because, "diverged": True}),
        (2, TrialState.FAIL, {"ended_because": "a process of the trial died"}),
    ]
    for number, (epochs, state, attrs) in enumerate(told):
        trial = begin(study, {"width": 10 + number}, epochs=3)
        for name, value in {**attrs, "config": config}.items():
            trial.set_user_attr(name, value)
        for epoch in range(1, epochs + 1):
            times = dict.fromkeys(EPOCH_PARTS, 2.0)
            trial.set_user_attr(
                f"epoch/{epoch:05d}", {"epoch": epoch, "val_top1": 0.1 * epoch, "val_loss": 1 - 0.1 * epoch, **times}
            )
        study.tell(trial, 0.3 if state == TrialState.COMPLETE else None, state=state)
    folder = tmp_path / "my study"
    folder.mkdir()
    write_trials(study.trials, folder / "trials.parquet", Objectives())
    write_epochs(study.trials, folder / "epochs.parquet")
    table = read_curves([folder])
    assert [(c.params["width"], c.final) for c in table.curves] == [
        (10, pytest.approx(0.3)),
        (12, pytest.approx(0.3)),
        (14, None),
    ]
    assert table.curves[2].values == pytest.approx((0.1, 0.2)) and table.curves[2].epochs == 3
    assert table.curves[0].seconds == pytest.approx([2.0 * len(EPOCH_PARTS) * e for e in (1, 2, 3)])
    assert (table.name, table.curves[0].warmup_epochs) == ("my study", 1.0)
    loss = Objectives((Objective("val_loss", "minimize"),))
    write_trials(study.trials, folder / "trials.parquet", loss)
    by_loss = read_curves([folder])
    assert by_loss.objective.direction == "minimize" and by_loss.best == pytest.approx(0.7)
    write_trials(study.trials, folder / "trials.parquet", Objectives((Objective("epoch_s", "minimize"),)))
    with pytest.raises(ConfigError, match="got a study of epoch_s"):
        read_curves([folder])


def test_what_a_study_notes_says_which_runs_diverged(tmp_path: Path) -> None:
    study = new_study()
    config = TrainConfig().replace_keys({"epochs": 3}).to_dict()
    said = "validation was not finite in epoch 3"
    told: list[dict[str, object]] = [
        {},
        {"diverged": True, "failure_kind": "diverged", "ended_because": "in other words"},
        {"failure_kind": "process", "ended_because": f"{said}, said its log, but a process had died"},
        {"ended_because": "a process of the trial died"},
    ]
    for number, attrs in enumerate(told):
        trial = begin(study, {"width": 10 + number}, epochs=3)
        for name, value in {**attrs, "config": config}.items():
            trial.set_user_attr(name, value)
        for epoch in range(1, 3 + (number == 0)):
            record = {"epoch": epoch, "val_top1": 0.1 * epoch, **dict.fromkeys(EPOCH_PARTS, 2.0)}
            trial.set_user_attr(f"epoch/{epoch:05d}", record)
        study.tell(trial, 0.3 if number == 0 else None, state=TrialState.FAIL if number else TrialState.COMPLETE)
    folder = tmp_path / "noted"
    folder.mkdir()
    write_trials(study.trials, folder / "trials.parquet", Objectives())
    write_epochs(study.trials, folder / "epochs.parquet")
    rows = pq.read_table(folder / "trials.parquet")
    assert rows["failure_kind"].to_pylist() == [None, "diverged", "process", None]
    assert [c.params["width"] for c in read_curves([folder]).curves if c.diverged] == [11]
