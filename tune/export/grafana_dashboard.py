"""The dashboard of a search for Grafana, made from our gauges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bigbatch.train_loop.launch import gauges
from bigbatch.train_loop.launch.gauges import GaugeKind

WIDTH = 24
"""Columns of Grafana's grid."""
HEIGHT = 8
SOURCE = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True)
class GaugePanel:
    """A panel that shows one gauge."""

    title: str
    kind: GaugeKind
    unit: str = "short"
    """One of Grafana's units."""
    width: int = 8
    style: str = "timeseries"


ROWS: tuple[tuple[str, tuple[GaugePanel, ...]], ...] = (
    (
        "The study",
        (
            GaugePanel("Best objective", gauges.BEST, "none", 6, "stat"),
            GaugePanel("Device hours used", gauges.USED_HOURS, "h", 6, "stat"),
            GaugePanel("Device hours left", gauges.HOURS_LEFT, "h", 6, "stat"),
            GaugePanel("Time left", gauges.TIME_LEFT, "s", 6, "stat"),
            GaugePanel("Trials by state", gauges.TRIALS, width=12),
            GaugePanel("Objective", gauges.OBJECTIVE, "none", 12),
        ),
    ),
    (
        "Trials",
        (
            GaugePanel("Training loss", gauges.TRAIN_LOSS, "none"),
            GaugePanel("Learning rate", gauges.LEARNING_RATE, "none"),
            GaugePanel("Epochs", gauges.EPOCHS, "none"),
            GaugePanel("Images per second", gauges.IMAGES),
            GaugePanel("Waiting for images", gauges.DATA_WAIT, "percentunit"),
            GaugePanel("Gradient noise scale", gauges.NOISE_SCALE),
            GaugePanel("Trust ratios of the layers", gauges.TRUST_RATIO, "none", WIDTH),
        ),
    ),
    (
        "GPUs",
        (
            GaugePanel("Utilization", gauges.GPU_USE, "percentunit"),
            GaugePanel("Memory in use", gauges.GPU_MEMORY, "bytes"),
            GaugePanel("Power", gauges.GPU_POWER, "watt"),
        ),
    ),
)


def expression(kind: GaugeKind) -> str:
    """The gauge in Prometheus' language, one series for each set of its own tags.

    A series has labels of the process that set it, which changes with each attempt of a trial.
    """
    wanted = [f'{tag}=~"${tag}"' for tag in kind.tags if tag in ("study", "trial")]
    return f"max by ({', '.join(kind.tags)}) ({kind.exported}{{{', '.join(wanted)}}})"


def dashboard() -> dict[str, object]:
    """The dashboard in Grafana's JSON model."""
    return {
        "uid": "bigbatch",
        "title": "BigBatch",
        "description": "Searches of BigBatch: studies, their trials, the GPUs of their workers.",
        "tags": ["bigbatch"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": _variables()},
        "panels": _panels(),
    }


def _variables() -> list[dict[str, object]]:
    """The choices at the top: the data source, and which studies and trials are shown."""
    trials = f'label_values({gauges.OBJECTIVE.exported}{{study=~"$study"}}, trial)'
    return [
        {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"},
        _choice("study", f"label_values({gauges.TRIALS.exported}, study)"),
        _choice("trial", trials),
    ]


def _choice(name: str, query: str) -> dict[str, object]:
    return {
        "name": name,
        "label": name.capitalize(),
        "type": "query",
        "datasource": SOURCE,
        "definition": query,
        "query": {"query": query, "refId": name},
        "refresh": 2,  # when the time range changes: there are new trials
        "sort": 3,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def _panels() -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    y = 0
    for title, panels in ROWS:
        found.append({"type": "row", "title": title, "collapsed": False, "gridPos": _place(0, y, WIDTH, 1)})
        y = _add_panels(found, panels, y + 1)
    return [{"id": number, **panel} for number, panel in enumerate(found, 1)]


def _add_panels(found: list[dict[str, object]], panels: Sequence[GaugePanel], y: int) -> int:
    """Place the panels of a row from the left to the right. Returns where the next row begins."""
    x = 0
    for panel in panels:
        if x + panel.width > WIDTH:
            x, y = 0, y + HEIGHT
        found.append({**_panel(panel), "gridPos": _place(x, y, panel.width, HEIGHT)})
        x += panel.width
    return y + HEIGHT


def _panel(panel: GaugePanel) -> dict[str, object]:
    return {
        "type": panel.style,
        "title": panel.title,
        "description": panel.kind.meaning,
        "datasource": SOURCE,
        "targets": [
            {
                "refId": "A",
                "datasource": SOURCE,
                "expr": expression(panel.kind),
                "legendFormat": " ".join(f"{{{{{tag}}}}}" for tag in panel.kind.tags),
            }
        ],
        "fieldConfig": {"defaults": {"unit": panel.unit, "noValue": "not measured"}, "overrides": []},
    }


def _place(x: int, y: int, width: int, height: int) -> dict[str, int]:
    return {"x": x, "y": y, "w": width, "h": height}
