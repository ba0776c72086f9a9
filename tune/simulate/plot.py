"""Regret over slot hours as an SVG: a line for each search, and the band of its seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

COLORS = ("#1f5fa8", "#b03a2e", "#2e7d4f", "#7a4fa3", "#c98a1b", "#0b7f86", "#a33c77", "#555555")
WIDTH, HEIGHT = 820, 440
LEFT, TOP, RIGHT, BOTTOM = 72, 44, 220, 56
POINTS = 160
"""Places on the axis of hours."""


def hours_axis(budget_h: float) -> list[float]:
    """The hours at which a plot needs the regret."""
    return [budget_h * (number + 1) / POINTS for number in range(POINTS)]


def regret_svg(title: str, unit: str, hours: Sequence[float], bands: Mapping[str, np.ndarray]) -> str:
    """``bands``: by the search's name, low, middle and high quantile of the regret at each hour, shape 3 × hours.

    The vertical axis is logarithmic. What is below a thousandth of its top lies on its lower edge.
    """
    high = max(float(band.max()) for band in bands.values()) or 1.0  # all searches found the best at once
    positive = [float(band[band > 0].min()) for band in bands.values() if (band > 0).any()]
    low = max(min(positive, default=high), high / 1000)
    top, bottom = math.log10(high * 1.1), math.log10(low / 1.3)

    def x(hour: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * hour / hours[-1]

    def y(regret: float) -> float:
        share = (math.log10(max(regret, 10**bottom)) - bottom) / (top - bottom)
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * min(share, 1)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        _text(LEFT, 22, f"Regret ({unit}) of the best finished run, median and 10 to 90 %: {_escaped(title)}", "start"),
    ]
    for mark in _marks(10**bottom, 10**top):
        line = f'x1="{LEFT}" y1="{y(mark):.1f}" x2="{WIDTH - RIGHT}" y2="{y(mark):.1f}"'
        parts += [f'<line {line} stroke="#e4e4e4"/>', _text(LEFT - 8, y(mark) + 4, f"{mark:g}", "end")]
    for number in range(5):
        hour = hours[-1] * number / 4
        parts.append(_text(x(hour), HEIGHT - BOTTOM + 20, f"{hour:.3g}"))
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, "slot hours (GPU hours with one GPU a slot)"))
    lowest = -math.inf
    for number, name in enumerate(sorted(bands, key=lambda name: y(float(bands[name][1, -1])))):
        color, band = COLORS[list(bands).index(name) % len(COLORS)], bands[name]
        xs = [x(hour) for hour in hours]
        edge = _path(xs, [y(v) for v in band[2]]) + " " + _path(xs[::-1], [y(v) for v in band[0][::-1]])
        parts.append(f'<polygon points="{edge}" fill="{color}" opacity="0.12"/>')
        line = _path(xs, [y(v) for v in band[1]])
        parts.append(f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="2"/>')
        lowest = max(y(float(band[1, -1])) + 4, lowest + 16) if number else y(float(band[1, -1])) + 4
        parts.append(_text(WIDTH - RIGHT + 8, lowest, _escaped(name), "start", color))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _path(xs: Sequence[float], ys: Sequence[float]) -> str:
    """A line that changes its height only where it must: regret falls in steps."""
    points, before = [], ys[0]
    for px, py in zip(xs, ys, strict=True):
        points += [f"{px:.1f},{before:.1f}", f"{px:.1f},{py:.1f}"]
        before = py
    return " ".join(points)


def _marks(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten between the two."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [m for p in powers for k in (1, 2, 5) if low <= (m := k * 10.0**p) <= high]


def _text(px: float, py: float, words: str, anchor: str = "middle", color: str = "#222") -> str:
    return f'<text x="{px:.1f}" y="{py:.1f}" text-anchor="{anchor}" fill="{color}">{words}</text>'


def _escaped(words: str) -> str:
    return words.replace("&", "&amp;").replace("<", "&lt;")
