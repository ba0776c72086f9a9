"""``bigbatch simulate``: its table against figures by hand, and its command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from invented_curves import invented_table

from bigbatch.command import main
from bigbatch.tune.commands.simulate import Search, _lines
from bigbatch.tune.simulate import CurveTable, RecordedCurve, ReplayedEpoch
from bigbatch.tune.simulate.replay import Replay


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
    table = invented_table("projected", 0, rows=30)
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
