"""Tables of curves: what a row may be, the inferred space, the readers, and their refusals."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import optuna
import pyarrow.parquet as pq
import pytest
from optuna.trial import TrialState
from replay.curves import RecordedCurve
from replay.readers import read_curves

from bigbatch.train_loop.config import TrainConfig
from bigbatch.tune.runs.objective import Objective
from bigbatch.tune.runs.objectives import Objectives
from bigbatch.tune.runs.tables import EPOCH_PARTS, write_epochs, write_trials
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
    table = read_curves(path)
    assert [c.final for c in table.curves] == [0.4, 0.5, None]
    assert (table.order, table.best, table.worst) == ([1, 0], 0.5, 0.1)
    assert table.curves[2].seconds == (10.0, 20.0) and table.curves[1].warmup_epochs == 1
    assert (table.run_s, table.epoch_s, table.max_epochs) == (20.0, 10.0, 2)
    assert table.regret(0.4) == pytest.approx(0.1) and table.regret(None) == pytest.approx(0.4)
    less = replace(table, objective=Objective("own", "minimize"))
    assert (less.best, less.worst, less.regret(0.5)) == (0.4, 0.3, pytest.approx(0.1))
    slower = table.at_epoch_s(300)
    assert slower.epoch_s == pytest.approx(300) and slower.curves[0].seconds == pytest.approx((300, 600))
    assert [d.name for d in table.without(["wd"]).dimensions] == ["lr"]


def left_by_search(folder: Path, told: Sequence[tuple[int, TrialState, dict[str, object]]]) -> optuna.Study:
    """A study as a search writes it: of each trial its epochs, its state and what is noted about it."""
    study = new_study()
    config = TrainConfig().replace_keys({"epochs": 3, "schedule.warmup_epochs": 1.0}).to_dict()
    for number, (epochs, state, attrs) in enumerate(told):
        trial = begin(study, {"width": 10 + number}, epochs=3)
        for name, value in {**attrs, "config": config}.items():
            trial.set_user_attr(name, value)
        for epoch in range(1, epochs + 1):
            record = {"epoch": epoch, "val_top1": 0.1 * epoch, "val_loss": 1 - 0.1 * epoch}
            trial.set_user_attr(f"epoch/{epoch:05d}", record | dict.fromkeys(EPOCH_PARTS, 2.0))
        study.tell(trial, 0.3 if state == TrialState.COMPLETE else None, state=state)
    folder.mkdir()
    write_trials(study.trials, folder / "trials.parquet", Objectives())
    write_epochs(study.trials, folder / "epochs.parquet")
    return study


def test_a_study_of_ours_gives_its_whole_and_its_diverged_runs(tmp_path: Path) -> None:
    """Of the paused trial only its continuation is a run. Which runs diverged is noted; words do not count."""
    because = "validation was not finite in epoch 3"
    told: list[tuple[int, TrialState, dict[str, object]]] = [
        (3, TrialState.COMPLETE, {}),
        (1, TrialState.PRUNED, {"paused_in_epoch": 1}),
        (3, TrialState.COMPLETE, {"continues": 1}),
        (2, TrialState.PRUNED, {"ended_because": "stopped by the scheduler after epoch 2"}),
        (2, TrialState.FAIL, {"diverged": True, "failure_kind": "diverged", "ended_because": "in other words"}),
        (2, TrialState.FAIL, {"ended_because": "a process of the trial died"}),
        (2, TrialState.FAIL, {"failure_kind": "process", "ended_because": f"{because}, but a process had died"}),
    ]
    folder = tmp_path / "my study"
    study = left_by_search(folder, told)
    table = read_curves(folder)
    assert [c.params["width"] for c in table.curves] == [10, 12, 14]
    assert [c.final for c in table.curves] == [pytest.approx(0.3), pytest.approx(0.3), None]
    assert table.curves[2].values == pytest.approx((0.1, 0.2)) and table.curves[2].epochs == 3
    assert table.curves[0].seconds == pytest.approx([2.0 * len(EPOCH_PARTS) * e for e in (1, 2, 3)])
    assert (table.name, table.curves[0].warmup_epochs) == ("my study", 1.0)
    kinds = pq.read_table(folder / "trials.parquet")["failure_kind"].to_pylist()
    assert kinds == [None, None, None, None, "diverged", None, "process"]
    loss = Objectives((Objective("val_loss", "minimize"),))
    write_trials(study.trials, folder / "trials.parquet", loss)
    by_loss = read_curves(folder)
    assert by_loss.objective.direction == "minimize" and by_loss.best == pytest.approx(0.7)


@pytest.mark.parametrize(
    ("values", "seconds", "words"),
    [
        ((0.1, 0.2), (10.0, 20.0), "no curve of 3 epochs: 2 values"),
        ((0.1, 0.2, math.nan), (10.0, 20.0, 30.0), "no curve"),
        ((0.1, 0.2, 0.3), (10.0, 20.0), "2 seconds"),
        ((0.1, 0.2, 0.3), (10.0, 20.0, 20.0), "must grow"),
    ],
)
def test_no_curve_that_was_cut_off_is_replayed(
    values: tuple[float, ...], seconds: tuple[float, ...], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        RecordedCurve({}, values, seconds, 3)
