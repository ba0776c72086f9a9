"""The gauges of a search, from events to Ray's; ``test_prometheus.py`` has the real ones."""

import io
import json
import math
import re
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
import ray.util.metrics
from rich.console import Console

from bigbatch.train_loop.config import TrainConfig
from bigbatch.train_loop.progress import StepProgress
from bigbatch.tune.export.grafana_files import LOOK_EVERY_S, TargetsFile, metrics_targets
from bigbatch.tune.runs.objective import Objective
from bigbatch.tune.runs.observer import TrialView, tell
from bigbatch.tune.search import show_gauges
from bigbatch.tune.search.show_gauges import GAUGES, KEEP_ENDED_S, STATES, StudyGauges, _keep_looking, gauge_observers
from helpers.recorded_studies import epoch_record, recorded_study
from helpers.waiting import SetClock, wait_until

UNITS = ("seconds", "bytes", "ratio", "watts", "images", "hours", "per_second", "epochs", "trials")
WITHOUT_UNIT = {"bigbatch_objective", "bigbatch_best_objective", "bigbatch_train_loss", "bigbatch_learning_rate"}

RECORD: dict[str, object] = {
    "epoch": 2, "train_loss": 0.5, "learning_rate": 0.1, "images_per_s": 900.0, "data_s": 1.0, "train_s": 4.0,
    "val_top1": 0.75, "val_loss": 0.7, "noise_scale": None,
}  # fmt: skip


def gauges_of(
    trials: list[TrialView], objective: Objective | None = None, clock: SetClock | None = None
) -> StudyGauges:
    return StudyGauges("s", objective or Objective(), trials, clock or SetClock())


def shown(gauges: StudyGauges) -> dict[str, float]:
    """``gauge{tags}`` → value, as in Prometheus, of what is a number; without the states of trials."""
    found = {(kind, tags): value for kind, value, tags in gauges.values() if kind.name != "bigbatch_trials"}
    return {
        f"{kind.name}{{{','.join(tags)}}}": value
        for (kind, tags), value in found.items()
        if value is not None and not math.isnan(value)
    }


def counts(gauges: StudyGauges) -> dict[str, float | None]:
    return {tags[1]: value for kind, value, tags in gauges.values() if kind.name == "bigbatch_trials" and value}


def view(number: int, state: str = "RUNNING", **facts: object) -> TrialView:
    return TrialView(number, {}, TrainConfig(epochs=4), state=state, **facts)  # type: ignore[arg-type]


def test_names_follow_prometheus_conventions() -> None:
    """https://prometheus.io/docs/practices/naming: one prefix, snake case, base units as the last words."""
    assert len({kind.name for kind in GAUGES}) == len(GAUGES)
    for kind in GAUGES:
        assert re.fullmatch(r"bigbatch_[a-z0-9]+(_[a-z0-9]+)*", kind.name)
        assert kind.name.endswith(UNITS) or kind.name in WITHOUT_UNIT, f"{kind.name} needs its unit"
        assert not kind.name.endswith("_total"), "that is a counter's"
        assert kind.tags[0] == "study" and all(re.fullmatch("[a-z]+", tag) for tag in kind.tags)
    defined = {value for value in vars(show_gauges).values() if isinstance(value, show_gauges.GaugeKind)}
    assert defined <= set(GAUGES)


def test_a_trial_shows_its_last_record_and_nothing_that_it_lacks() -> None:
    gauges = gauges_of([])
    gauges.trial_started(view(3, records=[dict(RECORD)]))
    expected = {
        "bigbatch_epochs{s,3}": 2,
        "bigbatch_train_loss{s,3}": 0.5,
        "bigbatch_learning_rate{s,3}": 0.1,
        "bigbatch_images_per_second{s,3}": 900.0,
        "bigbatch_data_wait_ratio{s,3}": 0.25,
        "bigbatch_objective{s,3,val_top1}": 0.75,
    }
    assert shown(gauges) == expected
    ratios = {"trust_ratios": {"0": 0.5, "1": 2.0}}
    gauges.trial_started(view(3, records=[RECORD | ratios]))
    expected |= {"bigbatch_trust_ratio{s,3,0}": 0.5, "bigbatch_trust_ratio{s,3,1}": 2.0}
    assert shown(gauges) == expected
    gauges.trial_started(view(3, steps=StepProgress(3, 1, 4), records=[dict(RECORD)]))
    assert shown(gauges)["bigbatch_epochs{s,3}"] == 2.25


def test_an_ended_trial_is_let_go_after_a_while_and_one_that_goes_on_is_kept() -> None:
    clock = SetClock()
    gauges = gauges_of([], clock=clock)
    trials = [view(number, records=[dict(RECORD)]) for number in (3, 4)]
    for trial in trials:
        gauges.trial_started(trial)
        gauges.trial_ended(trial)
    gauges.trial_started(trials[1])
    clock.now = KEEP_ENDED_S / 2
    assert {"bigbatch_train_loss{s,3}", "bigbatch_train_loss{s,4}"} <= shown(gauges).keys()
    clock.now = KEEP_ENDED_S
    assert "bigbatch_train_loss{s,3}" not in shown(gauges) and "bigbatch_train_loss{s,4}" in shown(gauges)


def test_all_states_are_shown_before_the_first_trial() -> None:
    assert [(value, *tags) for _, value, tags in gauges_of([]).values() if len(tags) == 2 and tags[1] in STATES] == [
        (0, "s", state) for state in STATES
    ]


def test_trials_are_counted_by_what_becomes_of_them() -> None:
    gauges = gauges_of([view(0, "COMPLETE"), view(1, "FAIL", retried_by=2)])
    running, paused = view(2, phase="waiting", retries=1), view(3)
    for trial in (running, paused):
        gauges.trial_planned(trial)
    assert counts(gauges) == {"complete": 1, "waiting": 1, "running": 1}
    running.phase, paused.state, paused.paused = "running", "PRUNED", True
    gauges.trial_ended(paused)
    assert counts(gauges) == {"complete": 1, "running": 1, "paused": 1}
    gauges.trial_started(view(4, continues=3))
    running.state = "FAIL"
    gauges.trial_ended(running)
    assert counts(gauges) == {"complete": 1, "running": 1, "failed": 1}, "the paused trial goes on as another one"


def test_the_best_is_that_of_finished_trials_alone() -> None:
    gauges = gauges_of([view(0, "COMPLETE", values=(0.3,))], Objective("val_loss", "minimize"))
    assert shown(gauges)["bigbatch_best_objective{s,val_loss:min}"] == 0.3
    for worse in (
        view(1, "COMPLETE", values=(0.4,)),
        view(2, "PRUNED"),
        view(3, "COMPLETE", values=(0.1,), confirms=0),
    ):
        gauges.trial_ended(worse)
    assert shown(gauges)["bigbatch_best_objective{s,val_loss:min}"] == 0.3
    gauges.trial_ended(view(4, "COMPLETE", values=(0.2,)))
    assert shown(gauges)["bigbatch_best_objective{s,val_loss:min}"] == 0.2


def test_a_look_that_fails_is_said_once_and_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class NeverWaits(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            return self.is_set()

    over = NeverWaits()
    looks: list[None] = []

    def look() -> None:
        looks.append(None)
        if len(looks) == 3:
            over.set()
        raise RuntimeError("Ray does not answer")

    _keep_looking(look, over)
    assert len(looks) == 3 and [record.getMessage() for record in caplog.records] == [
        "the gauges for Prometheus are not set: RuntimeError: Ray does not answer"
    ]


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


NODE = {"NodeManagerAddress": "127.0.0.1", "MetricsExportPort": 9400, "Alive": True}


def search(folder: Path, port: int | None) -> Any:
    plan = SimpleNamespace(
        options=SimpleNamespace(metrics_port=port), address="local", folder=folder, study="s",
        objectives=SimpleNamespace(first=Objective()), budget_gpu_hours=2.0, time_budget_s=3600.0,
    )  # fmt: skip
    return SimpleNamespace(plan=plan, started=time.monotonic())


def test_ray_gets_what_the_observer_knows_until_the_search_ends(tmp_path: Path, monkeypatch) -> None:
    told: dict[tuple[str, ...], float] = {}

    class Gauge:
        def __init__(self, name: str, description: str, tag_keys: tuple[str, ...]) -> None:
            self._name, self._keys = name, tag_keys

        def set(self, value: float, tags: dict[str, str]) -> None:
            assert tuple(tags) == self._keys
            told[self._name, *tags.values()] = value

    monkeypatch.setattr(ray, "nodes", lambda: [NODE])
    monkeypatch.setattr(ray.util.metrics, "Gauge", Gauge)
    store, out = recorded_study(tmp_path / "s", 2), Console(file=io.StringIO(), width=200)
    assert gauge_observers(search(tmp_path / "s", None), store, ExitStack(), out) == []
    with ExitStack() as stack:
        (observer,) = gauge_observers(search(tmp_path / "s", 9400), store, stack, out)
        tell([observer], "trial_started", TrialView(7, {}, None, records=[epoch_record(2, 0.75)]))
        wait_until(lambda: ("bigbatch_objective", "s", "7", "val_top1") in told, "Ray was told nothing")
        assert json.loads((tmp_path / "s" / "metrics_targets.json").read_text())[0]["targets"] == ["127.0.0.1:9400"]
    assert told["bigbatch_objective", "s", "7", "val_top1"] == 0.75 and told["bigbatch_epochs", "s", "7"] == 2
    assert told["bigbatch_budget_left_device_hours", "s"] + told["bigbatch_used_device_hours", "s"] == 2.0
    assert 0 < told["bigbatch_budget_left_seconds", "s"] <= 3600
    assert not any(name == "bigbatch_noise_scale_images" for name, *_ in told), "not measured is no series"
    assert json.loads((tmp_path / "s" / "metrics_targets.json").read_text()) == []
    store.close()
