"""A figure of a report: plotly's JSON without plotly, which only the page and notebooks need.

Its look comes first: colours that people with colour blindness tell apart, on a light and on a dark page.
"""

from __future__ import annotations

import html
import math
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
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
    StudyPoints,
)
from bigbatch.tune.runs.run import Run

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

Values = dict[str, object]
"""Part of a figure, as plotly's JSON has it."""
BLUE, ORANGE, TEAL, RED, PURPLE, GREY = "#2f7fc1", "#d9822b", "#17957a", "#d1495b", "#9467bd", "#858d96"
"""Each has a contrast of at least 2.9 against the light and the dark page."""
SERIES = (BLUE, ORANGE, TEAL, PURPLE, RED, GREY)
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "star")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
"""Every series differs from the others in its colour and in one of these, so that colour alone never decides."""
OUTCOMES = {
    FINISHED: (BLUE, "circle"), STOPPED: (GREY, "x-thin-open"), PAUSED: (ORANGE, "square-open"),
    CONTINUED: (ORANGE, "triangle-right-open"), DIVERGENT: (RED, "x"), BROKEN: (PURPLE, "cross"),
    INFEASIBLE: (TEAL, "diamond-open"), UNDER_WAY: (TEAL, "circle-open"), WAITING: (GREY, "circle-open"),
}  # fmt: skip
"""Colour and symbol of each way to end."""
HATCHES = ("", "/", "x", ".", "-", "+", "|", "\\")
HATCHED: Values = {"fillmode": "overlay", "solidity": 0.3}
"""Patterns of bars, for the same reason."""
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
    }  # fmt: skip
    bar: Values = {"outlinewidth": 0, "thickness": 12, "title": {"side": "right"}, "len": 0.9}
    return {
        "layout": {
            "font": {"family": FONT, "size": 13, "color": ink},
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "colorway": list(SERIES),
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
"""A figure shows at most this many trials: the best quarter of them, and of the others evenly many."""


CROWDED = 60
"""With so many trials in a figure those of one batch are spread."""


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

    @property
    def is_drawn(self) -> bool:
        """Whether it shows something."""
        return bool(self.data)


FigureMaker = Callable[[StudyPoints], ReportFigure]


def guarded(make: FigureMaker, points: StudyPoints, name: str = "") -> ReportFigure:
    """The figure; one that says why it is missing if it cannot be made, so that a report never fails for a figure."""
    name = name or make.__name__.replace("_", "-")
    try:
        return make(points)
    except Exception as error:  # a study may hold anything
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"[:200]
        return ReportFigure(name, name.replace("-", " ").capitalize(), missing=f"It could not be drawn ({reason}).")


def fewer_trials(points: Sequence[Run], best_first: Sequence[Run], most: int = MOST_POINTS) -> list[Run]:
    """At most ``most`` of the trials, in their order: the best quarter of ``most``, and of the rest evenly many."""
    if len(points) <= most:
        return list(points)
    kept = {p.number for p in best_first[: most // 4]}
    rest = [p.number for p in points if p.number not in kept]
    step = len(rest) / max(1, most - len(kept))
    kept |= {rest[int(i * step)] for i in range(most - len(kept)) if int(i * step) < len(rest)}
    return [p for p in points if p.number in kept]


def thinned_words(shown: int, of: int) -> str:
    """A sentence about trials that a figure leaves out; empty where it shows all."""
    return f" It shows {shown:,} of {of:,} trials: the best ones, and of the others evenly many." if shown < of else ""


def hover(points: StudyPoints, one: Run) -> str:
    """What a figure says of a trial under the pointer."""
    final, outcome = points.final(one), points.outcome(one)
    value = outcome if final is None else points.study.objectives.first.worth(final)
    lines = [f"<b>trial {one.number}</b>: {plotly_text(value)}"]
    facts = [f"batch {one.batch:,}" if one.batch else "", plotly_text(one.optimizer)]
    facts += [f"lr {one.peak_lr:.3g}" if one.peak_lr else "", f"{points.epochs_words(one)} epochs"]
    lines.append(", ".join(fact for fact in facts if fact))
    if outcome != FINISHED and one.because:
        lines += map(plotly_text, textwrap.wrap(one.because[:240], 60))
    return "<br>".join(lines)


def batch_places(group: Sequence[Run]) -> list[float]:
    """Where trials stand on an axis of batches: many of one batch lie beside each other rather than on top."""
    spread = 0.0 if len(group) < CROWDED else 0.16
    # Multiples of the golden ratio: trials whose numbers follow each other lie apart.
    return [(p.batch or 1) * 2 ** (spread * 2 * ((p.number * 0.618034) % 1 - 0.5)) for p in group]


def ranges_of(values: Iterable[float | None]) -> tuple[float, float] | None:
    """The range of an axis that shows these values; None of none."""
    known = [v for v in values if v is not None and math.isfinite(v)]
    if not known:
        return None
    low, high = min(known), max(known)
    room = (high - low) * 0.06 or abs(high) * 0.01 or 1.0
    return low - room, high + room


def most_of(points: StudyPoints, values: Sequence[float | None]) -> tuple[tuple[float, float] | None, int]:
    """The range of an axis that shows all but outliers on the bad side, and how many of the values it leaves out.

    An outlier is more than three interquartile ranges, and three hundredths, worse than the worst quarter.
    """
    known = sorted(v for v in values if v is not None and math.isfinite(v))
    if len(known) < 8:
        return ranges_of(known), 0
    low, high = known[len(known) // 4], known[(3 * len(known)) // 4]
    spread = 3 * max(high - low, 0.01 * abs(high))  # most trials may be equally good
    up = points.study.objectives.first.direction == "maximize"
    kept = [v for v in known if (v >= low - spread if up else v <= high + spread)]
    return ranges_of(kept), len(known) - len(kept)


def ticks_of_batches(batches: Sequence[int]) -> Values:
    """A logarithmic axis of global batches, with a tick at each power of two that was searched."""
    ticks = sorted(set(batches))
    while len(ticks) > 9:
        ticks = ticks[::-2][::-1]
    room = 0.16
    ends = [math.log10(min(batches)) - room, math.log10(max(batches)) + room] if batches else None
    return {
        "type": "log", "title": {"text": "global batch (images)"}, "tickmode": "array", "tickvals": ticks,
        "ticktext": [f"{b:,}" for b in ticks], "range": ends,
    }  # fmt: skip


def log_axis(title: str, values: Iterable[float | None]) -> Values:
    """A logarithmic axis with ticks at 1, 2 and 5 of each power of ten, or at powers of ten alone if these are many."""
    known = [v for v in values if v is not None and v > 0]
    low, high = math.log10(min(known, default=1)), math.log10(max(known, default=10))
    steps = (1, 2, 5) if high - low < 2.5 else (1,)
    ticks = [step * 10.0**power for power in range(math.floor(low) - 1, math.ceil(high) + 2) for step in steps]
    shown = [f"{tick:,.0f}" if tick >= 10 else f"{tick:g}" for tick in ticks]
    room = 0.08 * max(high - low, 0.6)
    return {
        "type": "log", "title": {"text": title}, "tickmode": "array", "tickvals": ticks, "ticktext": shown,
        "range": [low - room, high + room],
    }  # fmt: skip


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
