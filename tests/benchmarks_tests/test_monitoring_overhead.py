"""The benchmark of monitoring: what it compares, what it refuses to compare, and the commands that it would run."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import monitoring_overhead as bench
import pytest

from bigbatch.tune.plan.arguments import parse_options, tune_parser
from helpers.invented_studies import invented_study

OFF, ON = "off", "on"
DRAWN = 900


def searched(arm: str, wall_s: float, trained: tuple[str, ...] = ("a", "b")) -> Any:
    return bench.MeasuredSearch(arm, wall_s, 50.0, trained, DRAWN if arm == ON else 0)


def test_ratios_are_by_round_in_either_order() -> None:
    assert [bench.order_of(number) for number in range(3)] == [(OFF, ON), (ON, OFF), (OFF, ON)]
    seconds = {OFF: (100.0, 200.0, 110.0), ON: (101.0, 204.0, 121.0)}
    searches = [searched(arm, seconds[arm][number]) for number in range(3) for arm in bench.order_of(number)]
    found: Any = bench.compared(searches)
    assert found["wall"] == {
        "ratios": pytest.approx([1.01, 1.02, 1.1]), "median": pytest.approx(1.02),
        "range": pytest.approx([1.01, 1.1]), "off_s": 110.0, "noise": pytest.approx(100 / 110),
    }  # fmt: skip
    assert found["epochs"]["median"] == 1.0
    lines = list(bench.in_words(found))
    assert lines[0].startswith("the whole command: +2.0% with monitoring (+1.0% to +10.0% by round; 110 s without")
    assert lines[-1] == "target: the whole command below +2%, missed"
    one = list(bench.in_words(bench.compared([searched(OFF, 100.0), searched(ON, 101.0)])))
    assert one[-1] == "target: the whole command below +2%, reached; one round shows no noise"


def test_searches_that_trained_other_things_are_not_compared() -> None:
    with pytest.raises(SystemExit, match="they do not compare"):
        bench.compared([searched(OFF, 100.0), searched(ON, 101.0, trained=("a", "c"))])


def test_a_search_must_have_been_monitored_as_its_arm_says(tmp_path: Path) -> None:
    study = invented_study(tmp_path / "s", 3)
    off, on = bench.read_search(OFF, study, 9.0, 0), bench.read_search(ON, study, 9.0, DRAWN)
    assert len(off.trained) == 3 and off.trained == on.trained and off.epochs_s > 3 * 1.0
    assert bench.wrongly_monitored(off, study) == "" and "0 W&B runs for 3 trials" in bench.wrongly_monitored(on, study)
    for number in range(3):
        run = study / "wandb" / f"offline-run-{number}"
        run.mkdir(parents=True)
        (run / f"run-s-000{number}.wandb").touch()
    (study / "report.html").touch()
    assert bench.wrongly_monitored(on, study) == "" and "wandb and report.html" in bench.wrongly_monitored(off, study)
    blind = bench.MeasuredSearch(ON, 9.0, 9.0, on.trained, 0)
    assert bench.wrongly_monitored(blind, study) == "it drew nothing on its terminal"


@pytest.mark.parametrize("arm", [OFF, ON])
def test_the_commands_are_searches_that_differ_in_monitoring_alone(arm: str) -> None:
    words = bench.search_command(arm, Path("runs"), ["--trials", "2"])
    read = parse_options(tune_parser("t"), words[words.index("--") + 1 :])
    monitoring = {name: read.pop(name) for name in ("wandb",)}
    assert monitoring == ({"wandb": "offline"} if arm == ON else dict.fromkeys(monitoring))
    given = {name: value for name, value in read.items() if value is not None and value is not False and value != ()}
    assert given == {
        "space": "large_batch", "strategy": "random", "stopping": "none", "confirm": "none", "seed": 0, "trials": 2,
        "study": bench.STUDY, "output": "runs",
    }  # fmt: skip


def test_a_dry_run_prints_them() -> None:
    line = [sys.executable, bench.__file__, "--dry-run", "--trials", "2"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stderr == ""
    first, second = done.stdout.splitlines()
    assert "--search off -- --space large_batch" in first and second.endswith("--wandb offline")


def test_what_other_processes_take_more_is_a_share_of_the_search_without_monitoring() -> None:
    off = replace(searched(OFF, 100.0), processor_s=200.0, parts_s={"workers": 180.0, "driver": 15.0})
    more = {"workers": 168.0, "driver": 15.8, "W&B": 1.6}  # workers vary from run to run
    on = replace(searched(ON, 100.0), processor_s=190.0, parts_s=more)
    found: Any = bench.compared([off, on])
    assert found["beside"]["shares"] == [pytest.approx(0.01)] and found["beside"]["off_s"] == pytest.approx(20.0)
    assert {name: one["median"] for name, one in found["parts"].items()} == {
        "workers": pytest.approx(-0.06), "driver": pytest.approx(0.004), "W&B": pytest.approx(0.008),
    }  # fmt: skip
    lines = list(bench.in_words(found))
    assert any("beside the workers: +1.0% of all" in line for line in lines)
    assert any(line.endswith("W&B +0.8%, driver +0.4%, workers -6.0%") for line in lines)
    dear = bench.compared([off, replace(on, processor_s=210.0)])
    assert list(bench.in_words(dear))[-1].startswith("target: processor seconds below +2%, missed")
    assert "beside" not in bench.compared([searched(OFF, 100.0), searched(ON, 101.0)])
