"""A real Prometheus scrapes a real search: what it stores is what the study has."""

import json
import re
import shutil
import signal
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest

from bigbatch.train_loop.launch.ray_session import free_port
from bigbatch.tune.commands.export import main as export
from helpers.searches import TINY, Search
from helpers.waiting import wait_until

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="Debian's package prometheus is not installed"),
]

OF_RECORD = {
    "ray_bigbatch_train_loss": "train_loss",
    "ray_bigbatch_learning_rate": "learning_rate",
    "ray_bigbatch_images_per_second": "images_per_s",
    "ray_bigbatch_objective": "val_top1",
}
Series = dict[str, Any]


class Prometheus:
    """A Prometheus with the exported configuration, but one that scrapes each second."""

    def __init__(self, files: Path) -> None:
        config = files / "prometheus.yml"
        config.write_text(re.sub(r"_interval: \d+s", "_interval: 1s", config.read_text()))
        self.port = free_port()
        options = [f"--config.file={config}", f"--web.listen-address=127.0.0.1:{self.port}"]
        options += [f"--storage.tsdb.path={files / 'data'}", "--log.level=warn"]
        self.log = (files / "prometheus.log").open("w")
        self.process = subprocess.Popen(["prometheus", *options], stdout=self.log, stderr=self.log)

    def get(self, path: str, **query: str) -> Any:
        address = f"http://127.0.0.1:{self.port}{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(address, timeout=60) as answer:
            return json.load(answer)["data"]

    def ready(self) -> bool:
        try:
            self.get("/api/v1/targets")
        except OSError:
            return False
        return True

    def history(self, text: str) -> list[Series]:
        """All samples of the last ten minutes: a range vector."""
        found: list[Series] = self.get("/api/v1/query", query=f"{text}[10m]")["result"]
        return found


@contextmanager
def prometheus_of(tmp_path: Path) -> Iterator[Prometheus]:
    assert export([str(tmp_path / "runs" / "s"), "--grafana", str(tmp_path / "g")]) == 0
    server = Prometheus(tmp_path / "g")
    try:
        wait_until(server.ready, "Prometheus does not answer")
        yield server
    finally:
        server.process.terminate()
        server.process.wait(60)


def search(tmp_path: Path, port: int, *more: str) -> Search:
    """A search of trials that take seconds, whose Ray exports each second."""
    options = ["--space", "lr_warmup", "--study", "s", "--output", tmp_path / "runs", "--metrics-port", port]
    return Search(*options, *more, cwd=tmp_path, RAY_metrics_report_interval_ms="1000")


def values_of(series: list[Series], trial: str) -> set[float]:
    return {float(value) for one in series if one["metric"]["trial"] == trial for _, value in one["values"]}


def listening_beyond_loopback(process: psutil.Process) -> set[tuple[str, int]]:
    """Sockets of a search's Ray on which another machine could knock. Those of torch, in the workers, are not Ray's."""
    found = set()
    for one in [process, *process.children(recursive=True)]:
        try:
            sockets = [] if "RayTrainWorker" in " ".join(one.cmdline()) else one.net_connections(kind="tcp")
        except psutil.Error:
            continue
        found |= {(s.laddr.ip, s.laddr.port) for s in sockets if s.status == psutil.CONN_LISTEN}
    return {(ip, port) for ip, port in found if ip not in ("127.0.0.1", "::1", "::ffff:127.0.0.1")}


def test_prometheus_has_what_the_study_has_over_a_stop_and_a_resume(tmp_path: Path) -> None:
    port, arguments = free_port(), [*TINY, "--trials", "3", "--max-epochs", "24", "--set", "optimizer=lars"]
    arguments += ["--strategy", "random", "--stopping", "none", "--confirm", "none", "--budget-gpu-hours", "1"]
    first = search(tmp_path, port, *arguments)
    first.wait_for("Metrics for Prometheus: http://127.0.0.1")
    with prometheus_of(tmp_path) as prometheus:
        look_on(tmp_path, prometheus, first, port)


def look_on(tmp_path: Path, prometheus: Prometheus, first: Search, port: int) -> None:
    first.wait_for(r"epoch 2/24")
    opened = listening_beyond_loopback(psutil.Process(first.process.pid))
    wait_until(lambda: prometheus.history("ray_bigbatch_train_loss"), "Prometheus has seen no epoch")
    first.process.send_signal(signal.SIGINT)
    assert first.end() == 130
    assert f"--metrics-port {port}" in "".join(first.lines), "the command that resumes opens the port again"
    targets = tmp_path / "runs" / "s" / "metrics_targets.json"
    assert json.loads(targets.read_text()) == [], "nothing is to be found while no search runs"

    second = search(tmp_path, port, "--resume")
    second.wait_for("Metrics for Prometheus")
    assert json.loads(targets.read_text()) == [{"targets": [f"127.0.0.1:{port}"], "labels": {}}]
    assert second.end() == 0, second.stderr()
    assert opened == set(), "everything of a private Ray with metrics listens on loopback alone"

    epochs = pq.read_table(tmp_path / "runs" / "s" / "epochs.parquet").to_pylist()
    for gauge, column in OF_RECORD.items():
        stored = prometheus.history(gauge)
        for trial in ("0", "1"):
            ours = {row[column] for row in epochs if row["trial"] == int(trial)}
            assert values_of(stored, trial), f"{gauge} of trial {trial}"
            assert values_of(stored, trial) <= ours, f"{gauge} of trial {trial}"
    ended = [row for row in epochs if (row["trial"], row["epoch"]) == (0, 24)]
    waits = values_of(prometheus.history("ray_bigbatch_data_wait_ratio"), "0")
    assert [row["data_s"] / row["train_s"] for row in ended if row["data_s"] / row["train_s"] in waits], (
        "the last epoch of a trial that has ended is seen while others train"
    )
    check_the_study_level(prometheus, epochs)
    check_every_panel(tmp_path, prometheus)


def check_the_study_level(prometheus: Prometheus, epochs: list[dict[str, Any]]) -> None:
    states: dict[str, list[float]] = {}
    for series in prometheus.history("ray_bigbatch_trials"):
        assert series["metric"]["study"] == "s"
        states.setdefault(series["metric"]["state"], []).extend(float(value) for _, value in series["values"])
    assert max(states["running"]) >= 1 and set(states["failed"]) == {0.0}
    left = [float(v) for one in prometheus.history("ray_bigbatch_budget_left_device_hours") for _, v in one["values"]]
    used = [float(v) for one in prometheus.history("ray_bigbatch_used_device_hours") for _, v in one["values"]]
    assert left == sorted(left, reverse=True) and used == sorted(used)
    assert min(left) + max(used) == pytest.approx(1.0, abs=1e-3)
    ratios = prometheus.history("ray_bigbatch_trust_ratio")
    assert {one["metric"]["quantile"] for one in ratios} == {"0", "0.25", "0.5", "0.75", "1"}
    progress = values_of(prometheus.history("ray_bigbatch_epochs"), "0")
    assert progress and max(progress) <= max(row["epoch"] for row in epochs)


def check_every_panel(tmp_path: Path, prometheus: Prometheus) -> None:
    """Grafana's expressions find series, but for what was not measured here."""
    dashboard = json.loads((tmp_path / "g" / "grafana" / "dashboards" / "bigbatch.json").read_text())
    empty = set()
    for text in (target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())):
        query = text.replace("$study", "s").replace("$trial", ".*")
        if not prometheus.get("/api/v1/query", query=f"last_over_time(({query})[10m:1s])")["result"]:
            empty.update(re.findall(r"ray_\w+", text))
    assert empty <= {
        *("ray_node_gpus_utilization", "ray_node_gram_used", "ray_node_gpu_power_milliwatts"),
        *("ray_bigbatch_budget_left_seconds", "ray_bigbatch_noise_scale_images", "ray_bigbatch_best_objective"),
    }
