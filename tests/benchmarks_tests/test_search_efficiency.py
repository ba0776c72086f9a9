"""benchmarks/search_efficiency.py: a tiny run, its continuation, its figures, and Ray's rungs against Ray's own."""

import json
from pathlib import Path
from typing import Any

import pytest
import search_efficiency as bench


def run(folder: Path, *options: str) -> dict[str, Any]:
    small = ["--raw", str(folder / "raw.jsonl"), "--families", "projected", "--rows", "40", "--budget", "12"]
    assert bench.main([*small, "--slots", "4", "--output", str(folder / "out.json"), *options]) == 0
    found: dict[str, Any] = json.loads((folder / "out.json").read_text())
    return found


def test_every_arm_runs_and_what_is_done_is_not_run_again(tmp_path: Path) -> None:
    first = run(tmp_path, "--seeds", "1")
    raw = (tmp_path / "raw.jsonl").read_text()
    assert {row["arm"] for row in first["rows"]} == set(bench.FIXED) and len(raw.splitlines()) == len(bench.FIXED)
    with (tmp_path / "raw.jsonl").open("a") as file:
        file.write('{"group": "proj')  # a kill in the middle of a line
        file.write("\n")
    second = run(tmp_path, "--seeds", "2", "--arms", "random", "bound_best_first", "qmc+none")
    assert (tmp_path / "raw.jsonl").read_text().startswith(raw), "appended"
    assert run(tmp_path, "--seeds", "9", "--arms", "random", "--no-run")["rows"][0]["searches"] == 2
    rows = {row["arm"]: row for row in second["rows"]}
    assert {arm: row["searches"] for arm, row in rows.items()} == {"random": 2, "bound_best_first": 2, "qmc+none": 2}
    assert rows["bound_best_first"]["regret_16"][0] == 0.0 and second["provenance"]["packages"]["optuna"]


def test_figures_of_a_group_by_hand() -> None:
    def line(arm: str, seed: int, hit: float | None, regret: float) -> dict[str, Any]:
        figures = {"hit": hit, "regret": dict.fromkeys(("16", "24", "40"), regret), "decision_ms": 1.0}
        return {"group": "g", "arm": arm, "slots": 8, "seed": seed, "budget": 60.0, **figures}

    lines = [line("random", s, hit, 2.0) for s, hit in enumerate((40.0, None, 50.0))]
    lines += [line("ours", s, hit, 1.0) for s, hit in enumerate((20.0, 25.0, 30.0))]
    rows = {row["arm"]: row for row in bench.summary(lines)}
    assert rows["random"]["hit"][0] == 50.0 and rows["random"]["missed"] == 1
    value, low, high = rows["ours"]["times_random"]
    assert (value, low, high) == (2.0, pytest.approx(5 / 3, abs=0.01), pytest.approx(90 / 25, abs=0.5))
    assert "times_random" not in rows["random"] and "times_stock" not in rows["ours"]
    text = bench.markdown(list(rows.values()), 8, ["other", "g"]).splitlines()
    assert text[2:4] == ["| random | 50 (40–90); 1 of 3 missed |", "| `--strategy auto` | 25 (20–30), × 2.0 |"]
    assert text[-1] == "| `--strategy auto` | 1.00 / 1.00 / 1.00 |"
    before = [line("previous", s, None, regret) for s, regret in enumerate((3.0, 0.5, 80.0))]
    (row,) = [row for row in bench.summary([*lines, *before]) if row["arm"] == "ours"]
    less = row["less_previous_24"]
    assert (less["better"], less["worse"]) == (2, 1) and less["mean"][0] == pytest.approx((-2 + 0.5 - 4) / 3, abs=1e-3)
    assert bench.against_table([row], 8, "ours", ["g"]).endswith(", 2 : 1 |")
    assert not bench.against_table([row], 4, "ours", ["g"])
    (mean,) = [row for row in bench.overall(list(rows.values())) if row["arm"] == "ours"]
    assert mean["times_random"] == 2.0
    ends = ((40.0, 1.5), (25.0, 1.0), (None, 9.0))
    earlier = [line("ours", s, hit, regret) for s, (hit, regret) in enumerate(ends, 1)]
    (change,) = bench.against_earlier(earlier, lines, ["other", "g"])
    assert (change["searches"], change["alike"], change["missed"]) == (2, 0, [0, 0]), "the seeds 1 and 2"
    assert change["hits"][0] == pytest.approx((25 / 40 * 30 / 25) ** 0.5, abs=0.01)
    assert change["less_previous_40"]["mean"][0] == -0.25
    said = "| g | 2, 0 alike | × 0.87 (0.62 … 1.20) | 0 → 0 | −0.25 (−0.50 … +0.00), 1 : 0 |"
    assert said in bench.earlier_table([change])
