"""The page of a race: one HTML file with the table and a line for each of the best runs. It loads nothing."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

from bigbatch.tune.study.objective import Objective
from bigbatch.tune.watch.race import HEAD, RIGHT, RaceCap, RacePlace, table_rows
from bigbatch.tune.watch.race_runs import epoch_value

COLORS = ("#2f74c0", "#c0392b", "#2e8b57", "#8e5bb5", "#c98a1b", "#0b8f96", "#b03f80", "#7a7a7a")
"""Readable on white and on black."""
WIDTH, HEIGHT, LEFT, TOP, RIGHT_EDGE, BOTTOM = 860, 380, 64, 16, 16, 44
STYLE = """
:root { color-scheme: light dark; --line: #8884; }
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem; }
h1 { font-size: 1.4rem; margin: 0 0 .2rem; } p { margin: .2rem 0 1rem; }
.wide { overflow-x: auto; } table { border-collapse: collapse; white-space: nowrap; }
th, td { padding: .25rem .6rem; text-align: left; border-bottom: 1px solid var(--line); }
.number { text-align: right; font-variant-numeric: tabular-nums; }
svg { width: 100%; height: auto; } svg text { fill: currentColor; font-size: 12px; }
.grid { stroke: var(--line); } .cap { stroke: currentColor; stroke-dasharray: 5 4; }
"""


def race_page(places: Sequence[RacePlace], objective: Objective, cap: RaceCap) -> str:
    """The whole page. Names from files are escaped."""
    title = f"Race: {objective.sentence}"
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{_text(title)}</title><style>{STYLE}</style></head><body>",
            f"<h1>{_text(title)}</h1><p>{_text(cap.words[0].upper() + cap.words[1:])}. "
            "A run counts with the value after the last epoch that ended before the cap. "
            "Hours are workers × time of training, validation and checkpoints.</p>",
            _chart(places, objective, cap),
            _table(places, objective),
            "</body></html>\n",
        ]
    )


def _text(value: str) -> str:
    return html.escape(value, quote=True)


def _table(places: Sequence[RacePlace], objective: Objective) -> str:
    def cells(row: Sequence[str], tag: str, marks: Sequence[str]) -> str:
        numbers = [' class="number"' if column in RIGHT else "" for column in range(len(row))]
        return "".join(
            f"<{tag}{kind}>{mark}{_text(text)}</{tag}>" for text, kind, mark in zip(row, numbers, marks, strict=True)
        )

    rows = [f"<tr>{cells(HEAD, 'th', [''] * len(HEAD))}</tr>"]
    for number, row in enumerate(table_rows(places, objective)):
        dot = f'<span style="color:{COLORS[number]}">●</span> ' if number < len(COLORS) else ""
        rows.append(f"<tr>{cells(row, 'td', ['', dot, *[''] * (len(row) - 2)])}</tr>")
    return f'<div class="wide"><table>{"".join(rows)}</table></div>'


def _chart(places: Sequence[RacePlace], objective: Objective, cap: RaceCap) -> str:
    """Value over device hours, or over time if only time is capped. Empty without anything to draw."""
    over_time = cap.time_s is not None and cap.device_hours is None
    lines = [_points(place, objective, over_time) for place in places[: len(COLORS)]]
    values = [value for line in lines for _, value in line]
    if not values:
        return ""
    limit = (cap.time_s or 0) / 3600 if over_time else cap.device_hours or 0.0
    last = max(limit, *(hours for line in lines for hours, _ in line)) or 1.0
    low, high = min(values), max(values)
    low, high = (low, high) if high > low else (low - 0.5, high + 0.5)

    def x(hours: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT_EDGE) * hours / last

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (value - low) / (high - low)

    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{_text(objective.metric.title)}">']
    for step in range(5):
        value, hours = low + (high - low) * step / 4, last * step / 4
        parts.append(
            f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT_EDGE}" y1="{y(value):.1f}" y2="{y(value):.1f}"/>'
        )
        parts.append(f'<text x="{LEFT - 8}" y="{y(value) + 4:.1f}" text-anchor="end">{objective.worth(value)}</text>')
        anchor = "end" if step == 4 else "middle"
        parts.append(f'<text x="{x(hours):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="{anchor}">{hours:.3g}</text>')
    axis = "hours" if over_time else "device hours"
    parts.append(f'<text x="{(LEFT + WIDTH) / 2}" y="{HEIGHT - 6}" text-anchor="middle">{axis}</text>')
    if limit:
        parts.append(f'<line class="cap" x1="{x(limit):.1f}" x2="{x(limit):.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>')
    for line, color, place in zip(lines, COLORS, places, strict=False):
        path = " ".join(f"{x(hours):.1f},{y(value):.1f}" for hours, value in line)
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"><title>{_text(place.run.name)}'
            "</title></polyline>"
        )
    return "".join([*parts, "</svg>"])


def _points(place: RacePlace, objective: Objective, over_time: bool) -> list[tuple[float, float]]:
    """Hours and value at the end of each epoch, also after the cap."""
    scale = 1 if over_time else place.run.workers
    if scale is None:
        return []
    pairs = zip(place.run.seconds, place.run.records, strict=True)
    found = [(seconds * scale / 3600, epoch_value(record, objective.name)) for seconds, record in pairs]
    return [(hours, value) for hours, value in found if math.isfinite(value)]
