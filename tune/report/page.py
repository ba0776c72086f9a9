"""The report as one HTML page: it opens from a file, needs no network, and runs no code but its own.

It is written by command and at a search's end.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import shlex
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path

from bigbatch.base import json_values
from bigbatch.base.atomic_files import write_bytes
from bigbatch.tune.console.text import from_here
from bigbatch.tune.report.markup import FigureBook, Markup, card, joined, plotly_script, tag
from bigbatch.tune.report.recorded_study import RecordedStudy, recorded_at_end
from bigbatch.tune.report.sections import PARTS
from bigbatch.tune.runs.run import AnyTrial
from bigbatch.tune.storage.description import package_version
from bigbatch.tune.storage.summary import RUNNING, UNREADABLE


def report_page(study: RecordedStudy) -> str:
    """The page of a study."""
    book = FigureBook()
    if study.summary.state == UNREADABLE and not study.trials:
        text = "Nothing more is known of this study. Its files were not changed."
        body = [_head(study), card(tag("p", text))]
    else:
        links = [tag("a", title, href=f"#{name}") for name, (title, _) in PARTS.items()]
        parts = [_part(study, book, name) for name in PARTS]
        body = [_head(study), tag("nav", *links, aria_label="Parts of the report"), *parts]
    return page_document(f"{study.name} – BigBatch report", joined((*body, _footer())), book)


def _part(study: RecordedStudy, book: FigureBook, name: str) -> Markup:
    """A part of the page. Of files that someone has edited, one part may fail; the others are shown."""
    title, make = PARTS[name]
    try:
        content = make(study, book)
    except Exception as error:
        why = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        text = f"This part could not be written from the study’s files ({why})."
        content = [card(tag("p", text), class_="card notice")]
    return tag("section", tag("h2", title), *content, id=name)


def _head(study: RecordedStudy) -> Markup:
    d, why = study.description, study.summary.why
    state = f"{study.summary.state}{f' ({why})' if why else ''}"
    about = [json_values.text(d, "space"), json_values.text(d, "data"), json_values.text(d, "model")]
    notices = list(study.problems)
    if study.summary.state == RUNNING:
        notices.append("The search is running: this is how far it was when the report was written.")
    return joined(
        (
            tag("p", "BigBatch report", class_="over"),
            tag("h1", study.name),
            tag("p", " · ".join([state, *(word for word in about if word)]), class_="soft"),
            *(card(tag("p", text), class_="card notice") for text in notices),
        )
    )


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
    drawn = bool(book.drawn)
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


def write_report(study: RecordedStudy, path: Path) -> None:
    """Write the page of a study. Raises OSError; the file is then as it was."""
    write_bytes(path, report_page(study).encode("utf-8", "replace"))


def report_at_end(folder: Path, trials: Sequence[AnyTrial]) -> str:
    """Write the report of a search that ends. Returns a line: where the report is, or why it was not written.

    Args:
        folder: the study's.
        trials: all of them.
    """
    path, shown = folder / REPORT_FILE, from_here(folder)
    try:
        write_report(recorded_at_end(folder, trials), path)
    except Exception as error:  # the search is over and saved: nothing may spoil its end
        reason = " ".join(str(error).split())[:200]
        again = f"bigbatch report {shlex.quote(str(shown))}"
        return f"The report was not written ({type(error).__name__}: {reason}). Try again: {again}"
    return f"Report: {shown / REPORT_FILE}"
