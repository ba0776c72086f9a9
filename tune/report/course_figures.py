"""How a search went: its learning curves, and device hours by outcome."""

from __future__ import annotations

from collections.abc import Sequence

from bigbatch.tune.report.figure import (
    OUTCOMES,
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
