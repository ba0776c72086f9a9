"""``--metrics-port``: what Ray is told, with a stand-in of Ray's gauges; ``test_prometheus.py`` has the real ones."""

from __future__ import annotations

import io
import json
import time
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ray
import ray.util.metrics
from rich.console import Console

from bigbatch.tune.runs.objective import Objective
from bigbatch.tune.runs.observer import TrialView
from bigbatch.tune.search.show_gauges import gauge_observers
from helpers.recorded_studies import epoch_record, recorded_study
from helpers.waiting import wait_until

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
        observer.trial_started(TrialView(7, {}, None, records=[epoch_record(2, 0.75)]))
        wait_until(lambda: ("bigbatch_objective", "s", "7", "val_top1") in told, "Ray was told nothing")
        assert json.loads((tmp_path / "s" / "metrics_targets.json").read_text())[0]["targets"] == ["127.0.0.1:9400"]
    assert told["bigbatch_objective", "s", "7", "val_top1"] == 0.75 and told["bigbatch_epochs", "s", "7"] == 2
    assert told["bigbatch_budget_left_device_hours", "s"] + told["bigbatch_used_device_hours", "s"] == 2.0
    assert 0 < told["bigbatch_budget_left_seconds", "s"] <= 3600
    assert not any(name == "bigbatch_noise_scale_images" for name, *_ in told), "not measured is no series"
    assert json.loads((tmp_path / "s" / "metrics_targets.json").read_text()) == []
    store.close()
