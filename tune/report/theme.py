"""The look of the figures: colours that people with colour blindness tell apart, on a light and on a dark page."""

from __future__ import annotations

import html
import math

from bigbatch.tune.report.trial_points import (
    BROKEN,
    CONTINUED,
    DIVERGENT,
    FINISHED,
    INFEASIBLE,
    PAUSED,
    STOPPED,
    UNDER_WAY,
    WAITING,
)

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


def number_text(value: float | None) -> str:
    """A number with three digits, or whole; ``–`` for None and for what is not finite."""
    if value is None or not math.isfinite(value):
        return "–"
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"
