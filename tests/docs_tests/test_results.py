"""The figures of the results page that are told first, and of the README, are those of the stored raw results."""

import json
import re
from typing import Any

import pytest

from helpers.paths import ROOT

PAGE = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")


def raw(name: str) -> Any:
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())


def row(start: str) -> str:
    """The row of the page's table that begins so."""
    return next(line for line in PAGE.splitlines() if line.startswith(f"| {start}"))


def says(start: str, *figures: str) -> None:
    """Each figure is in the row, as a whole number."""
    missing = [f for f in figures if not re.search(rf"(?<![\d.,]){re.escape(f)}(?![\d]|[.,]\d)", row(start))]
    assert not missing, (missing, row(start))


def test_accuracy_over_the_batch() -> None:
    table = raw("batch_scaling_digits_2cpu")["table"]
    assert table in PAGE
    assert re.sub(r" \([-+][\d.]+\)", "", table) in (ROOT / "README.md").read_text(encoding="utf-8")


def test_how_many_runs_a_search_needs() -> None:
    result = raw("search_efficiency_64_2cpu")
    hits = result["tables"]["8"].partition("\n\n")[0]
    assert hits in PAGE and result["early_table"] in PAGE
    assert {row["searches"] for row in result["rows"]} == {64}
    (mean,) = (m for m in result["overall"] if m["arm"] == "ours" and not m["aside"])
    text = " ".join(PAGE.split())
    assert f"`auto` is {mean['times_random']} times random search, and {mean['times_stock']} times Ray's" in text


def test_the_main_command() -> None:
    (run,) = raw("default_run_2cpu")["runs"]
    optimizer, batch = run["best_config"]["optimizer"]["name"], run["best_config"]["batch"]["global_size"]
    stopped, minutes = f"{run['stopped_early']} of them", f"{run['wall_s'] / 60:.1f} minutes"
    says("the main command", f"{run['best_val_top1']:.1%}".replace("%", " %"), optimizer.upper(), f"batch {batch:,}")
    says("the main command", f"{run['trials']} trials", stopped, minutes, f"{run['confirmations']} runs that confirm")
    assert min(run["trials_by_batch"].values()) >= 2 and set(run["trials_by_batch"]) == {"128", "256", "512", "1024"}
    (answer,) = [row for row in run["frontier"]["rows"] if row["value"] == run["frontier"]["answer"]["value"]]
    images = f"{run['frontier']['examples']['held_out']} validation images"
    says("the main command", f"{answer['reported']:.1%}".replace("%", " %"), images)


def test_trials_and_reports() -> None:
    result = raw("trial_overhead_2cpu")
    trial, report = result["median"]["overhead_s"], result["median"]["report_s"]
    says("a trial beyond", f"{trial['ours']:.1f} s against {trial['stock']:.1f} s")
    says("a trial beyond", *[f"{ratio:.2f}" for ratio in result["round_ratios"]])
    says("one report", f"{report['ours']:.2f} s against {report['stock']:.2f} s")


def test_the_start_of_a_cluster() -> None:
    result = raw("cluster_start_2cpu")
    for way in ("bigbatch", "sample", "symmetric"):
        says("the start of a cluster", f"{result['median'][way]['start_s']:.1f} s")
        says("the end of such a job", f"{result['median'][way]['end_s']:.1f} s")
    for ratios in result["start_ratio_by_round"].values():
        says("the start of a cluster", ", ".join(f"{ratio:.2f}" for ratio in ratios))


def test_the_soak() -> None:
    for found in raw("soak_2cpu")["raw"].values():
        assert found["in_time"] and found["complete"] == 150 and not found["wrong"]
        says("150 trials on three nodes", f"after {found['kills']} kills")


@pytest.mark.parametrize(("start", "processes"), [("packed images against", 0), ("the same with two loader", 2)])
def test_packed_images(start: str, processes: int) -> None:
    summary = raw("input_pipeline_2cpu")["summary"]
    says(start, *[f"× {summary[f'{way} {processes}']['ratio']:.1f}" for way in ("full", "fast", "dali")])


def test_optimizer_steps_and_training() -> None:
    ratios = raw("optimizer_step_1cpu")["ratios"]

    def quartiles(of: dict[str, float], word: str = "") -> str:
        return f"× {of['median']:.2f} ({word}{of['q1']:.2f} to {of['q3']:.2f})"

    says("a step of LARS", quartiles(ratios["lars / timm_lars"], "quartiles "), quartiles(ratios["lamb / timm_lamb"]))
    says("the same against torch", quartiles(ratios["lars / sgd_fused"]), quartiles(ratios["lamb / adamw_fused"]))
    says("the same against torch", f"× {ratios['lars / sgd_foreach']['median']:.2f}")
    says("the same against torch", f"× {ratios['lamb / adamw_foreach']['median']:.2f}")
    training = raw("train_throughput_2cpu")
    real, synthetic = training["real"]["ratios"], training["synthetic"]["ratios"]
    says("training ResNet-50", quartiles(real["ours / timm"], "quartiles "), quartiles(real["ours / torchvision"]))
    says(
        "training ResNet-50", *[f"× {synthetic[f'ours / {other}']['median']:.2f}" for other in ("timm", "torchvision")]
    )
