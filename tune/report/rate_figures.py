"""The learning rates that did well at each batch, against the published laws, one figure for each optimizer."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from bigbatch.base import json_values
from bigbatch.tune.report.figure import (
    BLUE,
    GREY,
    PURPLE,
    TEAL,
    ReportFigure,
    Values,
    batch_places,
    fewer_trials,
    guarded,
    hover,
    layout,
    log_axis,
    plotly_text,
    thinned_words,
    ticks_of_batches,
)
from bigbatch.tune.report.recorded_study import DIVERGENT, StudyPoints
from bigbatch.tune.report.space_figures import colour_axis, coloured, diverged_marks
from bigbatch.tune.runs.run import Run

NAME = "rate-by-batch"
BEST_SHARE, MOST_OF_BATCH = 0.25, 5
"""The law is fitted to the best quarter of the finished trials of each batch, at most five."""
LEAST_BATCHES = 3
"""Any power meets two points."""
LINE_POINTS = 24
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
NADO = (32768, 7.05)
"""Nado et al. 2021, arXiv 2102.06356: Nesterov SGD."""


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


def fitted_law(points: StudyPoints, optimizer: str) -> FittedLaw | None:
    """The scaling law of the best trials' rates; None with finished trials at fewer than three batches.

    The rate of a batch is the geometric mean over the best quarter of its finished trials, at most five.
    """
    by_batch: dict[int, list[float]] = {}
    for one in points.best_first:
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


def rate_figures(points: StudyPoints) -> list[ReportFigure]:
    """A map of rate and batch for each optimizer that was tried."""
    found = [
        guarded(partial(_rate_by_batch, optimizer=optimizer), points, f"{NAME}-{_file_part(optimizer)}")
        for optimizer in points.optimizers
    ]
    missing = ReportFigure(NAME, "Learning rate and batch", missing="No trial has a learning rate.")
    return found or [missing]


def _rate_by_batch(points: StudyPoints, optimizer: str) -> ReportFigure:
    name, title = f"{NAME}-{_file_part(optimizer)}", f"Learning rate and batch: {optimizer.upper()[:40]}"
    having = [p for p in points.searched if p.optimizer == optimizer and p.batch and comparable_rate(p)]
    chosen = fewer_trials(having, points.best_first)
    done = [p for p in chosen if points.final(p) is not None]
    diverged = [p for p in chosen if points.outcome(p) == DIVERGENT]
    if not done:
        return ReportFigure(name, title, missing="No trial of this optimizer has finished.")
    short = [p for p in chosen if points.final(p) is None and points.outcome(p) != DIVERGENT]
    data: list[Values] = []
    if short:
        data.append(
            {
                "type": "scatter", "mode": "markers", "name": "not finished", "x": batch_places(short),
                "y": [comparable_rate(p) for p in short], "text": [hover(points, p) for p in short],
                "hovertemplate": "%{text}<extra></extra>",
                "marker": {"color": GREY, "symbol": "circle-open", "size": 7},
            }
        )  # fmt: skip
    data.append(coloured(points, done, [comparable_rate(p) for p in done]))
    if diverged:
        data.append(diverged_marks(points, diverged, [comparable_rate(p) for p in diverged]))
    batches = [p.batch for p in having if p.batch]
    law = fitted_law(points, optimizer)
    data += _lines(optimizer, batches, law)
    caption = f"{_reading(optimizer)} {_law_in_words(law)}{thinned_words(len(chosen), len(having))}"
    axes = layout(
        height=460,
        xaxis=ticks_of_batches(batches),
        yaxis=log_axis("comparable peak learning rate", map(comparable_rate, having)),
        coloraxis=colour_axis(points),
    )
    return ReportFigure(name, title, caption, data, axes)


def _file_part(name: str) -> str:
    return "".join(c if c.isalnum() and c.isascii() else "-" for c in name.lower())[:40] or "other"


def _lines(optimizer: str, batches: Sequence[int], law: FittedLaw | None) -> list[Values]:
    low, high = min(batches) / 1.2, max(batches) * 1.2
    grid = [low * (high / low) ** (i / (LINE_POINTS - 1)) for i in range(LINE_POINTS)]
    found: list[Values] = []
    if law is not None:
        label = f"this study: {law.factor:.2g} · B^{law.exponent:.2f}"
        found.append(_line(label, grid, [law.rate(b) for b in grid], BLUE, "solid"))
    colours, dashes = (TEAL, PURPLE), ("dash", "dashdot")
    for i, (label, rule) in enumerate(PUBLISHED.get(optimizer, ())):
        found.append(_line(label, grid, [rule(b) for b in grid], colours[i % 2], dashes[i % 2]))
    if optimizer == "sgd" and high > NADO[0] / 2:
        found.append(
            {
                "type": "scatter", "mode": "markers", "name": "Nado et al. 2021", "x": [NADO[0]], "y": [NADO[1]],
                "marker": {"symbol": "star", "size": 14, "color": PURPLE}, "hovertemplate": "%{y}<extra>Nado</extra>",
            }
        )  # fmt: skip
    return found


def _line(label: str, x: Sequence[float], y: Sequence[float], colour: str, dash: str) -> Values:
    return {
        "type": "scatter", "mode": "lines", "name": plotly_text(label), "x": list(x), "y": list(y),
        "line": {"color": colour, "dash": dash, "width": 2}, "hovertemplate": "%{y:.3g}<extra></extra>",
    }  # fmt: skip


def _reading(optimizer: str) -> str:
    also = ", and to a trust coefficient of 0.001" if optimizer == "lars" else ""
    words = f" Rates are converted to momentum 0.9{also}, so that they compare with the published ones."
    return (
        "Filled marks are finished trials: the darker (on a dark page: the brighter) the better. Rings did not finish, "
        f"crosses diverged.{words if optimizer in ('sgd', 'lars') else ''}"
    )


def _law_in_words(law: FittedLaw | None) -> str:
    if law is None:
        return "A law of this study takes finished trials at three batches."
    exponent = f"{law.exponent:.2f} ± {law.error:.2f} (standard error, {law.batches} batches)"
    return (
        f"The blue line is fitted to the best quarter of each batch; its exponent is {exponent}. "
        "0.5 is the square-root rule, 1 the linear one."
    )
