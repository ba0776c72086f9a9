"""The figures of a report: the frontier, how the search came to it, learning curves, which parameters mattered."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Sequence

from bigbatch.tune.report.figure import (
    BLUE,
    GREY,
    ORANGE,
    OUTCOMES,
    TEAL,
    ReportFigure,
    Values,
    fewer_trials,
    hover,
    layout,
    log_axis,
    marks,
    plotly_text,
    value_axis,
)
from bigbatch.tune.report.rate_figures import rate_figures
from bigbatch.tune.report.recorded_study import CONTINUED, FINISHED, RecordedStudy
from bigbatch.tune.runs.frontier import value_of_trial
from bigbatch.tune.runs.learned import CHOSEN
from bigbatch.tune.runs.run import Kind, Run

NO_FRONTIER = "It needs a finished trial of a search with a choice of batches and one objective."
MOST_CURVES = 300
LEAST_TRIALS = 8
"""PED-ANOVA compares the best tenth of the finished trials with all of them; with fewer it says nothing."""
MOST_COMPARED = 1500


def all_figures(study: RecordedStudy) -> list[ReportFigure]:
    """Every figure of a study, also those that say why they show nothing."""
    makers = (frontier, history_over_hours, learning_curves, parameter_importance)
    return [*(make(study) for make in makers), *rate_figures(study)]


def frontier(study: RecordedStudy) -> ReportFigure:
    """The reported value of the best trial of each frontier value, with its interval, and the value that chose it."""
    found = study.frontier
    if found is None or found.facts.name is None:
        return ReportFigure("frontier", "The frontier", missing=NO_FRONTIER)
    facts, objective = found.facts, found.facts.objective
    best = [(row.value, row.best) for row in found.rows if row.best]
    values = [value for value, _ in best]
    numbers = [value for value in values if isinstance(value, (int, float)) and not isinstance(value, bool)]
    is_numeric = len(numbers) == len(values) and min(numbers) > 0
    x = values if is_numeric else [plotly_text(value) for value in values]
    shown = [one.reported.value for _, one in best]
    chosen = [one.objective for _, one in best]
    highs = [one.reported.high or one.reported.value for _, one in best]
    lows = [one.reported.low or one.reported.value for _, one in best]
    above = [high - value for high, value in zip(highs, shown, strict=True)]
    below = [value - low for low, value in zip(lows, shown, strict=True)]
    dots = fewer_trials(study, study.best_first)
    at = [value_of_trial(run, facts) for run in dots]
    data: list[Values] = [
        marks(study, dots, at if is_numeric else [plotly_text(value) for value in at], [run.value for run in dots],
              name="finished trials", marker={"color": GREY, "size": 6, "opacity": 0.55}),
        {
            "type": "scatter", "mode": "lines+markers", "name": "best of each", "x": x, "y": shown,
            "error_y": {"type": "data", "symmetric": False, "array": above, "arrayminus": below, "thickness": 1.6},
            "text": [f"<b>{plotly_text(value)}</b>: {objective.worth(one.reported.value)} (trial {one.trial}; "
                     f"{objective.worth(one.chosen_at)} when chosen)" for value, one in best],
            "hovertemplate": "%{text}<extra></extra>", "line": {"color": BLUE, "width": 2},
            "marker": {"color": BLUE, "size": 9},
        },
    ]  # fmt: skip
    caption = f"Blue: the reported value of the best trial of each {facts.word}, with its 95 % interval if it has one. "
    if any(one.reported.by != CHOSEN for _, one in best):
        data.append(
            {
                "type": "scatter", "mode": "markers", "name": "by what chose", "x": x, "y": chosen, "hoverinfo": "skip",
                "marker": {"symbol": "diamond-open", "size": 9, "color": TEAL, "line": {"width": 2}},
            }
        )  # fmt: skip
    if found.answer_row is not None and found.answer_best is not None:
        answer = x[values.index(found.answer_row.value)]
        data.append(
            {
                "type": "scatter", "mode": "markers", "name": "the answer", "x": [answer],
                "y": [found.answer_best.reported.value], "hoverinfo": "skip",
                "marker": {"symbol": "circle-open", "size": 20, "color": ORANGE, "line": {"width": 3}},
            }
        )  # fmt: skip
        tolerance = facts.tolerance.words(objective.metric)
        which = "largest" if len(numbers) == len(values) else "last"
        caption += f"The ring is the {which} {facts.word} within {tolerance} of the best, by the values that choose. "
    caption += "Grey dots: all finished trials, by the value that chooses."
    axis = (
        log_axis(plotly_text(facts.name), numbers, numbers)
        if is_numeric
        else {"title": {"text": plotly_text(facts.name)}, "type": "category", "categoryarray": x}
    )
    axes = layout(xaxis=axis, yaxis=value_axis(objective, [*lows, *highs, *chosen, *(run.value for run in dots)]))
    return ReportFigure("frontier", f"The frontier: how good each {facts.word} gets", caption, data, axes)


def history_over_hours(study: RecordedStudy) -> ReportFigure:
    """The best so far over the device hours that trials have used."""
    name, title = "history-over-hours", f"The best so far, over {study.hours}"
    ended = [run for run in study.all if run.datetime_complete and run.gpu_hours is not None]
    hours, done, places, best = 0.0, list[Run](), list[float](), list[float]()
    for run in sorted(ended, key=lambda run: (str(run.datetime_complete), run.number)):
        hours += run.gpu_hours or 0.0
        value = None if run.kind == Kind.CONFIRMATION else study.final(run)
        if value is not None:
            done.append(run)
            places.append(hours)
            best.append(max([value, *best[-1:]], key=study.objectives.first.gain))
    if not done:
        return ReportFigure(name, title, missing="No trial has finished with its hours noted.")
    # To the last trial that ended: hours that brought nothing are seen, too.
    line: Values = {
        "type": "scatter", "mode": "lines", "name": "best so far", "x": [*places, hours], "y": [*best, best[-1]],
        "line": {"color": ORANGE, "shape": "hv", "width": 2.5}, "hoverinfo": "skip",
    }  # fmt: skip
    values = [run.value for run in done]
    dots = marks(study, done, places, values, name="finished", marker={"color": BLUE, "size": 7, "opacity": 0.8})
    caption = (
        f"Each mark is a finished trial, over the {study.hours} of all trials until then. The line is the best "
        "so far: where it is flat for long, more trials of this kind bring little."
    )
    axes = layout(
        xaxis={"title": {"text": f"{study.hours} of trials"}, "rangemode": "tozero"},
        yaxis=value_axis(study.objectives.first, values),
    )
    return ReportFigure(name, title, caption, [dots, line], axes)


def learning_curves(study: RecordedStudy) -> ReportFigure:
    """The watched metric of each trial over its epochs, with a mark where it ended."""
    name, title = "learning-curves", "Learning curves"
    having = [run for run in study.searched if study.curve(run)]
    if not having:
        return ReportFigure(name, title, missing="No trial has reported an epoch yet.")
    chosen = fewer_trials(study, having, MOST_CURVES)
    groups = {outcome: [run for run in chosen if study.outcome(run) == outcome] for outcome in reversed(OUTCOMES)}
    # The finished ones last, above the others.
    data = [_curves(study, group, outcome) for outcome, group in groups.items() if group]
    left_out = (
        f" It shows {len(chosen):,} of {len(having):,} trials: the best ones." if len(chosen) < len(having) else ""
    )
    caption = (
        "Each line is a trial. The mark at its end says how it ended; point at it for the reason. A paused trial that "
        f"was continued goes on in its continuation, which begins with the same epochs.{left_out}"
    )
    values = [value for run in chosen for _, value in study.curve(run)]
    axes = layout(
        height=460, xaxis={"title": {"text": "epoch"}}, yaxis=value_axis(study.objectives.first.shown, values)
    )
    return ReportFigure(name, title, caption, data, axes)


def _curves(study: RecordedStudy, group: Sequence[Run], outcome: str) -> Values:
    """The curves of one kind as one line with gaps: hundreds of separate ones would be slow. Each end has a mark."""
    colour, symbol = OUTCOMES[outcome]
    size = 5 if outcome in (FINISHED, CONTINUED) else 9
    x, y, sizes, texts = list[int | None](), list[float | None](), list[int](), list[str]()
    for run in group:
        curve = study.curve(run)
        x += [*(epoch for epoch, _ in curve), None]
        y += [*(value for _, value in curve), None]
        sizes += [*[0] * (len(curve) - 1), size, 0]
        texts += [hover(study, run)] * (len(curve) + 1)
    return {
        "type": "scatter", "mode": "lines+markers", "x": x, "y": y, "name": f"{outcome} ({len(group)})", "text": texts,
        "hovertemplate": "%{text}<extra></extra>", "line": {"color": colour, "width": 1.2}, "opacity": 0.7,
        "marker": {"color": colour, "symbol": symbol, "size": sizes, "line": {"width": 1.5, "color": colour}},
    }  # fmt: skip


def parameter_importance(study: RecordedStudy) -> ReportFigure:
    """Which parameters decided whether a trial was among the best."""
    name, title, count = "parameter-importance", "Which parameters mattered", len(study.best_first)
    shares = _importances(study) if count >= LEAST_TRIALS else {}
    if not shares:
        reason = f"It needs {LEAST_TRIALS} finished trials that differ in their values; there are {count}."
        return ReportFigure(name, title, missing=reason)
    order = sorted(shares, key=lambda parameter: shares[parameter])
    data: Values = {
        "type": "bar", "orientation": "h", "y": [plotly_text(one) for one in order], "marker": {"color": BLUE},
        "x": [100 * shares[one] for one in order], "hovertemplate": "%{y}: %{x:.0f} %<extra></extra>",
    }  # fmt: skip
    caption = (
        "How much each parameter decided whether a trial was among the best tenth (PED-ANOVA, by Optuna: arXiv "
        "2304.10255; of parameters that only some trials have, arXiv 2601.20800). With fewer than 50 trials the order "
        f"of parameters with similar shares is mostly chance; there are {count}."
    )
    axes = layout(height=max(260, 90 + 24 * len(order)), xaxis={"title": {"text": "share of the importance (%)"}})
    return ReportFigure(name, title, caption, [data], axes)


def _importances(study: RecordedStudy) -> dict[str, float]:
    """Share of each parameter; empty where the values say nothing. Of very many trials every second, third … counts."""
    import optuna
    from optuna.distributions import json_to_distribution

    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.CRITICAL)
    try:
        with warnings.catch_warnings(action="ignore"), contextlib.suppress(ValueError, RuntimeError):
            kept = optuna.create_study(direction=study.objectives.first.direction)
            for run in study.best_first[:: 1 + len(study.best_first) // MOST_COMPARED]:
                kinds = {parameter: json_to_distribution(kind) for parameter, kind in run.distributions.items()}
                kept.add_trial(optuna.create_trial(params=run.params, distributions=kinds, value=run.value))
            evaluator = optuna.importance.PedAnovaImportanceEvaluator()
            found = optuna.importance.get_param_importances(kept, evaluator=evaluator, normalize=False)
            total = sum(found.values())
            return {parameter: value / total for parameter, value in found.items()} if total > 0 else {}
    finally:
        optuna.logging.set_verbosity(level)
    return {}
