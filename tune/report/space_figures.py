"""Figures of the space: which parameters mattered, and which values did well."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Sequence

import optuna
from optuna.distributions import json_to_distribution
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

from bigbatch.tune.report.figure import (
    GREY,
    HATCHED,
    HATCHES,
    RED,
    SERIES,
    ReportFigure,
    Values,
    batch_places,
    hover,
    layout,
    plotly_text,
)
from bigbatch.tune.report.recorded_study import DIVERGENT, StudyPoints
from bigbatch.tune.runs.run import Run

LEAST_TRIALS = 8
"""PED-ANOVA compares the best tenth of the finished trials with all of them; with fewer it says nothing."""
MOST_COMPARED = 1500
SURE_TRIALS = 50
"""With so many trials the best tenth has five, which Optuna recommends at least."""
ALL = "all optimizers"


def parameter_importance(points: StudyPoints) -> ReportFigure:
    """Which parameters decided whether a trial was among the best, for each optimizer."""
    name, title = "parameter-importance", "Which parameters mattered"
    every = ALL if points.optimizers else "all"
    groups = {every: points.finished} if len(points.optimizers) != 1 else {}
    groups |= {o: tuple(p for p in points.finished if p.optimizer == o) for o in points.optimizers}
    found = {g: _importances(points, trials) for g, trials in groups.items() if len(trials) >= LEAST_TRIALS}
    found = {g: values for g, values in found.items() if values}
    if not found:
        most = max((len(trials) for trials in groups.values()), default=0)
        reason = f"It needs {LEAST_TRIALS} finished trials that differ in their values; there are {most}."
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
        f"were tried did not matter, not that none would.{doubt}"
    )
    axes = layout(
        height=max(260, 90 + 18 * len(order) * max(1, len(found))),
        barmode="group",
        xaxis={"title": {"text": "share of the importance (%)"}, "rangemode": "tozero"},
        yaxis={"title": {"text": ""}, "ticklabelposition": "outside"},
        legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "traceorder": "normal"},
    )
    return ReportFigure(name, title, caption, data, axes)


def _importances(points: StudyPoints, trials: Sequence[Run]) -> dict[str, float]:
    """Share of each parameter; empty where the values say nothing. Of very many trials every second, third … counts."""
    trials = [one for one in trials[:: 1 + len(trials) // MOST_COMPARED] if one.distributions]  # tables have none
    with quiet_warnings():
        direction = points.study.objectives.first.direction
        study = optuna.create_study(direction=direction, sampler=optuna.samplers.RandomSampler(seed=0))
        for one in trials:
            kinds = {name: json_to_distribution(kind) for name, kind in one.distributions.items()}
            made = optuna.trial.create_trial(params=one.params, distributions=kinds, value=one.value)
            study.add_trial(made)
        found = get_param_importances(study, evaluator=PedAnovaImportanceEvaluator(), normalize=False)
    total = sum(found.values())
    return {name: value / total for name, value in found.items()} if total > 0 else {}


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
