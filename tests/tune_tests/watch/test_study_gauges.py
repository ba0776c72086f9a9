"""The gauges of a search, from the events that its observers get."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bigbatch.train_loop.config import TrainConfig
from bigbatch.train_loop.launch.gauges import GaugeBoard
from bigbatch.tune.study.metrics_targets import LOOK_EVERY_S, TargetsFile, metrics_targets
from bigbatch.tune.study.objective import Objective
from bigbatch.tune.watch.observer import TrialView
from bigbatch.tune.watch.study_gauges import STATES, StudyGauges

RECORD: dict[str, object] = {
    "epoch": 2,
    "train_loss": 0.5,
    "learning_rate": 0.1,
    "images_per_s": 900.0,
    "data_s": 1.0,
    "train_s": 4.0,
    "val_top1": 0.75,
    "val_loss": 0.7,
    "noise_scale": None,
}


@pytest.fixture
def board() -> GaugeBoard:
    return GaugeBoard(sink=lambda *_: None)


def shown(board: GaugeBoard) -> dict[str, float]:
    """``gauge{tags}`` → value, as in Prometheus."""
    return {f"{kind.name}{{{','.join(values)}}}": value for (kind, values), value in board._values.items()}


def view(number: int, state: str = "RUNNING", **facts: object) -> TrialView:
    return TrialView(number, {}, TrainConfig(epochs=4), state=state, **facts)  # type: ignore[arg-type]


def counts(board: GaugeBoard) -> dict[str, float]:
    found = {key: value for key, value in shown(board).items() if key.startswith("bigbatch_trials{")}
    return {key[len("bigbatch_trials{s,") : -1]: value for key, value in found.items() if value}


def test_an_epoch_shows_its_record_and_nothing_that_it_lacks(board: GaugeBoard) -> None:
    gauges = StudyGauges(board, "s", Objective(), [])
    gauges.epoch_ended(view(3), RECORD)
    assert shown(board) == {
        "bigbatch_train_loss{s,3}": 0.5,
        "bigbatch_learning_rate{s,3}": 0.1,
        "bigbatch_images_per_second{s,3}": 900.0,
        "bigbatch_data_wait_ratio{s,3}": 0.25,
        "bigbatch_objective{s,3,val_top1}": 0.75,
    }


def test_all_states_are_shown_before_the_first_trial(board: GaugeBoard) -> None:
    StudyGauges(board, "s", Objective(), []).look()
    assert shown(board) == {f"bigbatch_trials{{s,{state}}}": 0.0 for state in STATES}


def test_trials_are_counted_by_what_becomes_of_them(board: GaugeBoard) -> None:
    gauges = StudyGauges(board, "s", Objective(), [view(0, "COMPLETE"), view(1, "FAIL", retried_by=2)])
    running, paused = view(2, phase="waiting", retries=1), view(3)
    for trial in (running, paused):
        gauges.trial_planned(trial)
    gauges.look()
    assert counts(board) == {"complete": 1, "waiting": 1, "running": 1}
    running.phase, paused.state, paused.paused = "running", "PRUNED", True
    gauges.trial_ended(paused)
    gauges.look()
    assert counts(board) == {"complete": 1, "running": 1, "paused": 1}
    gauges.trial_started(view(4, continues=3))
    running.state = "FAIL"
    gauges.trial_ended(running)
    gauges.look()
    assert counts(board) == {"complete": 1, "running": 1, "failed": 1}, "the paused trial goes on as another one"


def test_the_best_is_that_of_finished_trials_alone(board: GaugeBoard) -> None:
    best = view(0, "COMPLETE", values=(0.3,))
    gauges = StudyGauges(board, "s", Objective("val_loss", "minimize"), [best])
    assert shown(board)["bigbatch_best_objective{s,val_loss:min}"] == 0.3
    for worse in (
        view(1, "COMPLETE", values=(0.4,)),
        view(2, "PRUNED"),
        view(3, "COMPLETE", values=(0.1,), confirms=0),
    ):
        gauges.trial_ended(worse)
    assert shown(board)["bigbatch_best_objective{s,val_loss:min}"] == 0.3
    gauges.trial_ended(view(4, "COMPLETE", values=(0.2,)))
    assert shown(board)["bigbatch_best_objective{s,val_loss:min}"] == 0.2


def test_a_resumed_trial_shows_where_it_was(board: GaugeBoard) -> None:
    StudyGauges(board, "s", Objective(), []).trial_started(view(3, records=[dict(RECORD)]))
    assert shown(board)["bigbatch_objective{s,3,val_top1}"] == 0.75


def node(host: str, port: int, alive: bool = True) -> dict[str, object]:
    return {"NodeManagerAddress": host, "MetricsExportPort": port, "Alive": alive}


def test_targets_are_the_living_nodes_that_export() -> None:
    nodes = [node("n2", 9400), node("n1", 9400), node("n3", 9400, alive=False), node("n4", -1), node("fe80::1", 9400)]
    assert metrics_targets(nodes) == ("[fe80::1]:9400", "n1:9400", "n2:9400")
    assert metrics_targets([{"NodeManagerAddress": "n1", "Alive": True}]) == ()


def test_the_file_of_targets_follows_the_nodes_and_is_empty_at_the_end(tmp_path: Path) -> None:
    nodes, now = [node("n1", 9400)], [0.0]
    asked: list[float] = []
    file = TargetsFile(tmp_path, lambda: asked.append(now[0]) or nodes, lambda: now[0])
    path = tmp_path / "metrics_targets.json"
    file.look()
    assert json.loads(path.read_text()) == [{"targets": ["n1:9400"], "labels": {}}]
    nodes.append(node("n2", 9400))
    file.look()
    assert asked == [0.0], "Ray is not asked each second"
    now[0] = LOOK_EVERY_S
    file.look()
    assert json.loads(path.read_text())[0]["targets"] == ["n1:9400", "n2:9400"]
    file.close()
    assert json.loads(path.read_text()) == []
