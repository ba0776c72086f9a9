"""``scaling.html``: a scaling study as one page, which opens from a file and needs no network.

Its figures show speed, where a step's time goes, what device hours buy, and the objective.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from bigbatch.tune.report.figure import BLUE, GREY, HATCHED, ORANGE, TEAL, ReportFigure, Values, layout, log_axis
from bigbatch.tune.report.markup import (
    FigureBook,
    Markup,
    TableColumn,
    card,
    joined,
    side_by_side,
    table,
    tag,
)
from bigbatch.tune.report.page import page_document
from bigbatch.tune.report.sections import section
from bigbatch.tune.scaling.analysis import LEAST_EFFICIENCY, ScalingAnalysis, measured_step
from bigbatch.tune.scaling.scale_plan import ScalePlan
from bigbatch.tune.scaling.scaling_table import (
    MODEL_HEAD,
    model_notes,
    model_rows,
    model_terms,
    plan_lines,
    size_rows,
    table_head,
    useful_text,
)

PARTS = (
    ("compute", "compute_s", BLUE), ("wait for images", "data_s", TEAL), ("communication", "communication_s", ORANGE),
)  # fmt: skip
"""Of a step: name, field of ``StepTimes``, colour."""


def workers_axis(workers: Sequence[int]) -> Values:
    """A logarithmic axis with a tick at each size."""
    room = 0.12
    ends = [math.log10(min(workers)) - room, math.log10(max(workers)) + room]
    return {
        "type": "log", "title": {"text": "workers"}, "tickmode": "array", "tickvals": list(workers),
        "ticktext": [f"{n:,}" for n in workers], "range": ends,
    }  # fmt: skip


def speed_figure(found: ScalingAnalysis) -> ReportFigure:
    """Images/s over workers, with the line of a perfect machine."""
    first, workers = found.sizes[0], [one.workers for one in found.sizes] + [one.workers for one in found.beyond]
    ideal = [first.images_per_s / first.workers * n for n in workers]
    measured = [one.images_per_s for one in found.sizes]
    modelled = [one.images_per_s for one in found.beyond]
    data: list[Values] = [
        _line("as fast as the smallest size", workers, ideal, GREY, "dot"),
        _line("measured", [one.workers for one in found.sizes], measured, BLUE),
    ]
    if found.beyond:
        data.append(_line("model", [one.workers for one in found.beyond], modelled, ORANGE, "dash", "circle-open"))
    axes = layout(xaxis=workers_axis(workers), yaxis=log_axis("images/s", [*ideal, *measured, *modelled]))
    caption = (
        "Blue: trained at each size. Dotted: each worker as fast as in the smallest size. Orange, dashed: the model, "
        "nothing of which was measured."
    )
    return ReportFigure("speed", "How fast it is", caption, data, axes)


def step_figure(found: ScalingAnalysis) -> ReportFigure:
    """What a step is made of, at each size."""
    measured, modelled = [measured_step(one) for one in found.sizes], [one.step for one in found.beyond]
    data: list[Values] = []
    for name, part, colour in PARTS:
        for kind, steps in (("", measured), (" (model)", modelled)):
            if not steps:
                continue
            marker: Values = {"color": colour} | ({"pattern": {**HATCHED, "shape": "/"}} if kind else {})
            data.append(
                {
                    "type": "bar", "name": f"{name}{kind}", "x": [f"{step.workers:,}" for step in steps],
                    "y": [1e3 * getattr(step, part) for step in steps], "marker": marker,
                    "hovertemplate": f"{name}{kind}, %{{x}} workers: %{{y:.3g}} ms<extra></extra>",
                }
            )  # fmt: skip
    axes = layout(
        barmode="stack",
        xaxis={"type": "category", "title": {"text": "workers"}},
        yaxis={"title": {"text": "ms of a step"}, "rangemode": "tozero"},
    )
    caption = (
        "The mean of the profiled steps. Communication is what the backward pass does not hide. Hatched bars are those "
        "of the model."
    )
    return ReportFigure("step", "Where the time of a step goes", caption, data, axes)


def useful_figure(found: ScalingAnalysis) -> ReportFigure:
    """How much of the device hours buys progress."""
    efficiencies = found.efficiencies
    measured = {one.workers for one in found.sizes}
    data: list[Values] = []
    for name, of_size, dash, symbol in (("measured", True, "solid", "circle"), ("model", False, "dash", "circle-open")):
        rows = {n: 100 * value for n, value in efficiencies.items() if (n in measured) == of_size}
        if rows:
            data.append(_line(name, list(rows), list(rows.values()), BLUE if of_size else ORANGE, dash, symbol))
    workers = list(efficiencies)
    limit = 100 * LEAST_EFFICIENCY
    data.append(_line("limit", [workers[0], workers[-1]], [limit, limit], GREY, "dot"))
    axes = layout(xaxis=workers_axis(workers), yaxis={"title": {"text": "% of device hours"}, "rangemode": "tozero"})
    by = "speed alone; the noise scale was not measured" if found.noise_scale is None else (
        f"speed, and images that a larger batch needs more (noise scale {found.noise_scale:,.0f} images)"
    )  # fmt: skip
    caption = f"Progress of a device hour as a part of the smallest size's, by {by}."
    return ReportFigure("useful", "What device hours buy", caption, data, axes)


def objective_figure(plan: ScalePlan, found: ScalingAnalysis) -> ReportFigure:
    """The objective of each size after the same epochs."""
    name, title = "objective", f"{plan.objective.metric.title.capitalize()} after the same epochs"
    rows = [(one.workers, one.objective) for one in found.sizes if one.objective is not None]
    if not rows:
        return ReportFigure(name, title, missing="Nothing was trained (--epochs 0).")
    workers = [n for n, _ in rows]
    per_cent = 100 if plan.objective.metric.is_proportion else 1
    data = [_line("measured", workers, [per_cent * value for _, value in rows], BLUE)]
    unit = " (%)" if per_cent == 100 else ""
    axes = layout(xaxis=workers_axis(workers), yaxis={"title": {"text": f"{plan.objective.metric.title}{unit}"}})
    return ReportFigure(name, title, "One run a size: differences may be chance.", data, axes)


def _line(
    name: str, x: Sequence[float], y: Sequence[float], colour: str, dash: str = "solid", symbol: str = "circle"
) -> Values:
    return {
        "type": "scatter", "mode": "lines" if dash == "dot" else "lines+markers", "name": name, "x": list(x),
        "y": list(y), "line": {"color": colour, "dash": dash, "width": 2},
        "marker": {"color": colour, "symbol": symbol, "size": 9},
        "hovertemplate": f"{name}, %{{x}} workers: %{{y:.4g}}<extra></extra>",
    }  # fmt: skip


PAGE_FILE = "scaling.html"


def scaling_page(plan: ScalePlan, found: ScalingAnalysis) -> str:
    """The page: the answer, the measured sizes, the model."""
    book = FigureBook()
    answer = card(tag("p", useful_text(found)), class_="card")
    body = joined(
        (
            tag("p", "BigBatch scaling study", class_="over"),
            tag("h1", plan.output.name),
            tag("p", plan_lines(plan, (), {})[0], class_="soft"),
            section(
                "Answer",
                "answer",
                answer,
                side_by_side(book.place(speed_figure(found)), book.place(useful_figure(found))),
            ),
            section("Measured", "measured", card(_table(table_head(plan, found), size_rows(plan, found)))),
            side_by_side(book.place(step_figure(found)), book.place(objective_figure(plan, found))),
            section("Model, not measured", "model", _model(found)),
        )
    )
    title = f"{plan.output.name} – BigBatch scaling study"
    return page_document(title, body, book)


def _model(found: ScalingAnalysis) -> Markup:
    parts: list[Markup] = [tag("p", line) for line in model_terms(found)]
    notices = [card(*(tag("p", note) for note in model_notes(found)), class_="notice")] if model_notes(found) else []
    if found.beyond:
        parts.append(_table(MODEL_HEAD, model_rows(found)))
    return joined((*notices, card(*parts)))


def _table(head: tuple[str, ...] | list[str], rows: list[list[str]]) -> Markup:
    columns = [TableColumn(title.lower(), is_number=place > 0) for place, title in enumerate(head)]
    return table(columns, rows, stacked=True)
