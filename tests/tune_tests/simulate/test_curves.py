"""Tables of curves: what a row may be, the inferred space, the readers, and their refusals."""

import gzip
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import optuna
import pyarrow.parquet as pq
import pytest
from invented_curves import invented_table
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState

from bigbatch.command import main
from bigbatch.train_loop.config import ConfigError, TrainConfig
from bigbatch.tune.commands.simulate import Search, _lines
from bigbatch.tune.runs.objective import Objective
from bigbatch.tune.runs.objectives import Objectives
from bigbatch.tune.runs.tables import EPOCH_PARTS, write_epochs, write_trials
from bigbatch.tune.simulate import ReplayedEpoch
from bigbatch.tune.simulate.curves import CurveTable, RecordedCurve, infer_dimensions
from bigbatch.tune.simulate.readers import read_curves
from bigbatch.tune.simulate.replay import Replay, replay
from bigbatch.tune.strategies import make_strategy
from helpers.lone_studies import begin, new_study
from helpers.refusals import refusal, refused_command


def line(params: dict[str, object], values: list[float | None], **facts: object) -> str:
    return json.dumps({"params": params, "curve": [[10.0 * (i + 1), v] for i, v in enumerate(values)], **facts})


def json_lines(folder: Path, *lines: str, name: str = "runs.jsonl") -> Path:
    path = folder / name
    path.write_text("\n".join(lines) + "\n")
    return path


FOUR: list[float | None] = [0.1, 0.2, 0.3, 0.4]
WHOLE = (line({"lr": 0.1}, [0.2, 0.3, 0.4, 0.5]), line({"lr": 0.2}, [0.2, 0.3, 0.4, 0.6]))


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
        ([*WHOLE, line({"lr": 9.0}, FOUR, epochs="4")], "line 3: epochs of a run must be a whole number; got '4'"),
        ([*WHOLE, line({"lr": 9.0}, FOUR, diverged="no")], "diverged of a run must be true or false; got 'no'"),
        ([*WHOLE, line({"lr": 9.0}, FOUR, warmup_epochs="1")], "warmup_epochs must be a number; got '1'"),
    ],
)
def test_a_bad_line_meets_one_clear_line(tmp_path: Path, lines: list[str], words: str) -> None:
    path = json_lines(tmp_path, *lines)
    assert words in refusal(lambda: read_curves([path]).dimensions)


def test_files_that_are_no_curves_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_text("no")
    for path in (tmp_path / "x.parquet", tmp_path / "x.csv", tmp_path / "absent.jsonl", tmp_path):
        refusal(partial(read_curves, [path]))


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
    table = read_curves([folder])
    assert [c.params["width"] for c in table.curves] == [10, 12, 14]
    assert [c.final for c in table.curves] == [pytest.approx(0.3), pytest.approx(0.3), None]
    assert table.curves[2].values == pytest.approx((0.1, 0.2)) and table.curves[2].epochs == 3
    assert table.curves[0].seconds == pytest.approx([2.0 * len(EPOCH_PARTS) * e for e in (1, 2, 3)])
    assert (table.name, table.curves[0].warmup_epochs) == ("my study", 1.0)
    kinds = pq.read_table(folder / "trials.parquet")["failure_kind"].to_pylist()
    assert kinds == [None, None, None, None, "diverged", None, "process"]
    loss = Objectives((Objective("val_loss", "minimize"),))
    write_trials(study.trials, folder / "trials.parquet", loss)
    by_loss = read_curves([folder])
    assert by_loss.objective.direction == "minimize" and by_loss.best == pytest.approx(0.7)
    write_trials(study.trials, folder / "trials.parquet", Objectives((Objective("epoch_s", "minimize"),)))
    with pytest.raises(ConfigError, match="got a study of epoch_s"):
        read_curves([folder])


def table_of(folder: Path, *lines: str, name: str = "runs.jsonl") -> CurveTable:
    return read_curves([json_lines(folder, *lines, name=name)])


@pytest.mark.parametrize(("epochs", "diverged"), [(4, True), (4.0, 1), (4.0, 1.0)])
def test_a_diverged_run_is_known_however_it_is_written(tmp_path: Path, epochs: object, diverged: object) -> None:
    table = table_of(tmp_path, *WHOLE, line({"lr": 9.0}, [0.1, None], epochs=epochs, diverged=diverged))
    assert [c.diverged for c in table.curves] == [False, False, True] and table.curves[2].epochs == 4


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


def test_the_table_says_what_each_search_has_found_by_parts_of_the_budget() -> None:
    """Against medians and quantiles by hand. What has not finished, or finished too late, does not count."""
    table = CurveTable("t", tuple(RecordedCurve({"lr": 0.1 * i}, (0.1 * i,), (36.0,), 1) for i in range(1, 6)))

    def replayed(*found: tuple[float, float | None, bool]) -> Replay:
        return Replay([ReplayedEpoch(hours, 0, {}, value, whole) for hours, value, whole in found], [], len(found))

    replays = [
        replayed((0.1, 0.3, True), (0.2, 0.5, False), (0.3, 0.1, True), (0.5, None, False)),
        replayed((0.3, 0.4, True), (0.8, 0.5, True)),
    ]
    head, row = _lines(table, {Search("tpe", "asha", 4, 0.8, None): replays}, 0.8)
    assert head.split("  ")[0] == "search" and "regret at 0.2 h" in head and "regret at 0.8 h" in head
    assert row.startswith("tpe + asha, 4 slots") and row.endswith("2 of 3")
    assert "30.00 (22.00 … 38.00)" in row, "0.2 and, where nothing has finished yet, that of the worst value: 0.4"
    assert "15.00 (11.00 … 19.00)" in row and "10.00 (2.00 … 18.00)" in row, "in points: the values are shares"


def written(folder: Path) -> Path:
    lines = []
    for c in invented_table("projected", 0, rows=30).curves:
        curve = [[s, v] for s, v in zip(c.seconds, [*c.values, None], strict=False)]
        facts = {"epochs": c.epochs, "diverged": c.diverged}
        lines.append(json.dumps({"params": dict(c.params), "curve": curve, **facts}))
    return json_lines(folder, *lines)


def test_the_command_compares_with_random_search(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--strategy", "tpe", "random", "--stopping", "asha", "none", "--slots", "2", "--seeds", "2"]
    assert main(["simulate", "--curves", str(written(tmp_path)), *options, "--processes", "2"]) == 0
    first, note, head, *rows = capsys.readouterr().out.splitlines()
    assert "30 runs" in first and "few" in note and head.startswith("search")
    assert [row.split("  ")[0] for row in rows] == ["random, 2 slots", "tpe + asha, 2 slots"], "each search once"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--strategy", "best"], "--strategy must be one of auto, "),
        (["--strategy", "tpe", "random", "qmc", "--stopping", "asha", "none"], "one for each of the 3"),
        (["--seeds", "0"], "--seeds must be more than 0"),
        (["--slots", "0"], "--slots must be at least 1"),
        (["--budget-hours", "0"], "--budget-hours must be more than 0"),
        (["--epoch-seconds", "inf"], "--epoch-seconds must be more than 0 and finite; got inf"),
        (["--budget-hours", "nan"], "--budget-hours must be more than 0 and finite; got nan"),
        (["--without", "xx"], "no run has a parameter 'xx'; got optimizer"),
        (["--curves", "absent.parquet"], "absent.parquet"),
    ],
)
def test_wrong_options_meet_one_line(tmp_path: Path, capsys, options: list[str], words: str) -> None:
    given = options if "--curves" in options else ["--curves", str(written(tmp_path)), *options]
    assert words in refused_command(capsys, main, ["simulate", *given])


def test_the_same_file_twice_is_refused_and_a_budget_that_ends_no_run_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(written(tmp_path))
    error = refused_command(capsys, main, ["simulate", "--curves", path, path])
    assert "--curves takes each file once" in error
    options = ["--strategy", "random", "--stopping", "none", "--seeds", "1"]
    assert main(["simulate", "--curves", path, *options, "--slots", "1000"]) == 0
    assert "over 1000 slots end before a mean run does" in capsys.readouterr().out
