"""The plot of batch_scaling.py: top-1 over the batch, a line a method, as an SVG."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

COLORS = {"sgd_fixed": "#9aa0a6", "sgd_linear": "#b03a2e", "lars": "#c98a1b", "lamb": "#7a4fa3", "found": "#1f5fa8"}
WIDTH, HEIGHT = 760, 420
LEFT, TOP, RIGHT, BOTTOM = 64, 44, 250, 56
SOFT = 0.2
"""Points added to an error before its logarithm: no error has a place too."""


def svg(cells: Mapping[str, Mapping[int, Mapping[str, float]]], names: Mapping[str, str], title: str) -> str:
    """``cells``: by method and batch, ``mean``, ``min`` and ``max`` of the top-1 in percent.

    The vertical axis is the error, 100 − top-1, logarithmic (but near 0: ``SOFT``) and falling, so that half a point
    at the top and fifty at the bottom can both be read; its marks are written as top-1.
    """
    batches = sorted({batch for row in cells.values() for batch in row})
    errors = [100 - c[key] for row in cells.values() for c in row.values() for key in ("min", "max")]
    marks = [m for m in (0, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100) if min(errors) / 2 <= m <= max(errors) * 2.5]
    low, high = (math.log(SOFT + most([*marks, *errors])) for most in (min, max))
    first, last = math.log2(batches[0]), math.log2(batches[-1])

    def x(batch: float) -> float:
        return LEFT + 16 + (WIDTH - LEFT - RIGHT - 32) * (math.log2(batch) - first) / max(last - first, 1e-9)

    def y(top1: float) -> float:
        share = (math.log(SOFT + 100 - top1) - low) / max(high - low, 1e-9)
        return TOP + (HEIGHT - TOP - BOTTOM) * share

    def text(px: float, py: float, words: str, anchor: str = "middle", color: str = "#222") -> str:
        return f'<text x="{px:.1f}" y="{py:.1f}" text-anchor="{anchor}" fill="{color}">{words}</text>'

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        text(LEFT, 22, f"Top-1 on held-out images, mean and range: {title}", "start"),
    ]
    for mark in marks:
        py = y(100 - mark)
        parts.append(f'<line x1="{LEFT}" y1="{py:.1f}" x2="{WIDTH - RIGHT}" y2="{py:.1f}" stroke="#e4e4e4"/>')
        parts.append(text(LEFT - 8, py + 4, f"{100 - mark:g} %", "end"))
    parts.extend(text(x(batch), HEIGHT - BOTTOM + 22, f"{batch:,}") for batch in batches)
    parts.append(text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, "global batch size, images"))
    for number, (method, row) in enumerate(cells.items()):
        color, shift = COLORS[method], 5 * (number - (len(cells) - 1) / 2)  # side by side where they meet
        points = [(x(batch) + shift, {key: y(top1) for key, top1 in row[batch].items()}) for batch in sorted(row)]
        parts += _method(points, color, width=3 if method == "found" else 1.6)
    parts += _legend(cells, names, {m: y(row[max(row)]["mean"]) for m, row in cells.items()})
    return "\n".join([*parts, "</svg>"]) + "\n"


def _method(points: Sequence[tuple[float, Mapping[str, float]]], color: str, width: float) -> list[str]:
    """A line through the means, and at each batch the range. ``points``: x, and the ys of mean, min and max."""
    line = " ".join(f"{px:.1f},{ys['mean']:.1f}" for px, ys in points)
    parts = [f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="{width}"/>']
    for px, ys in points:
        parts.append(f'<line x1="{px:.1f}" y1="{ys["min"]:.1f}" x2="{px:.1f}" y2="{ys["max"]:.1f}" stroke="{color}"/>')
        parts.append(f'<circle cx="{px:.1f}" cy="{ys["mean"]:.1f}" r="3.5" fill="{color}"/>')
    return parts


def _legend(cells: Mapping[str, object], names: Mapping[str, str], ends: Mapping[str, float]) -> list[str]:
    """Names at the lines' right ends, moved apart where they would overlap."""
    parts, lowest = [], -math.inf
    for method in sorted(cells, key=ends.__getitem__):
        lowest = max(ends[method] + 4, lowest + 16)
        words = names[method].replace("`", "")
        parts.append(f'<text x="{WIDTH - RIGHT + 8}" y="{lowest:.1f}" fill="{COLORS[method]}">{words}</text>')
    return parts
