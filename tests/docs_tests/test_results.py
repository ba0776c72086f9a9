"""The figures on the results page and in the README are those of the stored raw results."""

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


def less_regret(result: dict[str, Any]) -> dict[tuple[str, int], list[float]]:
    """By table and cut: the mean difference to the strategy before, and its interval."""
    rows = [row for row in result["rows"] if row["arm"] == "ours"]
    return {(row["group"], cut): row[f"less_previous_{cut}"]["mean"] for row in rows for cut in (16, 24, 40)}


def test_searches_have_less_regret_than_before_with_other_seeds_too() -> None:
    first, others = raw("search_efficiency_64_2cpu"), raw("search_efficiency_other_seeds_2cpu")
    assert {line["seed"] for line in others["raw"]} == set(range(352, 480))
    for found in (less_regret(first), less_regret(others)):
        assert len(found) == 18 and all(mean <= 0 for mean, _, _ in found.values())
    noise = {place for place, (_, _, high) in less_regret(first).items() if high > 0}
    assert noise == {("steps", 16), ("algoperf_resnet", 40)}


def test_searches_with_measured_errors_are_not_worse_than_the_commit_before() -> None:
    rows = {row["group"]: row for row in raw("search_efficiency_measured_errors_2cpu")["against_earlier"]}
    assert len(rows) == 6 and all(row["searches"] == 64 for row in rows.values())
    for row in rows.values():
        intervals = [row["hits"][1] - 1, *(row[f"less_previous_{cut}"]["mean"][1] for cut in (16, 24, 40))]
        assert max(intervals) <= 0, (row["group"], "the whole interval is above")


def test_other_numbers_of_slots_and_small_budgets() -> None:
    slots, small = raw("search_efficiency_slots_2cpu"), raw("search_efficiency_small_budget_2cpu")
    for mean in (mean for mean in slots["overall"] if mean["arm"] == "ours" and not mean["aside"]):
        assert row(f"{mean['slots']} slot{'s' * (mean['slots'] > 1)}: `--strategy auto`").endswith(
            f"| × {mean['times_random']:.1f} |"
        )
    for one in small["rows"]:
        arm = {"ours": "`--strategy auto`", "random": "random"}[one["arm"]]
        text = PAGE.partition("budget of 17 equivalents |")[2]
        (line,) = re.findall(rf"^\| {one['slots']} slots: {re.escape(arm)} .*$", text, flags=re.MULTILINE)
        assert f"{one['regret_24'][0]:.2f}" in line, (one["group"], line)


def test_what_the_curve_model_predicts() -> None:
    rows = {(row["group"], row["a_run_has_ended"]): row for row in raw("prediction_errors_2cpu")["rows"]}
    text = PAGE[PAGE.index("### What the curve model predicts") :]
    for group in {group for group, _ in rows}:
        found = [rows[group, ended] for ended in (False, True)]
        cells = [f"{100 * (one['above'] + one['below']):.0f} % of {one['looks']}" for one in found]
        assert f"| {group} | {' | '.join(cells)} |" in text


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


def test_the_memory_of_kept_workers() -> None:
    result = raw("kept_workers_2cpu")
    assert result["trials"] == {"COMPLETE": 200} and len(result["workers"]) == 2
    for when in ("loaded_mib", "last_mib"):
        says("the memory of two workers", " and ".join(f"{worker[when]:,.0f}" for worker in result["workers"]))


def test_the_soak() -> None:
    for found in (raw("soak_ours_2cpu")["raw"]["ours"], raw("soak_2cpu")["raw"]["trainable"]):
        assert found["in_time"] and found["complete"] == 60 and not found["wrong"]
        says("60 trials on three nodes", f"after {found['kills']} kills")


@pytest.mark.parametrize(("start", "processes"), [("packed images against", 0), ("the same with two loader", 2)])
def test_packed_images(start: str, processes: int) -> None:
    summary = raw("input_pipeline_2cpu")["summary"]
    says(start, *[f"× {summary[f'{way} {processes}']['ratio']:.1f}" for way in ("full", "fast", "dali")])


def test_images_that_are_decoded_once() -> None:
    summary = raw("whole_images_2cpu")["summary"]
    for place in ("folder", "packed"):
        found = summary[f"{place} device"]
        ratios = f"× {found['ratio']:.1f} ({found['least_ratio']:.1f} to {found['largest_ratio']:.1f}"
        says("small images decoded once", f"{found['median']:,.0f}", ratios)


def test_slow_storage_and_accuracy_of_packing() -> None:
    late = raw("read_ahead_2cpu")["summary"]
    says("packed images from a file system", *[f"{late[f'{w} 20']['median']:,.0f}" for w in ("auto", "task", "whole")])
    says("packed images from a file system", f"{late['warm 20']['median']:,.0f}")
    accuracy = raw("packing_accuracy_2cpu")["summary"]
    full, fast = accuracy["full - folder"], accuracy["fast - folder"]
    says("training on packed images", f"{accuracy['folder']['mean']:.1f} % top-1")
    says("training on packed images", f"`full` {full['mean']:+.1f} ± {full['half_95']:.1f}")
    says("training on packed images", f"`fast` −{-fast['mean']:.1f} ± {fast['half_95']:.1f}")


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
