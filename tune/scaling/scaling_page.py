"""``scaling.html``: a scaling study as one page, which opens from a file and needs no network."""

from __future__ import annotations

from bigbatch.tune.report.markup import (
    FigureBook,
    Markup,
    TableColumn,
    card,
    joined,
    plotly_script,
    side_by_side,
    table,
    tag,
)
from bigbatch.tune.report.page import page_document
from bigbatch.tune.report.sections import section
from bigbatch.tune.scaling.analysis import ScalingAnalysis
from bigbatch.tune.scaling.scale_plan import ScalePlan
from bigbatch.tune.scaling.scaling_figures import objective_figure, speed_figure, step_figure, useful_figure
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

PAGE_FILE = "scaling.html"


def scaling_page(plan: ScalePlan, found: ScalingAnalysis) -> str:
    """The page: the answer, the measured sizes, the model."""
    script = plotly_script()
    book = FigureBook(can_draw=script is not None)
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
            _without_figures(book),
        )
    )
    title = f"{plan.output.name} – BigBatch scaling study"
    return page_document(title, body, book, script.read_bytes() if script else b"")


def _model(found: ScalingAnalysis) -> Markup:
    parts: list[Markup] = [tag("p", line) for line in model_terms(found)]
    notices = [card(*(tag("p", note) for note in model_notes(found)), class_="notice")] if model_notes(found) else []
    if found.beyond:
        parts.append(_table(MODEL_HEAD, model_rows(found)))
    return joined((*notices, card(*parts)))


def _table(head: tuple[str, ...] | list[str], rows: list[list[str]]) -> Markup:
    columns = [TableColumn(title.lower(), is_number=place > 0) for place, title in enumerate(head)]
    return table(columns, rows, stacked=True)


def _without_figures(book: FigureBook) -> Markup:
    if not book.left_out:
        return Markup("")
    return card(
        tag("p", "This page has no figures, because plotly is not installed where it was written."), class_="notice"
    )
