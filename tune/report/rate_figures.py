"""The learning rates that did well at each batch, against the published laws, one figure for each optimizer."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bigbatch.base import json_values
from bigbatch.tune.report.figure import (
    BLUE,
    GREY,
    PURPLE,
    RED,
    TEAL,
    ReportFigure,
    Values,
    fewer_trials,
    layout,
    log_axis,
    marks,
    plotly_text,
)
from bigbatch.tune.report.recorded_study import DIVERGENT, RecordedStudy
from bigbatch.tune.runs.run import Run

NAME = "rate-by-batch"
BEST_SHARE, MOST_OF_BATCH = 0.25, 5
"""The law is fitted to the best quarter of the finished trials of each batch, at most five."""
LEAST_BATCHES = 3
"""Any power meets two points."""
PUBLISHED_MOMENTUM, PUBLISHED_TRUST = 0.9, 0.001

Law = tuple[str, Callable[[float], float]]
"""A name for the legend, and the rate at a global batch."""
PUBLISHED: dict[str, tuple[Law, ...]] = {
    "lars": (("MLPerf LARS: 0.44 · B^0.39", lambda b: 0.44 * b**0.39),),
    "sgd": (
        ("Goyal et al. 2017: 0.1 · B/256", lambda b: 0.1 * b / 256),
        ("square root from Goyal at 256", lambda b: 0.1 * math.sqrt(b / 256)),
    ),
    "lamb": (("square root from RSB: 5e-3 · √(B/2048)", lambda b: 5e-3 * math.sqrt(b / 2048)),),
    "adamw": (("square root from DeiT: 1e-3 · √(B/1024)", lambda b: 1e-3 * math.sqrt(b / 1024)),),
}
"""At this momentum, and for LARS with this trust coefficient; sources: ``search_spaces/priors.py``."""


@dataclass(frozen=True)
class FittedLaw:
    """rate = factor · batch^exponent, by least squares in logarithms."""

    factor: float
    exponent: float
    error: float
    """Standard error of the exponent."""
    batches: int

    def rate(self, batch: float) -> float:
        """The law's rate."""
        return float(self.factor * batch**self.exponent)


def comparable_rate(run: Run) -> float | None:
    """The peak learning rate that takes equal steps with the momentum and the trust coefficient of publications.

    With SGD and LARS the noise depends on lr / (1 − momentum) (Smith et al. 2018, arXiv 1711.00489). LARS's step is
    lr × its trust coefficient.
    """
    rate, section = run.peak_lr, json_values.mapping(run.config, "optimizer")
    if rate is None or rate <= 0:
        return None
    if run.optimizer in ("sgd", "lars"):
        momentum = json_values.number(section, "momentum", PUBLISHED_MOMENTUM)
        rate *= (1 - PUBLISHED_MOMENTUM) / max(1e-6, 1 - momentum)
    if run.optimizer == "lars":
        rate *= json_values.number(section, "trust_coefficient", PUBLISHED_TRUST) / PUBLISHED_TRUST
    return rate


def fitted_law(study: RecordedStudy, optimizer: str) -> FittedLaw | None:
    """The scaling law of the best trials' rates; None with finished trials at fewer than three batches.

    The rate of a batch is the geometric mean over the best quarter of its finished trials, at most five.
    """
    by_batch: dict[int, list[float]] = {}
    for one in study.best_first:
        if one.optimizer == optimizer and one.batch and (rate := comparable_rate(one)):
            by_batch.setdefault(one.batch, []).append(math.log(rate))
    if len(by_batch) < LEAST_BATCHES:
        return None
    x, y = [], []
    for batch, rates in by_batch.items():
        best = rates[: min(MOST_OF_BATCH, max(1, round(BEST_SHARE * len(rates))))]
        x.append(math.log(batch))
        y.append(sum(best) / len(best))
    from scipy.stats import linregress  # slow to import

    found = linregress(x, y)
    return FittedLaw(math.exp(found.intercept), float(found.slope), float(found.stderr), len(x))


def rate_figures(study: RecordedStudy) -> list[ReportFigure]:
    """A map of rate and batch for each optimizer that was tried."""
    found = [_rate_by_batch(study, optimizer) for optimizer in study.optimizers]
    return found or [ReportFigure(NAME, "Learning rate and batch", missing="No trial has a learning rate.")]


def _rate_by_batch(study: RecordedStudy, optimizer: str) -> ReportFigure:
    part = "".join(c if c.isalnum() and c.isascii() else "-" for c in optimizer.lower())[:40] or "other"
    name, title = f"{NAME}-{part}", f"Learning rate and batch: {optimizer.upper()[:40]}"
    having = [run for run in study.searched if run.optimizer == optimizer and run.batch and comparable_rate(run)]
    chosen = fewer_trials(study, having)
    done = [run for run in chosen if study.final(run) is not None]
    diverged = [run for run in chosen if study.outcome(run) == DIVERGENT]
    if not done:
        return ReportFigure(name, title, missing="No trial of this optimizer has finished.")

    def marked(runs: Sequence[Run], name: str, **marker: object) -> Values:
        rates = [comparable_rate(run) for run in runs]
        return marks(study, runs, [run.batch for run in runs], rates, name=name, marker=marker)

    short = [run for run in chosen if run not in done and run not in diverged]
    values = [run.value for run in done]
    data = [
        marked(short, "not finished", color=GREY, symbol="circle-open", size=7),
        {**marked(done, "finished", color=values, coloraxis="coloraxis", size=10), "showlegend": False},
        marked(diverged, DIVERGENT, color=RED, symbol="x", size=8),
    ]
    batches = sorted({run.batch for run in having if run.batch})
    law = fitted_law(study, optimizer)
    laws: list[Law] = [*PUBLISHED.get(optimizer, ())]
    if law is not None:
        laws.insert(0, (f"this study: {law.factor:.2g} · B^{law.exponent:.2f}", law.rate))
    colours, dashes = (BLUE, TEAL, PURPLE)[law is None :], ("solid", "dash", "dashdot")[law is None :]
    shown = [*map(comparable_rate, having), *(rule(batch) for _, rule in laws for batch in batches)]
    for (label, rule), colour, dash in zip(laws, colours, dashes, strict=False):
        data.append(
            {
                "type": "scatter", "mode": "lines" if len(batches) > 1 else "markers", "x": batches,
                "y": [rule(batch) for batch in batches], "line": {"color": colour, "dash": dash, "width": 2},
                "name": plotly_text(label), "hovertemplate": "%{y:.3g}<extra></extra>",
            }
        )  # fmt: skip
    metric = study.objectives.first.metric
    axes = layout(
        height=460,
        xaxis=log_axis("global batch (images)", batches, batches),
        yaxis=log_axis("comparable peak learning rate", shown),
        coloraxis={"reversescale": study.objectives.first.direction == "minimize",
                   "colorbar": {"title": {"text": plotly_text(metric.short)}}},
    )  # fmt: skip
    return ReportFigure(name, title, f"{_reading(optimizer)} {_law_in_words(law)}", data, axes)


def _reading(optimizer: str) -> str:
    also = ", and to a trust coefficient of 0.001" if optimizer == "lars" else ""
    words = f" Rates are converted to momentum 0.9{also}, so that they compare with the published ones."
    return (
        "Filled marks are finished trials: the darker (on a dark page: the brighter) the better. Rings did not finish, "
        f"crosses diverged.{words if optimizer in ('sgd', 'lars') else ''}"
    )


def _law_in_words(law: FittedLaw | None) -> str:
    if law is None:
        return "A law of this study needs finished trials at three batches."
    exponent = f"{law.exponent:.2f} ± {law.error:.2f} (standard error, {law.batches} batches)"
    return (
        f"The blue line is fitted to the best quarter of each batch; its exponent is {exponent}. "
        "0.5 is the square-root rule, 1 the linear one."
    )
