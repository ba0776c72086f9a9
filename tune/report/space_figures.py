"""Figures of the space: which parameters mattered, and which values did well."""

from __future__ import annotations

import contextlib
import math
import statistics
import warnings
from collections.abc import Iterator, Mapping, Sequence

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, json_to_distribution
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

from bigbatch.base import json_values
from bigbatch.tune.report.figure import (
    BLUE,
    GREY,
    HATCHED,
    HATCHES,
    ORANGE,
    RED,
    SERIES,
    SYMBOLS,
    ReportFigure,
    Values,
    batch_places,
    fewer_trials,
    hover,
    layout,
    log_axis,
    number_text,
    plotly_text,
    thinned_words,
    ticks_of_batches,
)
from bigbatch.tune.report.recorded_study import DIVERGENT, StudyPoints, warmup_share
from bigbatch.tune.runs.run import Run

LEAST_TRIALS = 8
"""PED-ANOVA compares the best tenth of the finished trials with all of them; with fewer it says nothing."""
MOST_COMPARED = 1500
MOST_AXES = 14
MOST_LINES = 300
SURE_TRIALS = 50
"""With so many trials the best tenth has five, which Optuna recommends at least."""
ALL = "all optimizers"


def parameter_importance(points: StudyPoints) -> ReportFigure:
    """Which parameters decided whether a trial was among the best, for each optimizer."""
    name, title = "parameter-importance", "Which parameters mattered"
    compared, which = points.compared(LEAST_TRIALS)
    among = [p for p in points.searched if p.number in compared]
    every = ALL if points.optimizers else "all"
    groups = {every: among} if len(points.optimizers) != 1 else {}
    groups |= {o: [p for p in among if p.optimizer == o] for o in points.optimizers}
    found = {g: _importances(points, trials, compared) for g, trials in groups.items() if len(trials) >= LEAST_TRIALS}
    found = {g: values for g, values in found.items() if values}
    if not found:
        most = max((len(trials) for trials in groups.values()), default=0)
        reason = f"It needs {LEAST_TRIALS} trials that differ in their values; there are {most}."
        return ReportFigure(name, title, missing=reason)
    order = sorted(
        {n for values in found.values() for n in values}, key=lambda n: max(v.get(n, 0) for v in found.values())
    )
    data: list[Values] = []
    for i, (group, values) in enumerate(found.items()):
        count = len(groups[group])
        data.append(
            {
                "type": "bar", "orientation": "h", "name": f"{plotly_text(group)} ({count} trials)",
                "y": [plotly_text(n) for n in order if n in values],
                "x": [100 * values[n] for n in order if n in values],
                "marker": {"color": SERIES[i % 6], "pattern": {**HATCHED, "shape": HATCHES[i % 6]}},
                "hovertemplate": "%{y}: %{x:.0f} %<extra></extra>",
            }
        )  # fmt: skip
    few = min(len(groups[group]) for group in found) < SURE_TRIALS
    doubt = f" With fewer than {SURE_TRIALS} trials the order of near ones is mostly chance." if few else ""
    caption = (
        "How much each parameter decided whether a trial was among the best tenth (PED-ANOVA, Watanabe et al. 2023, "
        "arXiv 2304.10255, by Optuna). The bars of one colour sum to 100 %. A short bar means that the values that "
        f"were tried did not matter, not that none would.{doubt}{which and f' {which}'}"
    )
    axes = layout(
        height=max(260, 90 + 18 * len(order) * max(1, len(found))),
        barmode="group",
        xaxis={"title": {"text": "share of the importance (%)"}, "rangemode": "tozero"},
        yaxis={"title": {"text": ""}, "ticklabelposition": "outside"},
        legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "traceorder": "normal"},
    )
    return ReportFigure(name, title, caption, data, axes)


def _importances(points: StudyPoints, trials: Sequence[Run], values: Mapping[int, float]) -> dict[str, float]:
    """Share of each parameter; empty where the values say nothing. Of very many trials every second, third … counts."""
    trials = trials[:: 1 + len(trials) // MOST_COMPARED]
    with quiet_warnings():
        direction = points.study.objectives.first.direction
        study = optuna.create_study(direction=direction, sampler=optuna.samplers.RandomSampler(seed=0))
        for one in trials:
            made = optuna.trial.create_trial(params=one.params, distributions=_opened(one), value=values[one.number])
            study.add_trial(made)
        found = get_param_importances(study, evaluator=PedAnovaImportanceEvaluator(), normalize=False)
    total = sum(found.values())
    return {name: value / total for name, value in found.items()} if total > 0 else {}


def _opened(trial: Run) -> dict[str, BaseDistribution]:
    """The trial's distributions as Optuna's objects."""
    return {name: json_to_distribution(kind) for name, kind in trial.distributions.items()}


@contextlib.contextmanager
def quiet_warnings() -> Iterator[None]:
    """No warning and no log line of Optuna."""
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.CRITICAL)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        optuna.logging.set_verbosity(level)


# Parallel coordinates


def _stacked_axes(
    points: StudyPoints, names: Sequence[str], ranges: Mapping[str, BaseDistribution], values: Mapping[int, float]
) -> Values:
    """A row for each parameter, and one for the value."""
    rows = [*names, points.value_title]
    return layout(
        height=90 + 52 * len(rows),
        xaxis={"range": [-0.04, 1.04], "visible": False, "fixedrange": True},
        yaxis={
            "tickvals": list(range(len(rows))), "ticktext": [plotly_text(row) for row in rows], "fixedrange": True,
            "range": [len(rows) - 0.35, -0.5], "title": {"text": ""}, "showline": False,
        },
        annotations=_axis_ends(points, names, ranges, values),
        margin={"l": 60, "r": 16, "t": 8, "b": 30},
    )  # fmt: skip


def parallel_coordinates(points: StudyPoints) -> ReportFigure:
    """Every trial as a line through its parameters; the axes lie one below the other, which suits a phone too."""
    name, title = "parallel-coordinates", "Trials across all parameters"
    values, which = points.compared(LEAST_TRIALS)
    ranges = _distributions(points, values)
    if len(values) < 2 or not ranges:
        return ReportFigure(name, title, missing="It needs two trials with values and parameters.")
    gain = points.study.objectives.first.gain
    among = [p for p in points.searched if p.number in values]
    order = sorted(among, key=lambda p: (-gain(values[p.number]), p.number))
    done = fewer_trials(among, order, MOST_LINES)
    names = sorted(ranges, key=lambda n: -sum(n in p.params for p in among))[:MOST_AXES]
    rank = {p.number: i / len(order) for i, p in enumerate(order)}
    bands = (
        ("the others", GREY, 0.35, 1.0),
        ("best quarter", BLUE, 0.75, 1.3),
        ("best tenth", ORANGE, 1.0, 2.4),
    )
    data: list[Values] = []
    for label, colour, opacity, width in bands:
        group = [p for p in done if _band(rank[p.number], len(order)) == label]
        if group:
            x, y, text = _zigzag(points, group, names, ranges, values)
            data.append(
                {
                    "type": "scatter", "mode": "lines", "name": f"{label} ({len(group)})", "x": x, "y": y,
                    "text": text, "hovertemplate": "%{text}<extra></extra>", "line": {"color": colour, "width": width},
                    "opacity": opacity * max(0.25, min(1.0, 25 / len(group))),
                }
            )  # fmt: skip
    caption = (
        "Each line is a trial, from its first parameter at the top to its value at the bottom. On each axis "
        "the smallest value is left and the largest right; a line skips parameters that its optimizer does not have. "
        "Where the orange lines meet in a narrow place, that parameter has a clear optimum."
        f"{thinned_words(len(done), len(among))}{which and f' {which}'}"
    )
    axes = _stacked_axes(points, names, ranges, values)
    return ReportFigure(name, title, caption, data, axes)


def _band(rank: float, count: int) -> str:
    if rank < max(0.1, 0.5 / count):
        return "best tenth"
    return "best quarter" if rank < 0.25 else "the others"


def _distributions(points: StudyPoints, among: Mapping[int, float]) -> dict[str, BaseDistribution]:
    """Of each parameter that varies among the trials with these numbers."""
    found: dict[str, BaseDistribution] = {}
    met: dict[str, set[str]] = {}
    for trial in points.searched:
        if trial.number in among:
            found |= _opened(trial)
            for key, value in trial.params.items():
                met.setdefault(key, set()).add(repr(value))
    return {key: found[key] for key in met if len(met[key]) > 1 and key in found}


def _place(value: object, kind: BaseDistribution) -> float | None:
    """From 0 to 1 on its axis."""
    if isinstance(kind, CategoricalDistribution):
        choices = list(kind.choices)
        return choices.index(value) / max(1, len(choices) - 1) if value in choices else None
    low, high, log = float(getattr(kind, "low", 0)), float(getattr(kind, "high", 1)), getattr(kind, "log", False)
    if not isinstance(value, (int, float)) or high <= low or (log and (value <= 0 or low <= 0)):
        return None
    if log:
        low, high, value = math.log(low), math.log(high), math.log(value)
    return min(1.0, max(0.0, (value - low) / (high - low)))


def _value_range(points: StudyPoints, values: Mapping[int, float]) -> tuple[float, float]:
    shown = [points.shown(value) or 0.0 for value in values.values()]
    return min(shown), max(shown)


def _zigzag(
    points: StudyPoints,
    group: Sequence[Run],
    names: Sequence[str],
    ranges: Mapping[str, BaseDistribution],
    values: Mapping[int, float],
) -> tuple[list[float | None], list[float | None], list[str]]:
    low, high = _value_range(points, values)
    x: list[float | None] = []
    y: list[float | None] = []
    texts: list[str] = []
    for one in group:
        spread = ((one.number * 0.618) % 1 - 0.5) * 0.02  # equal categories stay apart
        about = hover(points, one)
        for row, name in enumerate(names):
            place = _place(one.params.get(name), ranges[name]) if name in one.params else None
            if place is not None:
                x.append(place + (spread if isinstance(ranges[name], CategoricalDistribution) else 0.0))
                y.append(row)
                texts.append(f"{plotly_text(name)} = {plotly_text(_short(one.params[name]))}<br>{about}")
        x += [((points.shown(values[one.number]) or 0.0) - low) / (high - low or 1.0), None]
        y += [len(names), None]
        texts += [about, ""]
    return x, y, texts


def _short(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)[:24]


def _axis_ends(
    points: StudyPoints, names: Sequence[str], ranges: Mapping[str, BaseDistribution], values: Mapping[int, float]
) -> list[Values]:
    """The smallest and the largest value, or all categories, written above each axis."""
    found: list[Values] = []
    for row, name in enumerate(names):
        kind = ranges[name]
        if isinstance(kind, CategoricalDistribution):
            choices = list(kind.choices)
            many = len(choices) > 5
            marks = [(i / max(1, len(choices) - 1), _short(c)) for i, c in enumerate(choices)]
            marks = [marks[0], marks[-1]] if many else marks
        else:
            marks = [(0.0, _short(getattr(kind, "low", 0))), (1.0, _short(getattr(kind, "high", 1)))]
        found += [_mark(place, row, text) for place, text in marks]
    low, high = _value_range(points, values)
    return [*found, _mark(0.0, len(names), number_text(low)), _mark(1.0, len(names), number_text(high))]


def _mark(place: float, row: int, text: str) -> Values:
    return {
        "x": place, "y": row, "text": plotly_text(text), "showarrow": False, "yshift": 11, "font": {"size": 11},
        "xanchor": "left" if place < 0.05 else "right" if place > 0.95 else "center", "opacity": 0.75,
    }  # fmt: skip


# Batch against another quantity


def warmup_by_batch(points: StudyPoints) -> ReportFigure:
    """The share of warmup of each trial over its batch."""
    name, title = "warmup-by-batch", "Warmup and batch"
    having = [p for p in points.finished if p.batch and warmup_share(p) is not None]
    if len(having) < 2:
        return ReportFigure(name, title, missing="It needs two finished trials with a warmup in epochs.")
    chosen = fewer_trials(having, points.best_first)
    caption = (
        "Each mark is a finished trial: how much of its run was warmup, over its batch. The darker (on a dark page: "
        "the brighter) the better; the best trial of each batch has a ring. Large batches usually want a longer warmup."
    )
    shares = [100 * (warmup_share(p) or 0.0) for p in chosen]
    axes = layout(
        xaxis=ticks_of_batches([p.batch for p in having if p.batch]),
        yaxis={"title": {"text": "warmup (% of the run)"}, "rangemode": "tozero"},
        coloraxis=colour_axis(points),
        showlegend=False,
    )
    return ReportFigure(name, title, caption, [coloured(points, chosen, shares), _rings(points, chosen, shares)], axes)


def _noise_scale(run: Run) -> float:
    """The median over the epochs; 0 if it was not measured."""
    found = [json_values.number(record, "noise_scale", math.nan) for record in run.records]
    return statistics.median([scale for scale in found if math.isfinite(scale)] or [0.0])


def noise_by_batch(points: StudyPoints) -> ReportFigure:
    """The gradient noise scale of each trial over its batch."""
    name, title = "noise-by-batch", "Gradient noise scale and batch"
    noise = {p.number: scale for p in points.searched if p.batch and (scale := _noise_scale(p)) > 0}
    having = [p for p in points.searched if p.number in noise]
    if not having:
        return ReportFigure(name, title, missing="No trial measured the gradient noise scale.")
    data: list[Values] = []
    for i, optimizer in enumerate(points.optimizers):
        group = [p for p in fewer_trials(having, points.best_first) if p.optimizer == optimizer]
        if group:
            data.append(
                {
                    "type": "scatter", "mode": "markers", "name": plotly_text(optimizer), "x": batch_places(group),
                    "y": [noise[p.number] for p in group], "text": [hover(points, p) for p in group],
                    "hovertemplate": "noise scale %{y:,.0f} images<br>%{text}<extra></extra>",
                    "marker": {"color": SERIES[i % 6], "symbol": SYMBOLS[i % 6], "size": 9, "opacity": 0.85},
                }
            )  # fmt: skip
    ends = [points.batches[0], points.batches[-1]]
    data.append(
        {
            "type": "scatter", "mode": "lines", "name": "noise scale = batch", "x": ends, "y": ends,
            "line": {"color": GREY, "dash": "dash", "width": 1.5}, "hoverinfo": "skip",
        }
    )  # fmt: skip
    caption = (
        "The gradient noise scale (McCandlish et al. 2018, arXiv 1812.06162) is the batch at which half of a gradient "
        "is noise: the median over the epochs of each trial. Above the dashed line a larger batch still saves steps. "
        "Below it a larger batch saves few steps and costs more images."
    )
    axes = layout(
        xaxis=ticks_of_batches(points.batches),
        yaxis=log_axis("noise scale (images)", [*noise.values(), *ends]),
    )
    return ReportFigure(name, title, caption, data, axes)


def coloured(points: StudyPoints, group: Sequence[Run], y: Sequence[float | None]) -> Values:
    """Marks over the batch whose colour is the objective."""
    return {
        "type": "scatter", "mode": "markers", "name": "finished", "x": batch_places(group), "y": list(y),
        "showlegend": False,
        "text": [hover(points, p) for p in group], "hovertemplate": "%{y:.3g}<br>%{text}<extra></extra>",
        "marker": {
            "color": [points.shown(p.value) for p in group], "coloraxis": "coloraxis", "size": 10,
            "line": {"color": GREY, "width": 1},
        },
    }  # fmt: skip


def diverged_marks(points: StudyPoints, group: Sequence[Run], y: Sequence[float | None]) -> Values:
    """Marks of the trials that diverged."""
    return {
        "type": "scatter", "mode": "markers", "name": DIVERGENT, "x": batch_places(group), "y": list(y),
        "text": [hover(points, p) for p in group], "hovertemplate": "%{y:.3g}<br>%{text}<extra></extra>",
        "marker": {"color": RED, "symbol": "x", "size": 8},
    }  # fmt: skip


def _rings(points: StudyPoints, group: Sequence[Run], y: Sequence[float]) -> Values:
    """Rings around the best trial of each batch, among marks at these heights."""
    rank = {p.number: i for i, p in enumerate(points.best_first)}
    best: dict[int, tuple[float, float]] = {}
    for one, across, up in sorted(
        zip(group, batch_places(group), y, strict=True), key=lambda mark: rank[mark[0].number]
    ):
        best.setdefault(one.batch or 0, (across, up))
    return {
        "type": "scatter", "mode": "markers", "x": [x for x, _ in best.values()], "y": [up for _, up in best.values()],
        "marker": {"symbol": "circle-open", "size": 18, "color": ORANGE, "line": {"width": 2.5}}, "hoverinfo": "skip",
        "name": "best of its batch",
    }  # fmt: skip


def colour_axis(points: StudyPoints) -> Values:
    """From the worst quarter to the best trial: the colours tell good trials apart, the bad ones look alike."""
    values = sorted(points.shown(p.value) or 0.0 for p in points.best_first)
    quarter = len(values) // 4
    up = points.study.objectives.first.direction == "maximize"
    low, high = (values[quarter], values[-1]) if up else (values[0], values[-1 - quarter])
    if low == high:
        low, high = values[0], values[-1]
    short = "top-1 (%)" if points.is_percent else plotly_text(points.study.objectives.first.metric.short)
    return {
        "cmin": low,
        "cmax": high if high > low else low + 0.1,
        "reversescale": not up,
        "colorbar": {"title": {"text": short}},
    }
