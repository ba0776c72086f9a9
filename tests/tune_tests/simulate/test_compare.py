"""Comparisons of strategies: outcomes by hand, bands, the table, the picture, and the command line."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from bigbatch.command import main
from bigbatch.tune.simulate import CurveTable, RecordedCurve, ReplayedEpoch, synthetic_table
from bigbatch.tune.simulate.compare import Arm, Outcome, Setting, median_hit_h, outcome_of, regret_bands, table_lines
from bigbatch.tune.simulate.plot import hours_axis, regret_svg
from bigbatch.tune.simulate.replay import Replay

TABLE = CurveTable("t", tuple(RecordedCurve({"lr": 0.1 * i}, (0.1 * i,), (36.0,), 1) for i in range(1, 6)))


def epoch(hours: float, value: float | None, finished: bool = True) -> ReplayedEpoch:
    return ReplayedEpoch(hours, round(10 * hours), {}, value, finished)


def test_an_outcome_is_the_regret_of_finished_runs() -> None:
    found = [
        epoch(0.1, 0.2),
        epoch(0.2, 0.5, finished=False),
        epoch(0.3, 0.1),
        epoch(0.4, 0.4),
        epoch(0.5, None, False),
    ]
    outcome = outcome_of(TABLE, Replay(found, [0.001, 0.003]))
    assert outcome.hit_h is None, "the best row was seen, but has not finished"
    assert outcome.improved == ((0.1, pytest.approx(0.3)), (0.4, pytest.approx(0.1)))
    assert (outcome.trials, outcome.finished, outcome.decision_ms) == (5, 3, pytest.approx(2))
    hit = outcome_of(TABLE, Replay([*found, epoch(0.7, 0.5)], []))
    assert hit.hit_h == 0.7 and hit.improved[-1] == (0.7, 0.0)
    assert median_hit_h([outcome, hit, hit], 2.0) == 0.7 and median_hit_h([outcome], 2.0) == 3.0
    bands = regret_bands(TABLE, [outcome, hit], [0.05, 0.2, 0.4, 1.0])
    assert bands[1] == pytest.approx([0.4, 0.3, 0.1, 0.05]), "before the first finished run: of the worst value"


def test_the_table_says_what_was_missed() -> None:
    outcomes = [Outcome(None, ((0.1, 0.3),), 5, 3, 2.0), Outcome(0.4, ((0.1, 0.3), (0.4, 0.0)), 5, 4, 2.0)]
    head, row = table_lines(Setting(TABLE, 0.8, None, 0.0), {Arm("tpe", "asha", 4): outcomes})
    assert "regret at 0.8 h" in head and "tpe + asha, 4 slots" in row and "1 of 2" in row
    assert "15.00 (3.00 … 27.00)" in row, "in points: the values are shares"


def test_the_picture_shows_falling_lines_within_its_frame() -> None:
    hours = hours_axis(8.0)
    falling = np.array([[q * max(0.0, 1 - hour / 9) for hour in hours] for q in (0.5, 1.0, 2.0)])
    root = ET.fromstring(regret_svg("a < b", "points", hours, {"one": falling, "two & three": falling * 3}))
    lines = [e.get("points", "") for e in root.iter() if e.tag.endswith("polyline")]
    assert len(lines) == 2
    for line in lines:
        points = [tuple(map(float, pair.split(","))) for pair in line.split()]
        assert all(b[0] >= a[0] and b[1] >= a[1] for a, b in zip(points, points[1:], strict=False))
        assert all(0 <= x <= 820 and 0 <= y <= 440 for x, y in points)
    assert {"one", "two & three"} <= {e.text for e in root.iter() if e.text}


def written(folder: Path) -> Path:
    table = synthetic_table("projected", 0, rows=30)
    lines = [
        json.dumps(
            {
                "params": dict(c.params),
                "curve": [[s, v] for s, v in zip(c.seconds, [*c.values, None], strict=False)],
                "epochs": c.epochs,
                "diverged": c.diverged,
            }
        )
        for c in table.curves
    ]
    path = folder / "runs.jsonl"
    path.write_text("\n".join(lines))
    return path


def test_the_command_compares_with_random_search(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--strategy", "tpe", "--stopping", "asha", "--slots", "2", "--seeds", "2", "--output"]
    assert main(["simulate", "--curves", str(written(tmp_path)), *options, str(tmp_path / "out")]) == 0
    out = capsys.readouterr().out
    assert "30 runs" in out and "random, 2 slots" in out and "tpe + asha, 2 slots" in out
    rows = pq.read_table(tmp_path / "out" / "epochs.parquet").to_pylist()
    assert {(r["strategy"], r["seed"]) for r in rows} == {("random", 0), ("random", 1), ("tpe", 0), ("tpe", 1)}
    assert all(json.loads(r["parameters"]) for r in rows)
    ET.parse(tmp_path / "out" / "regret.svg")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--strategy", "best"], "--strategy must be one of auto, "),
        (["--strategy", "tpe", "random", "qmc", "--stopping", "asha", "none"], "one for each of the 3"),
        (["--seeds", "0"], "--seeds must be more than 0"),
        (["--slots", "0"], "--slots must be at least 1"),
        (["--budget-hours", "0"], "--budget-hours must be more than 0"),
        (["--budget-hours", "nan"], "--budget-hours must be more than 0 and finite; got nan"),
        (["--resume-seconds", "inf"], "or infinite; got inf"),
        (["--task", "x"], "it holds one task; got --task x"),
        (["--without", "xx"], "no run has a parameter 'xx'; got optimizer"),
        (["--curves", "absent.parquet"], "absent.parquet"),
    ],
)
def test_wrong_options_meet_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], words: str
) -> None:
    given = options if "--curves" in options else ["--curves", str(written(tmp_path)), *options]
    assert main(["simulate", *given]) == 2
    err = capsys.readouterr().err
    assert words in err and err.count("\n") == 1


def test_the_same_file_twice_is_refused_and_a_budget_that_ends_no_run_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(written(tmp_path))
    assert main(["simulate", "--curves", path, path]) == 2
    assert "--curves takes each file once" in capsys.readouterr().err
    options = ["--strategy", "random", "--stopping", "none", "--seeds", "1"]
    assert main(["simulate", "--curves", path, *options, "--slots", "1000"]) == 0
    assert "over 1000 slots end before a mean run does" in capsys.readouterr().out
