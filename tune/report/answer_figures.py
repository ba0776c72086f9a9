"""Figures of the answer: the frontier of batches, its costs, and how the search came to it."""

from __future__ import annotations

from collections.abc import Sequence

from bigbatch.tune.report.figure import (
    BLUE,
    DASHES,
    GREY,
    ORANGE,
    SERIES,
    SYMBOLS,
    TEAL,
    ReportFigure,
    Values,
    batch_places,
    fewer_trials,
    hover,
    layout,
    most_of,
    plotly_text,
    ticks_of_batches,
)
from bigbatch.tune.report.recorded_study import StudyPoints
from bigbatch.tune.runs.frontier import BestOfValue, Frontier, FrontierRow
from bigbatch.tune.runs.learned import CHOSEN, FRESH_SEEDS, HELD_OUT
from bigbatch.tune.runs.objective import Objective
from bigbatch.tune.runs.run import Kind, Run

NO_FINISHED = "No trial has finished yet, so there is nothing to compare."
NO_FRONTIER = "It needs a search with a choice of batches and one objective."


def _why_no_rows(studies: Sequence[StudyPoints]) -> str:
    return NO_FRONTIER if any(points.finished for points in studies) else NO_FINISHED


def _done_rows(points: StudyPoints) -> list[FrontierRow]:
    frontier = points.study.frontier
    return frontier.finished_rows if frontier and frontier.facts.name is not None else []


def _is_numeric(rows: Sequence[FrontierRow]) -> bool:
    return all(isinstance(row.value, (int, float)) and not isinstance(row.value, bool) for row in rows)


def _place(row: FrontierRow) -> object:
    """Where the value is on the axis: a number, or a category as text."""
    return row.value if _is_numeric([row]) else plotly_text(row.value)


def _axis(points: StudyPoints, rows: Sequence[FrontierRow]) -> Values:
    frontier = points.study.frontier
    if rows and _is_numeric(rows) and all(float(str(row.value)) > 0 for row in rows) and frontier:
        values = [row.value for row in frontier.rows if isinstance(row.value, (int, float))]
        axis = ticks_of_batches([int(v) for v in values])
        return axis if frontier.facts.word == "batch" else {**axis, "title": {"text": plotly_text(frontier.facts.name)}}
    return {"type": "category", "title": {"text": plotly_text(frontier.facts.name) if frontier else ""}}


BARS = {
    HELD_OUT: "on examples that did not choose it",
    FRESH_SEEDS: "as the mean over fresh seeds",
    CHOSEN: "that chose it",
}
"""What the blue values are, by ``Reported.by``."""


def _word(points: StudyPoints) -> str:
    """The frontier's parameter as people call it."""
    return points.study.frontier.facts.word if points.study.frontier else "batch"


def frontier(points: StudyPoints) -> ReportFigure:
    """What is reported of the best of each value with its interval, beside the value that chose it."""
    found, rows = points.study.frontier, _done_rows(points)
    name, title = "frontier", f"The frontier: how good each {_word(points)} gets"
    if found is None or not rows:
        return ReportFigure(name, title, missing=_why_no_rows([points]))
    facts, best, word = found.facts, [row.best for row in rows if row.best], _word(points)
    shown = [points.shown(one.reported.value) or 0.0 for one in best]
    chosen = [points.shown(one.objective) for one in best]
    ends = [points.shown(end) for one in best for end in (one.reported.low, one.reported.high)]
    x = [_place(row) for row in rows]
    within, left_out = most_of(points, [points.shown(p.value) for p in points.finished])
    known = [value for value in (*shown, *chosen, *ends, *(within or ())) if value is not None]
    room = 0.03 * (max(known) - min(known) or 1.0)
    bottom, top = min(known) - room, max(known) + room
    data: list[Values] = [_all_finished(points)] if _is_numeric(rows) else []
    data.append(_best_of_each(x, shown, _bars(points, best), [_about(row, facts.objective) for row in rows]))
    if any(one.reported.by != CHOSEN for one in best):
        data.append(_that_chose(x, chosen))
    if found.usable:
        data += _tolerance_and_answer(points, found, x)
    data += _not_tried(found, bottom)
    by = " or ".join(dict.fromkeys(BARS[one.reported.by] for one in best))
    caption = f"Blue: the best finished trial of each {word}, by its value {by}. "
    caption += "Its bar is the 95 % interval. " * any(end is not None for end in ends)
    caption += "Hollow: the value that chose it. " * any(one.reported.by != CHOSEN for one in best)
    caption += "Grey dots: all finished trials, by the value that chooses. "
    if found.usable:
        caption += (
            f"By the values that choose, a {word} beyond the dashed line is within the tolerance of "
            f"{facts.tolerance.words(facts.objective.metric)}; the largest such {word} is the answer (ring). "
        )
    caption += f"{left_out} far worse trials lie outside of the plot." if left_out else ""
    axes = layout(xaxis=_axis(points, rows), yaxis={"title": {"text": points.value_title}, "range": (bottom, top)})
    return ReportFigure(name, title, caption.strip(), data, axes)


def _bars(points: StudyPoints, best: Sequence[BestOfValue]) -> Values:
    """The intervals of what is reported; empty where one of them is not known."""
    sides: list[tuple[float, float]] = []
    for one in best:
        value, low, high = map(points.shown, (one.reported.value, one.reported.low, one.reported.high))
        if value is None or low is None or high is None:
            return {}
        sides.append((high - value, value - low))
    up, down = ([side[i] for side in sides] for i in (0, 1))
    return {"type": "data", "symmetric": False, "array": up, "arrayminus": down, "thickness": 1.6, "width": 6}


def _that_chose(x: Sequence[object], y: Sequence[float | None]) -> Values:
    return {
        "type": "scatter", "mode": "markers", "name": "when chosen", "x": x, "y": y, "hoverinfo": "skip",
        "marker": {"symbol": "diamond-open", "size": 9, "color": TEAL, "line": {"width": 2}},
    }  # fmt: skip


def _tolerance_and_answer(points: StudyPoints, found: Frontier, x: Sequence[object]) -> list[Values]:
    objective, answer, best, top = found.facts.objective, found.answer_row, found.answer_best, found.reference.best
    if answer is None or best is None or top is None:
        return []
    line = points.shown(objective.gain(objective.gain(top.objective) - found.allowance))
    within = f"{found.facts.tolerance.words(objective.metric)} from the best"
    return [
        {
            "type": "scatter", "mode": "lines", "name": within, "x": [x[0], x[-1]], "y": [line, line],
            "line": {"color": GREY, "dash": "dash", "width": 1.5}, "hoverinfo": "skip",
        },
        {
            "type": "scatter", "mode": "markers", "name": "the answer", "x": [_place(answer)],
            "y": [points.shown(best.reported.value)], "hoverinfo": "skip",
            "marker": {"symbol": "circle-open", "size": 20, "color": ORANGE, "line": {"width": 3}},
        },
    ]  # fmt: skip


def _not_tried(found: Frontier, bottom: float) -> list[Values]:
    """The values of which no run has finished, named where they would be."""
    rows = [row for row in found.rows if row.best is None]
    if not rows:
        return []
    texts = ["none finished" if row.tried else "not tried" for row in rows]
    return [
        {
            "type": "scatter", "mode": "text", "name": "not tried", "x": [_place(row) for row in rows], "text": texts,
            "y": [bottom] * len(rows), "textposition": "top center", "hoverinfo": "skip", "showlegend": False,
        }
    ]  # fmt: skip


def _about(row: FrontierRow, objective: Objective) -> str:
    assert row.best is not None
    value, chosen = objective.worth(row.best.reported.value), objective.worth(row.best.chosen_at)
    return f"<b>{plotly_text(row.value)}</b>: {value} (trial {row.best.trial}; {chosen} when chosen)"


def _best_of_each(x: Sequence[object], y: Sequence[float], bars: Values, texts: Sequence[str]) -> Values:
    return {
        "type": "scatter", "mode": "lines+markers", "name": "best of each", "x": x, "y": y, "error_y": bars,
        "line": {"color": BLUE, "width": 2}, "marker": {"color": BLUE, "size": 9}, "text": texts,
        "hovertemplate": "%{text}<extra></extra>",
    }  # fmt: skip


def _all_finished(points: StudyPoints) -> Values:
    name = (points.study.frontier.facts.name if points.study.frontier else None) or ""
    by_batch = "batch" in name
    kept = fewer_trials(points.finished, points.best_first)
    dots = [p for p in kept if (p.batch if by_batch else p.params.get(name) is not None)]
    return {
        "type": "scatter", "mode": "markers", "name": "finished trials",
        "x": batch_places(dots) if by_batch else [p.params[name] for p in dots],
        "y": [points.shown(p.value) for p in dots], "text": [hover(points, p) for p in dots],
        "hovertemplate": "%{text}<extra></extra>", "marker": {"color": GREY, "size": 6, "opacity": 0.55},
    }  # fmt: skip


# How the search came to it


def _best_so_far(points: StudyPoints, trials: Sequence[Run]) -> list[float | None]:
    objective, best, found = points.study.objectives.first, None, list[float | None]()
    for value in map(points.final, trials):
        if value is not None and (best is None or objective.is_better(value, best)):
            best = value
        found.append(points.shown(best))
    return found


def _line(x: Sequence[float], y: Sequence[float | None]) -> Values:
    return {
        "type": "scatter", "mode": "lines+markers" if len(x) < 3 else "lines", "name": "best so far", "x": list(x),
        "y": list(y),
        "line": {"color": ORANGE, "shape": "hv", "width": 2.5}, "hovertemplate": "%{y:.4g}<extra></extra>",
    }  # fmt: skip


def _searched_in_order(points: StudyPoints) -> list[tuple[float, Run]]:
    """The trials that have ended, in that order, each with the device hours of all until then. No confirmations."""
    ended = [p for p in points.all if p.datetime_complete and p.gpu_hours is not None]
    found, hours = [], 0.0
    for one in sorted(ended, key=lambda p: (str(p.datetime_complete), p.number)):
        hours += one.gpu_hours or 0.0
        found.append((hours, one))
    return [(hours, one) for hours, one in found if one.kind != Kind.CONFIRMATION]


def history_over_hours(points: StudyPoints) -> ReportFigure:
    """The best so far over the device hours that trials have used."""
    name, title = "history-over-hours", f"The best so far, over {points.study.hours}"
    ended = _searched_in_order(points)
    done = [(hours, p) for hours, p in ended if points.final(p) is not None]
    if not done:
        return ReportFigure(name, title, missing="No trial has finished with its hours noted.")
    best = _best_so_far(points, [p for _, p in done])
    dots: Values = {
        "type": "scatter", "mode": "markers", "name": "finished", "x": [hours for hours, _ in done],
        "y": [points.shown(p.value) for _, p in done], "text": [hover(points, p) for _, p in done],
        "hovertemplate": "%{text}<extra></extra>", "marker": {"color": BLUE, "size": 7, "opacity": 0.8},
    }  # fmt: skip
    # To the last trial that ended: hours that brought nothing are seen, too.
    line = _line([*(hours for hours, _ in done), ended[-1][0]], [*best, best[-1]])
    within, _ = most_of(points, [points.shown(p.value) for _, p in done])
    caption = (
        f"Each mark is a finished trial, over the {points.study.hours} of all trials until then. The line is the best "
        "so far: where it is flat for long, more trials of this kind bring little."
    )
    axes = layout(
        xaxis={"title": {"text": f"{points.study.hours} of trials"}, "rangemode": "tozero"},
        yaxis={"title": {"text": points.value_title}, "range": within},
    )
    return ReportFigure(name, title, caption, [dots, line], axes)


# Several studies


def compared_frontiers(studies: Sequence[StudyPoints]) -> ReportFigure:
    """The frontiers of several studies in one plot."""
    name, title = "compared-frontiers", "The frontiers side by side"
    data: list[Values] = []
    batches: set[int] = set()
    for i, points in enumerate(studies):
        rows = [row for row in _done_rows(points) if isinstance(row.value, int)]
        if rows:
            batches |= {row.value for row in rows if isinstance(row.value, int)}
            colour, symbol, dash = SERIES[i % 6], SYMBOLS[i % 6], DASHES[i % 6]
            data.append(
                {
                    "type": "scatter", "mode": "lines+markers", "name": plotly_text(points.study.shown_name),
                    "x": [row.value for row in rows],
                    "y": [points.shown(row.best.reported.value) for row in rows if row.best],
                    "line": {"color": colour, "dash": dash, "width": 2},
                    "marker": {"color": colour, "symbol": symbol, "size": 9},
                }
            )  # fmt: skip
    if not data:
        return ReportFigure(name, title, missing=_why_no_rows(studies))
    caption = (
        "The best finished trial of each batch by what did not choose it, one line for each study. Compare studies of "
        "the same data only."
    )
    axes = layout(
        xaxis=ticks_of_batches(sorted(batches)),
        yaxis={"title": {"text": studies[0].value_title}},
        showlegend=True,  # also with one line: the other studies may have no batches
    )
    return ReportFigure(name, title, caption, data, axes)


def compared_histories(studies: Sequence[StudyPoints]) -> ReportFigure:
    """The best so far over device hours, one line for each study."""
    name, title = "compared-histories", "What each device hour brought"
    data: list[Values] = []
    for i, points in enumerate(studies):
        done = [(hours, p) for hours, p in _searched_in_order(points) if points.final(p) is not None]
        if done:
            line = _line([hours for hours, _ in done], _best_so_far(points, [p for _, p in done]))
            colour = SERIES[i % 6]
            data.append(
                {
                    **line, "name": plotly_text(points.study.shown_name),
                    "line": {"color": colour, "shape": "hv", "width": 2.5, "dash": DASHES[i % 6]},
                }
            )  # fmt: skip
    if not data:
        return ReportFigure(name, title, missing=NO_FINISHED)
    caption = "The best finished trial so far, over the device hours of the trials. The line that rises first won."
    axes = layout(
        xaxis={"title": {"text": "device hours of trials"}, "rangemode": "tozero"},
        yaxis={"title": {"text": studies[0].value_title}},
        showlegend=True,
    )
    return ReportFigure(name, title, caption, data, axes)
