"""Where Prometheus finds the metrics of a search: a file of targets in the study's folder."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bigbatch.base.atomic_files import write_text

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
