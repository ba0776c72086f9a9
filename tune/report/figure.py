"""A figure of a report: plotly's JSON without plotly, which only the page and notebooks need.

Its look comes first: colours that people with colour blindness tell apart, on a light and on a dark page.
"""

from __future__ import annotations

import html
import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bigbatch.tune.report.recorded_study import (
    BROKEN,
    CONTINUED,
    DIVERGENT,
    FINISHED,
    INFEASIBLE,
    PAUSED,
    STOPPED,
    UNDER_WAY,
    WAITING,
    RecordedStudy,
)
from bigbatch.tune.runs.objective import Objective
from bigbatch.tune.runs.run import Run, planned_epochs

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

Values = dict[str, object]
"""Part of a figure, as plotly's JSON has it."""
BLUE, ORANGE, TEAL, RED, PURPLE, GREY = "#2f7fc1", "#d9822b", "#17957a", "#d1495b", "#9467bd", "#858d96"
"""Each has a contrast of at least 2.9 against the light and the dark page."""
OUTCOMES = {
    FINISHED: (BLUE, "circle"), STOPPED: (GREY, "x-thin-open"), PAUSED: (ORANGE, "square-open"),
    CONTINUED: (ORANGE, "triangle-right-open"), DIVERGENT: (RED, "x"), BROKEN: (PURPLE, "cross"),
    INFEASIBLE: (TEAL, "diamond-open"), UNDER_WAY: (TEAL, "circle-open"), WAITING: (GREY, "circle-open"),
}  # fmt: skip
"""Colour and symbol of each way to end."""
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', 'DejaVu Sans', sans-serif"
LEGEND_BELOW: Values = {"orientation": "h", "x": 0, "y": 0, "yref": "container", "yanchor": "bottom"}
"""It takes as many lines as it needs, and the plot gets the rest."""
HEIGHT = 400
"""Pixels of a figure."""
_WORSE_TO_BETTER = {
    False: ("#e9dc9a", "#c6b96f", "#8f8d76", "#5c6777", "#2f4a79", "#0b2d66"),
    True: ("#33456f", "#575d6d", "#7d7c78", "#a59c74", "#d2c060", "#ffea46"),
}
"""Cividis (Nuñez et al. 2018, arXiv 1712.01662) without its faintest end: the better, the farther from the page."""


def template(dark: bool) -> Values:
    """Plotly's template for a dark or a light page."""
    ink, line, ground = ("#e6e8eb", "#3a4149", "#1b1f24") if dark else ("#1c2126", "#dde1e6", "#ffffff")
    colours = _WORSE_TO_BETTER[dark]
    scale = [[i / (len(colours) - 1), colour] for i, colour in enumerate(colours)]
    axis: Values = {
        "gridcolor": line, "linecolor": line, "zerolinecolor": line, "tickcolor": line, "ticks": "outside",
        "ticklen": 4, "automargin": True, "title": {"standoff": 10}, "zeroline": False,
        "minexponent": 5, "separatethousands": True,  # not 350µ hours
    }  # fmt: skip
    bar: Values = {"outlinewidth": 0, "thickness": 12, "title": {"side": "right"}, "len": 0.9}
    return {
        "layout": {
            "font": {"family": FONT, "size": 13, "color": ink},
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "coloraxis": {"colorscale": scale, "colorbar": bar},
            "hoverlabel": {
                "bgcolor": ground, "bordercolor": line, "font": {"color": ink, "family": FONT}, "align": "left",
            },
            "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": GREY, "activecolor": BLUE},
            "xaxis": axis,
            "yaxis": axis,
        }
    }  # fmt: skip


def layout(**changes: object) -> Values:
    """A figure's layout: the legend below the plot, where it has room on a phone too."""
    return {
        "height": HEIGHT,
        "margin": {"l": 60, "r": 16, "t": 12, "b": 56},
        "legend": {**LEGEND_BELOW, "font": {"size": 12}},
        "hovermode": "closest",
        "dragmode": "zoom",
        **changes,
    }


def plotly_text(value: object) -> str:
    """A text of the study for a figure: shown as it is. Plotly would read tags in it."""
    return html.escape(str(value), quote=False)


MOST_POINTS = 1000
"""A figure shows at most this many trials: the best ones, then the first ones."""


@dataclass(frozen=True)
class ReportFigure:
    """One figure, or the reason why there is none."""

    name: str
    """Lower case, with hyphens."""
    title: str
    caption: str = ""
    """How to read it."""
    data: Sequence[Values] = ()
    """Plotly's traces; empty where the figure has nothing to show."""
    layout: Values = field(default_factory=dict)
    missing: str = ""
    """Why there is no figure."""


def fewer_trials(study: RecordedStudy, runs: Sequence[Run], most: int = MOST_POINTS) -> list[Run]:
    """At most ``most`` of the trials: the best ones, then the first ones."""
    place = {run.number: place for place, run in enumerate(study.best_first)}
    return sorted(runs, key=lambda run: place.get(run.number, len(place)))[:most]


def hover(study: RecordedStudy, run: Run) -> str:
    """What a figure says of a trial under the pointer."""
    final, outcome = study.final(run), study.outcome(run)
    value = outcome if final is None else study.objectives.first.worth(final)
    lines = [f"<b>trial {run.number}</b>: {plotly_text(value)}"]
    facts = [f"batch {run.batch:,}" if run.batch else "", plotly_text(run.optimizer)]
    facts += [f"lr {run.peak_lr:.3g}" if run.peak_lr else "", f"{run.epochs} of {planned_epochs(run) or '?'} epochs"]
    lines.append(", ".join(fact for fact in facts if fact))
    if outcome != FINISHED and run.because:
        lines += map(plotly_text, textwrap.wrap(run.because[:240], 60))
    return "<br>".join(lines)


def marks(
    study: RecordedStudy, runs: Sequence[Run], x: Sequence[object], y: Sequence[object], **more: object
) -> Values:
    """A mark for each trial, which says under the pointer what it is."""
    texts = [hover(study, run) for run in runs]
    return {"type": "scatter", "mode": "markers", "x": x, "y": y, "text": texts,
            "hovertemplate": "%{text}<extra></extra>", **more}  # fmt: skip


def value_axis(objective: Objective, values: Sequence[float | None]) -> Values:
    """An axis of a metric that leaves out values far worse than most: by more than three interquartile ranges."""
    title, unit = plotly_text(objective.metric.title), {"tickformat": ".1%"} if objective.metric.is_proportion else {}
    known = sorted(value for value in values if value is not None and math.isfinite(value))
    if not known:
        return {"title": {"text": title}, **unit}
    low, high = known[len(known) // 4], known[(3 * len(known)) // 4]
    spread = 3 * max(high - low, 0.01 * abs(high))  # most trials may be equally good
    bottom, top = max(known[0], low - spread), min(known[-1], high + spread)
    bottom, top = (bottom, known[-1]) if objective.direction == "maximize" else (known[0], top)
    room = (top - bottom) * 0.06 or abs(top) * 0.01 or 1.0
    return {"title": {"text": title}, "range": [bottom - room, top + room], **unit}


def log_axis(title: str, values: Iterable[float | None], ticks: Sequence[float] = ()) -> Values:
    """A logarithmic axis around these values.

    Args:
        ticks: where its ticks are; by default where plotly puts them.
    """
    known = [math.log10(value) for value in values if value is not None and value > 0] or [0.0, 1.0]
    room = 0.08 * max(max(known) - min(known), 0.6)
    axis: Values = {"type": "log", "title": {"text": title}, "range": [min(known) - room, max(known) + room]}
    texts = [f"{tick:,}" for tick in ticks]
    return axis | ({"tickmode": "array", "tickvals": list(ticks), "ticktext": texts} if ticks else {})


def plain(value: object) -> object:
    """A value as JSON for a page: floats in six digits, no NaN or infinity, which JSON does not have."""
    if isinstance(value, bool) or value is None or isinstance(value, (int, str)):
        return value
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, Iterable):
        return [plain(item) for item in value]
    return plain(float(value))  # type: ignore[arg-type]  # numpy's numbers


def plotly_figure(figure: ReportFigure) -> Figure:
    """One figure with its title, for a notebook."""
    from plotly.graph_objects import Figure

    made = Figure(data=plain(figure.data), layout=plain({**figure.layout, "template": template(dark=False)}))
    made.update_layout(title={"text": figure.title, "font": {"size": 17}, "yref": "container", "y": 0.98})
    margin = made.layout.margin
    made.update_layout(margin_t=max(48, margin.t or 0), height=(made.layout.height or HEIGHT) + 40)
    return made
