"""Figures of how a search went: its learning curves, device hours by outcome, and when each slot was busy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from bigbatch.base import json_values
from bigbatch.tune.report.figure import (
    GREY,
    HATCHED,
    HATCHES,
    LEGEND_BELOW,
    ORANGE,
    OUTCOMES,
    TEAL,
    ReportFigure,
    Values,
    fewer_trials,
    hover,
    layout,
    most_of,
    thinned_words,
)
from bigbatch.tune.report.recorded_study import CONTINUED, FINISHED, StudyPoints
from bigbatch.tune.runs.run import Kind, Run

MOST_CURVES = 300


def learning_curves(points: StudyPoints) -> ReportFigure:
    """The watched metric of each trial over its epochs, with a mark where it ended."""
    name, title = "learning-curves", "Learning curves"
    having = [p for p in points.searched if points.curve(p)]
    if not having:
        return ReportFigure(name, title, missing="No trial has reported an epoch yet.")
    chosen = fewer_trials(having, points.best_first, MOST_CURVES)
    metric = points.study.objectives.first.shown
    factor = 100.0 if metric.name.endswith("_top1") else 1.0
    data: list[Values] = []
    for outcome in reversed(OUTCOMES):  # the finished ones last, above the others
        group = [p for p in chosen if points.outcome(p) == outcome]
        if group:
            data += [_lines(points, group, outcome, factor), _ends(points, group, outcome, factor)]
    values = [factor * value for p in chosen for _, value in points.curve(p)]
    within, left = most_of(points, values)
    far = f" {left} values lie outside of the plot." if left else ""
    caption = (
        "Each line is a trial. The mark at its end says how it ended; point at it for the reason. A paused trial that "
        "was continued goes on in its continuation, which begins with the same epochs. Press a name in the legend to "
        f"hide or show these trials.{far}{thinned_words(len(chosen), len(having))}"
    )
    unit = " (%)" if factor == 100 else ""
    axes = layout(
        height=460,
        xaxis={"title": {"text": "epoch"}, **({"dtick": 1} if max(map(points.last_epoch, chosen)) <= 16 else {})},
        yaxis={"title": {"text": f"{metric.metric.title}{unit}"}, "range": within},
    )
    return ReportFigure(name, title, caption, data, axes)


def _lines(points: StudyPoints, group: Sequence[Run], outcome: str, factor: float) -> Values:
    """The curves of one kind as one line with gaps: hundreds of separate ones would be slow."""
    x: list[float | None] = []
    y: list[float | None] = []
    for one in group:
        x += [*(epoch for epoch, _ in points.curve(one)), None]
        y += [*(factor * value for _, value in points.curve(one)), None]
    strong = outcome == FINISHED
    return {
        "type": "scatter", "mode": "lines", "x": x, "y": y, "legendgroup": outcome, "showlegend": False,
        "line": {"color": OUTCOMES[outcome][0], "width": 1.4 if strong else 1.1}, "hoverinfo": "skip",
        "opacity": _opacity(len(group)) * (1.0 if strong else 0.8),
    }  # fmt: skip


def _opacity(count: int) -> float:
    return max(0.25, min(0.9, 12 / count))


def _ends(points: StudyPoints, group: Sequence[Run], outcome: str, factor: float) -> Values:
    colour, symbol = OUTCOMES[outcome]
    ends = [(p, points.curve(p)[-1]) for p in group]
    return {
        "type": "scatter", "mode": "markers", "name": f"{outcome} ({len(group)})", "legendgroup": outcome,
        "x": [end[0] for _, end in ends], "y": [factor * end[1] for _, end in ends],
        "text": [hover(points, p) for p, _ in ends], "hovertemplate": "%{text}<extra></extra>",
        "marker": {"color": colour, "symbol": symbol, "size": 5 if outcome in (FINISHED, CONTINUED) else 9,
                   "line": {"width": 1.5, "color": colour}},
    }  # fmt: skip


CONFIRMING, OUTSIDE = "confirmations", "outside of trials"
MOST_BARS = 3000
GAP_SHARE, LEAST_GAP_S = 0.15, 300.0
"""A pause of the whole search that is longer than both, as between two sessions, is cut out of the timeline."""


def hours_by_outcome(points: StudyPoints) -> dict[str, float]:
    """Device hours of the trials by how they ended, and those that no trial used."""
    found: dict[str, float] = {}
    for one in points.all:
        if one.gpu_hours:
            key = CONFIRMING if one.kind == Kind.CONFIRMATION else points.outcome(one)
            found[key] = found.get(key, 0.0) + one.gpu_hours
    order = [*OUTCOMES, CONFIRMING]
    found = {key: found[key] for key in order if key in found}
    rest = points.study.summary.held_s / 3600 - sum(found.values())
    if rest > 0.005 * sum(found.values()):
        found[OUTSIDE] = rest
    return found


def device_hours(points: StudyPoints) -> ReportFigure:
    """One bar that divides the study's device hours."""
    name, title = "device-hours", f"Where the {points.study.hours} went"
    found = hours_by_outcome(points)
    if not sum(found.values()):
        return ReportFigure(name, title, missing="No device hours were noted.")
    total = sum(found.values())
    data: list[Values] = []
    for i, (key, hours) in enumerate(found.items()):
        colour = {CONFIRMING: TEAL, OUTSIDE: "#b9bfc6"}.get(key) or OUTCOMES.get(key, (GREY, ""))[0]
        data.append(
            {
                "type": "bar", "orientation": "h", "name": f"{key}: {hours:.3g} ({100 * hours / total:.0f} %)",
                "x": [hours],
                "y": [""],
                "marker": {"color": colour, "pattern": {**HATCHED, "shape": HATCHES[i % 8]}},
                "hovertemplate": f"{key}: {hours:.3g}<extra></extra>",
            }
        )  # fmt: skip
    caption = (
        "The hours of the trials by how they ended, and those in which devices were held for no trial: Ray's start, "
        "trials that began or ended, and idle devices."
    )
    axes = layout(
        height=230,
        barmode="stack",
        xaxis={"title": {"text": points.study.hours}},
        yaxis={"visible": False},
        legend={**LEGEND_BELOW, "traceorder": "normal"},
        margin={"l": 16, "r": 16, "t": 8, "b": 56},
        bargap=0.2,
    )
    return ReportFigure(name, title, caption, data, axes)


@dataclass(frozen=True)
class SlotUse:
    """When the slots of a search were busy."""

    bars: tuple[tuple[int, float, float, Run], ...]
    """Slot, from 0 on, start and end in seconds since the first trial, without the gaps."""
    slots: int
    span_s: float
    gaps: tuple[tuple[float, float], ...]
    """Where the timeline was cut, and the seconds that were left out."""

    @property
    def busy_share(self) -> float:
        """The part of the slots' time in which a trial ran."""
        used = sum(end - start for _, start, end, _ in self.bars)
        return min(1.0, used / (self.slots * self.span_s)) if self.span_s else 0.0


def slot_use(points: StudyPoints) -> SlotUse | None:
    """The trials laid out over slots; None if no start is known. A trial without an end lasts until the last time."""
    begun = [p for p in points.all if p.datetime_start is not None]
    if not begun:
        return None
    known = [t for p in begun for t in (p.datetime_start, p.datetime_complete) if t is not None]
    first, last = min(known), max(known)
    spans = [(_seconds(first, p.datetime_start), _seconds(first, p.datetime_complete or last), p) for p in begun]
    spans.sort(key=lambda span: span[:2])
    spans, gaps = _without_gaps([(start, max(start, end), p) for start, end, p in spans])
    free_at: list[float] = []
    bars = []
    for start, end, one in spans:
        slot = next((i for i, at in enumerate(free_at) if at <= start + 0.05), len(free_at))
        if slot == len(free_at):
            free_at.append(0.0)
        free_at[slot] = end
        bars.append((slot, start, end, one))
    at_once = json_values.whole_number(points.study.description, "concurrency")
    return SlotUse(tuple(bars), max(len(free_at), at_once), max(end for _, end, _ in spans), gaps)


def _seconds(first: datetime, at: datetime | None) -> float:
    return (at - first).total_seconds() if at is not None else 0.0


Span = tuple[float, float, Run]


def _without_gaps(spans: Sequence[Span]) -> tuple[list[Span], tuple[tuple[float, float], ...]]:
    """The spans, moved so that long times without any trial take none, and where these were."""
    busy, reached = 0.0, 0.0
    for start, end, _ in spans:
        busy += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    longest = max(LEAST_GAP_S, GAP_SHARE * busy)
    moved: list[Span] = []
    gaps: list[tuple[float, float]] = []
    cut, reached = 0.0, 0.0
    for start, end, one in spans:
        if moved and start - reached > longest:
            cut += start - reached
            gaps.append((start - cut, start - reached))
        reached = max(reached, end)
        moved.append((start - cut, end - cut, one))
    return moved, tuple(gaps)


def _bars(points: StudyPoints, use: SlotUse, unit_s: float) -> list[Values]:
    """The bars of the trials, by how they ended."""
    data: list[Values] = []
    for outcome, (colour, _) in OUTCOMES.items():
        group = [bar for bar in use.bars[:MOST_BARS] if points.outcome(bar[3]) == outcome]
        if group:
            data.append(
                {
                    "type": "bar", "orientation": "h", "name": outcome,
                    "y": [slot + 1 for slot, *_ in group], "base": [start / unit_s for _, start, _, _ in group],
                    "x": [(end - start) / unit_s for _, start, end, _ in group],
                    "text": [hover(points, one) for *_, one in group], "textposition": "none",
                    "hovertemplate": "%{text}<extra></extra>",
                    "marker": {
                        "color": colour, "line": {"width": 1, "color": "rgba(127,127,127,0.6)"},
                        "pattern": {**HATCHED, "shape": "/" if outcome == CONTINUED else ""},
                    },
                }
            )  # fmt: skip
    return data


def slot_timeline(points: StudyPoints) -> ReportFigure:
    """A bar for each trial in the slot in which it ran."""
    name, title = "slot-timeline", "When the devices were busy"
    use = slot_use(points)
    if use is None or use.span_s <= 0:
        return ReportFigure(name, title, missing="No start or end of a trial was noted.")
    unit_s, unit = (3600.0, "hours") if use.span_s >= 7200 else (60.0, "minutes")
    data = _bars(points, use, unit_s)
    cuts: list[Values] = [
        {"type": "line", "x0": at / unit_s, "x1": at / unit_s, "yref": "paper", "y0": 0, "y1": 1,
         "line": {"color": ORANGE, "width": 1.5, "dash": "dot"}} for at, _ in use.gaps
    ]  # fmt: skip
    paused = (
        f" Dotted lines: the search was away for {sum(s for _, s in use.gaps) / 3600:.1f} h there, which is left out."
        if use.gaps
        else ""
    )
    more = f" The first {MOST_BARS:,} of {len(use.bars):,} trials are shown." if len(use.bars) > MOST_BARS else ""
    caption = (
        f"Each bar is a trial, in one of the {use.slots} places for trials. White between bars is time in which the "
        f"place was idle, or a trial was being started. The places were busy for {100 * use.busy_share:.0f} % of the "
        f"time.{paused}{more}"
    )
    axes = layout(
        height=min(900, 160 + 34 * use.slots),
        barmode="overlay",
        bargap=0.25,
        shapes=cuts,
        xaxis={"title": {"text": f"{unit} since the first trial"}, "rangemode": "tozero"},
        yaxis={"title": {"text": "place"}, "autorange": "reversed", "dtick": 1 if use.slots <= 24 else 8},
    )
    return ReportFigure(name, title, caption, data, axes)
