"""The report as one HTML page: it opens from a file, needs no network, and runs no code but its own.

It is written by command and at a search's end.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import shlex
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path

from bigbatch.base import json_values
from bigbatch.base.atomic_files import write_bytes
from bigbatch.tune.console.answer_words import number_text
from bigbatch.tune.console.wrapped import from_here
from bigbatch.tune.report.answer_section import answer_section, compared_figures, compared_study, differences
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
from bigbatch.tune.report.recorded_study import RecordedStudy, StudyPoints, recorded_at_end, shown_apart
from bigbatch.tune.report.sections import (
    asked_section,
    cost_section,
    course_section,
    environment_section,
    failures_section,
    section,
    space_section,
)
from bigbatch.tune.runs.run import AnyTrial
from bigbatch.tune.storage.description import package_version
from bigbatch.tune.storage.summary import UNREADABLE

PARTS = (
    ("answer", "Answer"), ("asked", "What was asked"), ("course", "How it went"), ("space", "What mattered"),
    ("rates", "Rates by batch"), ("cost", "Cost"), ("failures", "Failures"), ("environment", "Where it ran"),
)  # fmt: skip


def report_page(studies: Sequence[RecordedStudy]) -> str:
    """The page of one study, or of several side by side."""
    studies = shown_apart(studies)
    book = FigureBook()
    readable = [study for study in studies if study.summary.state != UNREADABLE or study.trials]
    shown = {id(study): StudyPoints(study) for study in readable}
    several = len(studies) > 1
    body = [_comparison(list(shown.values()), studies, book)] if several else []
    for place, study in enumerate(studies):
        prefix = f"s{place + 1}-" if several else ""
        points = shown.get(id(study))
        body.append(_study(points, book, prefix) if points else _unreadable(study, prefix))
    title = f"{', '.join(study.shown_name for study in studies[:4])} – BigBatch report"
    return page_document(title, joined((*body, _footer())), book)


def _study(points: StudyPoints, book: FigureBook, prefix: str) -> Markup:
    study = points.study
    makers: tuple[tuple[str, Callable[[], Markup]], ...] = (
        ("answer", lambda: answer_section(points, book, prefix)),
        ("asked", lambda: asked_section(points, prefix)),
        ("course", lambda: course_section(points, book, prefix)),
        ("space", lambda: space_section(points, book, prefix)),
        ("cost", lambda: cost_section(points, prefix)),
        ("failures", lambda: failures_section(points, prefix)),
        ("environment", lambda: environment_section(points, prefix)),
    )
    parts = [_part_or_why(name, make, prefix) for name, make in makers]
    return tag("div", _head(study, prefix, PARTS), *parts, class_="study", id=f"{prefix}study")


def _part_or_why(name: str, make: Callable[[], Markup], prefix: str) -> Markup:
    """A part of the page. Of files that someone has edited, one part may fail; the others are shown."""
    try:
        return make()
    except Exception as error:
        why = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        text = f"This part could not be written from the study’s files ({why})."
        return section(dict(PARTS)[name], f"{prefix}{name}", card(tag("p", text), class_="card notice"))


def _head(study: RecordedStudy, prefix: str, parts: Sequence[tuple[str, str]]) -> Markup:
    d, why = study.description, study.summary.why
    state = f"{study.summary.state}{f' ({why})' if why else ''}"
    about = [json_values.text(d, "space"), json_values.text(d, "data"), json_values.text(d, "model")]
    line = " · ".join([state, *(word for word in about if word)])
    notices = [card(*(tag("p", text) for text in study.problems), class_="notice")] if study.problems else []
    if study.summary.state == "running":
        notices.append(
            card(
                tag("p", "The search is running: this is how far it was when the report was written."), class_="notice"
            )
        )
    links = tag(
        "nav", *(tag("a", title, href=f"#{prefix}{name}") for name, title in parts), aria_label="Parts of the report"
    )
    return joined(
        (
            tag("p", "BigBatch report", class_="over"),
            tag("h1", study.shown_name),
            tag("p", line, class_="soft"),
            *notices,
            links if parts else "",
        )
    )


def _unreadable(study: RecordedStudy, prefix: str) -> Markup:
    text = "Nothing more is known of this study. Its files were not changed."
    return tag("div", _head(study, prefix, ()), card(tag("p", text)), class_="study", id=f"{prefix}study")


def _comparison(points: Sequence[StudyPoints], studies: Sequence[RecordedStudy], book: FigureBook) -> Markup:
    """Several studies side by side, before each of them."""
    titles = [TableColumn("study"), TableColumn("state"), *(TableColumn(t, is_number=True) for t in
              ("finished / begun", "best", "the answer", "its value", "hours held"))]  # fmt: skip
    by_study = {id(one.study): one for one in points}
    rows = [_compared(place, study, by_study.get(id(study))) for place, study in enumerate(studies)]
    figures = [book.place(figure) for figure in compared_figures(points)]
    differ = differences(points)
    text = f"These studies have different {' and '.join(differ)}: their values do not compare."
    warning = [card(tag("p", text), class_="notice")] if differ else []
    head = joined(
        (tag("p", "BigBatch report", class_="over"), tag("h1", f"{len(studies)} studies side by side"), *warning)
    )
    return joined(
        (head, section("Side by side", "compared", card(table(titles, rows, stacked=True)), side_by_side(*figures)))
    )


def _compared(place: int, study: RecordedStudy, points: StudyPoints | None) -> list[object]:
    row, first = compared_study(study, points), study.objectives.first
    link = tag("a", row.study, href=f"#s{place + 1}-study")
    if points is None:
        return [link, row.state, *["–"] * 5]
    answer = "–" if row.answer is None else row.answer
    return [
        link, row.state, f"{row.finished} / {row.begun}", "–" if row.best is None else first.worth(row.best),
        f"{answer:,}" if isinstance(answer, int) else answer,
        "–" if row.answer_value is None else first.worth(row.answer_value), number_text(row.device_hours),
    ]  # fmt: skip


def _footer() -> Markup:
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    version = package_version("bigbatch") or ""
    return tag(
        "footer",
        f"Written by BigBatch {version} on {now} from the study’s files. The page needs no network and loads nothing. "
        "Point at a figure for details, drag to enlarge a part, press twice to return.",
    )


# The file


def _packed(content: bytes) -> str:
    # mtime: without a time in it, the same content makes the same bytes.
    return base64.b64encode(gzip.compress(content, 6, mtime=0)).decode()


def _hash(content: bytes) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content).digest()).decode()}'"


def _asset(name: str) -> str:
    return resources.files("bigbatch.tune.report").joinpath(name).read_text(encoding="utf-8")


def page_document(title: str, body: Markup, book: FigureBook) -> str:
    """The whole file of a page with figures. Raises ConfigError if they cannot be drawn.

    The policy lets no script run but the two of this page, and lets nothing be loaded.
    """
    script, style = _asset("page.js"), _asset("page.css")
    drawn = not book.is_empty
    plotly = plotly_script().replace(b"\r\n", b"\n") if drawn else b""  # as a browser reads it, so that the hash fits
    hashes = [_hash(script.encode()), *([_hash(plotly)] if drawn else [])]
    policy = (
        f"default-src 'none'; script-src {' '.join(hashes)}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
    data = ""
    if drawn:
        # NaN is no JSON: a browser would refuse all figures for one.
        content = json.dumps(book.content(), separators=(",", ":"), allow_nan=False).encode("utf-8", "replace")
        parts = (("plotly", _packed(plotly)), ("figures", _packed(content)))
        data = "".join(f'<script type="text/plain" id="{name}">{text}</script>\n' for name, text in parts)
    head = joined(
        (
            Markup('<meta charset="utf-8">\n'),
            Markup(f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'),
            Markup('<meta name="viewport" content="width=device-width, initial-scale=1">\n'),
            Markup('<meta name="color-scheme" content="light dark">\n'),
            # Without it browsers ask for one.
            Markup('<link rel="icon" href="data:,">\n'),
            tag("title", title),
            Markup(f"\n<style>\n{style}</style>\n"),
        )
    )
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n{head}</head>\n<body>\n<main>\n{body}\n</main>\n'
        f"{data}<script>{script}</script>\n</body>\n</html>\n"
    )


REPORT_FILE = "report.html"


def write_report(studies: Sequence[RecordedStudy], path: Path) -> None:
    """Write the page of these studies. Raises OSError; the file is then as it was."""
    write_bytes(path, report_page(studies).encode("utf-8", "replace"))


def report_at_end(folder: Path, trials: Sequence[AnyTrial]) -> str:
    """Write the report of a search that ends, and say where it is, in a line. A report that fails is a line too.

    Args:
        folder: the study's.
        trials: all of them.
    """
    path, shown = folder / REPORT_FILE, from_here(folder)
    try:
        write_report([recorded_at_end(folder, trials)], path)
    except Exception as error:  # the search is over and saved: nothing may spoil its end
        reason = " ".join(str(error).split())[:200]
        again = f"bigbatch report {shlex.quote(str(shown))}"
        return f"The report was not written ({type(error).__name__}: {reason}). Try again: {again}"
    return f"Report: {shown / REPORT_FILE}"
