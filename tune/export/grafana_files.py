"""What Prometheus and Grafana need to show a search.

A search that shows its metrics writes a file of targets in its study's folder: there Prometheus finds it.
``bigbatch export --grafana DIR`` writes the files of both.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bigbatch.base.atomic_files import write_text
from bigbatch.train_loop.config import ConfigError

TARGETS_FILE = "metrics_targets.json"
"""In the format of Prometheus' ``file_sd_configs``. An empty list while no search runs."""
LOOK_EVERY_S = 10.0


def metrics_targets(nodes: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    """``host:port`` of each living node that exports metrics, from the answer of ``ray.nodes()``."""
    found = [
        (node["NodeManagerAddress"], int(node.get("MetricsExportPort") or 0)) for node in nodes if node.get("Alive")
    ]
    return tuple(sorted(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in found if port > 0))


class TargetsFile:
    """Keeps the file of targets in step with the cluster's nodes. A full disk leaves it as it was.

    Args:
        folder: the study's.
        nodes: ``ray.nodes``.
        clock: seconds.
    """

    def __init__(self, folder: Path, nodes: Callable[[], Sequence[dict[str, Any]]], clock: Callable[[], float]) -> None:
        self._path, self._nodes, self._clock = folder / TARGETS_FILE, nodes, clock
        self._written: tuple[str, ...] | None = None
        self._next = 0.0

    def look(self) -> None:
        """Write the file if the nodes have changed. Asks Ray every LOOK_EVERY_S at most."""
        if self._clock() < self._next:
            return
        self._next = self._clock() + LOOK_EVERY_S
        targets = metrics_targets(self._nodes())
        if targets != self._written:
            self._write(targets)
            self._written = targets

    def close(self) -> None:
        """Nothing is to be found any more."""
        self._write(())

    def _write(self, targets: Sequence[str]) -> None:
        groups = [{"targets": list(targets), "labels": {}}] if targets else []
        with contextlib.suppress(OSError):
            write_text(self._path, json.dumps(groups) + "\n")


DASHBOARD = Path(__file__).with_name("grafana.json")
"""All gauges of ours, and Ray's of GPUs."""
PROMETHEUS_URL = "http://127.0.0.1:9090"
SCRAPE = """\
# `bigbatch export STUDY --grafana DIR` has written this file. The same command for another study adds that study.
global:
  scrape_interval: 30s
scrape_configs:
  - job_name: bigbatch
    file_sd_configs:
      # Each file is that of a study. Its search writes there which nodes it uses now.
      - files: ["targets/*.json"]
        refresh_interval: 10s
    metric_relabel_configs:
      # Of the hundreds of series of Ray's own for each node the dashboard shows these. Remove this rule to keep all.
      - {source_labels: [__name__], regex: "ray_bigbatch_.*|ray_node_(gpus|gram|gpu)_.*", action: keep}
      - {regex: "otel_scope_.*|SessionName|Version|Component", action: labeldrop}
"""


def write_grafana_files(folder: Path, target: Path) -> None:
    """Write the files of Prometheus and Grafana, and add a study to those that are watched.

    Args:
        folder: the study's.
        target: for the files; made if it is missing.

    Raises:
        ConfigError: Prometheus would read the folder's name as a pattern.
        OSError: the files cannot be written.
    """
    target = target.absolute()
    if set(str(target)) & set("*?["):
        raise ConfigError(
            f"--grafana must be a folder whose path has no *, ? or [; got {str(target)!r}. Prometheus reads a pattern "
            "there. Write another."
        )
    grafana = target / "grafana"
    for name, text in {
        target / "prometheus.yml": SCRAPE,
        grafana / "dashboards" / "bigbatch.json": DASHBOARD.read_text(),
        grafana / "provisioning" / "dashboards" / "bigbatch.yml": _provider(grafana / "dashboards"),
        grafana / "provisioning" / "datasources" / "bigbatch.yml": _source(),
    }.items():
        name.parent.mkdir(parents=True, exist_ok=True)
        write_text(name, text)
    _add_study(folder.absolute() / TARGETS_FILE, target / "targets")


def _add_study(file: Path, targets: Path) -> None:
    """Link the file into which the study's search writes its nodes. Prometheus complains of one that is not there."""
    with contextlib.suppress(OSError), file.open("x") as empty:  # it is there, or the folder is somebody else's
        empty.write("[]\n")
    targets.mkdir(exist_ok=True)
    link = targets / f"{file.parent.name}.json"
    link.unlink(missing_ok=True)
    link.symlink_to(file)


def _provider(dashboards: Path) -> str:
    return (
        "apiVersion: 1\nproviders:\n  - name: BigBatch\n    type: file\n    allowUiUpdates: true\n"
        f"    options: {{path: {json.dumps(str(dashboards))}}}\n"
    )


def _source() -> str:
    return (
        "apiVersion: 1\ndatasources:\n  - name: BigBatch\n    uid: bigbatch\n    type: prometheus\n    access: proxy\n"
        f"    url: {PROMETHEUS_URL}\n"
    )
