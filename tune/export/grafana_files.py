"""``bigbatch export --grafana DIR``: what Prometheus and Grafana need to show a search."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from bigbatch.base.atomic_files import write_text
from bigbatch.train_loop.config import ConfigError
from bigbatch.tune.storage.metrics_targets import TARGETS_FILE

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
