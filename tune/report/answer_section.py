"""The first part of a report: what came out, and the configuration to copy; or how several studies differ."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bigbatch.base import json_values
from bigbatch.tune.console.answer_words import (
    answer_in_words,
    number_text,
)
from bigbatch.tune.console.columns import full_run_command
from bigbatch.tune.console.confirmation_words import confirmation_in_words
from bigbatch.tune.console.frontier_table import frontier_cells
from bigbatch.tune.report.answer_figures import compared_frontiers, compared_histories, frontier
from bigbatch.tune.report.figure import ReportFigure, guarded
from bigbatch.tune.report.markup import (
    FigureBook,
    Markup,
    TableColumn,
    card,
    copy_block,
    joined,
    table,
    tag,
)
from bigbatch.tune.report.recorded_study import RecordedStudy, StudyPoints, warmup_share
from bigbatch.tune.runs.frontier import Frontier
from bigbatch.tune.runs.run import Run
from bigbatch.tune.storage.frontier_file import config_file, frontier_json
from bigbatch.tune.storage.summary import DONE, RUNNING, resume_words


def answer_section(points: StudyPoints, book: FigureBook, prefix: str) -> Markup:
    """The answer, its figures, the frontier's table, and the configuration."""
    found, best = points.study.frontier, points.best
    if best is None:
        return _nothing_yet(points, prefix)
    if found is not None:
        headline, *sentences = answer_in_words(frontier_json(found), points.study.hours)
        if found.usable:
            sentences.append(_confirmation(points, found))
    else:
        headline = f"The best trial is {best.number}, with {worth_words(points, best.value)} in the first objective."
        sentences = []
    parts = [
        card(
            tag("p", headline, class_="lead"),
            *(tag("p", text, class_="soft") for text in sentences),
            class_="card answer",
        )
    ]
    if found is not None and found.facts.name is not None:
        parts += [
            book.place(guarded(frontier, points), prefix),
            card(tag("h3", f"The best of each {found.facts.word}"), _frontier_table(points, found), _reading(points)),
        ]
    parts.append(_front(points))
    if found is None or found.usable:
        parts.append(_configuration(points, best.config, _file(points, found), prefix))
    return tag("section", tag("h2", "The answer"), *parts, id=f"{prefix}answer")


def _file(points: StudyPoints, found: Frontier | None) -> str:
    """The file that holds the configuration of the answer."""
    row = found.answer_row if found and found.facts.name is not None else None
    return f"{points.study.summary.folder}/{config_file(row.value) if row else 'best.json'}"


def _confirmation(points: StudyPoints, found: Frontier) -> str:
    summary = points.study.summary
    return confirmation_in_words(
        frontier_json(found),
        summary.description,
        resume_words(summary),
        points.study.hours,
        running=summary.state == RUNNING,
        ended_early=summary.state not in (RUNNING, DONE),
    )


def _nothing_yet(points: StudyPoints, prefix: str) -> Markup:
    begun = len(points.searched)
    ends = ", ".join(f"{count} {outcome}" for outcome, count in Counter(map(points.outcome, points.searched)).items())
    words = (
        f"{begun} trial{'s have' if begun != 1 else ' has'} begun, none has finished ({ends})."
        if begun
        else "No trial has begun."
    )
    text = tag("p", f"There is no answer yet. {words}", class_="lead")
    return tag("section", tag("h2", "The answer"), card(text, class_="card answer"), id=f"{prefix}answer")


def worth_words(points: StudyPoints, value: float | None) -> str:
    """A value of the first objective with its unit."""
    return points.study.objectives.first.worth(value)


# The table


def _frontier_table(points: StudyPoints, found: Frontier) -> Markup:
    cells = frontier_cells(frontier_json(found), points.study.hours)
    cells["trial"] = [str(row.best.trial) if row.best else "–" for row in found.rows]
    columns = [TableColumn(title, is_number=True) for title in cells]
    rows = [list(row) for row in zip(*cells.values(), strict=True)]
    return table(columns, rows, found.answer, stacked=True)


def _reading(points: StudyPoints) -> Markup:
    return tag(
        "p",
        f"Steps, epoch time and {points.study.hours} are those of the best configuration’s whole run on the devices of "
        "one trial. The marked row is the answer.",
        class_="soft small",
    )


def _front(points: StudyPoints) -> Markup:
    """With several objectives: the trials that no other one beats."""
    objectives = points.study.objectives
    if not objectives.several:
        return Markup("")
    front = objectives.front(points.finished)
    columns = [TableColumn("trial"), *(TableColumn(one.metric.title, is_number=True) for one in objectives.each)]
    rows: Sequence[Sequence[object]] = [
        [t.number, *(one.worth(value) for one, value in zip(objectives.each, t.values, strict=True))]
        for t in front[:40]
    ]
    return card(tag("h3", "The Pareto front: no other trial is better in every objective"), table(columns, rows))


def _configuration(points: StudyPoints, config: Mapping[str, object], path: str, prefix: str) -> Markup:
    if not config:
        return Markup("")
    most = json_values.whole_number(points.study.description, "max_epochs")
    command = full_run_command(shlex.quote(path), most)
    text = json.dumps(dict(config), indent=2, default=str)
    if function := json_values.text(points.study.description, "trainable"):
        options = json_values.mapping(json_values.mapping(config, "trainable"), "options")
        text = json.dumps(dict(options), indent=2)
        how = [tag("p", f"What {function} gets as its config, beside epochs and seed.", class_="soft small")]
    else:
        how = [
            tag("p", "Train it in full, for more epochs than the search gave it:", class_="soft small"),
            copy_block(command, f"{prefix}train", "Copy the command"),
        ]
    return card(
        tag("h3", "The configuration to copy"),
        *how,
        tag(
            "details",
            tag("summary", "The whole configuration (JSON)"),
            copy_block(text, f"{prefix}config", "Copy the JSON"),
        ),
    )


def best_trials(points: StudyPoints) -> Markup:
    """A table of the ten best finished trials, with their settings, or with a training function's own parameters."""
    shown = points.best_first[:10]
    if not shown:
        return Markup("")
    names = ["batch", "optimizer", "peak lr", "warmup"]
    if own := points.study.description.get("trainable"):
        names = list(dict.fromkeys(name for p in shown for name in p.params))
    titles = ["trial", points.study.objectives.first.metric.short, *names, "epochs", points.study.hours]
    rows = [
        [
            p.number, worth_words(points, p.value),
            *([_shown(p.params.get(name)) for name in names] if own else _usual_settings(p)),
            points.last_epoch(p), number_text(points.hours_of_all_epochs(p)),
        ]
        for p in shown
    ]  # fmt: skip
    head = f"The best {len(rows)} of {len(points.finished)} finished trials" if len(rows) > 1 else "The finished trial"
    columns = [TableColumn(title, is_number=title != "optimizer") for title in titles]
    return card(joined((tag("h3", head), table(columns, rows, stacked=True))))


def _usual_settings(run: Run) -> list[str]:
    share = warmup_share(run)
    warmup = "–" if share is None else f"{100 * share:.0f} %"
    return [f"{run.batch:,}" if run.batch else "–", run.optimizer or "–", number_text(run.peak_lr), warmup]


def _shown(value: object) -> str:
    return number_text(value) if isinstance(value, float) else "–" if value is None else str(value)


DECISIVE = (
    ("data", "data sets"), ("val_size", "validation images"), ("model", "networks"), ("max_epochs", "epochs"),
)  # fmt: skip
"""Keys of study.json that decide what values mean, and their names."""


@dataclass(frozen=True)
class ComparedStudy:
    """A row of the comparison. None: not known, or there is none."""

    study: str
    state: str
    finished: int | None = None
    """Trials that ran to their end."""
    begun: int | None = None
    best: float | None = None
    """The best value of the first objective."""
    answer: object = None
    """The largest batch within the tolerance of the best."""
    answer_value: float | None = None
    """The value there, by what did not choose it."""
    device_hours: float | None = None
    """Held by the search."""


def compared_study(study: RecordedStudy, points: StudyPoints | None) -> ComparedStudy:
    """The row of one study. ``points``: None where it cannot be read."""
    if points is None:
        return ComparedStudy(study.shown_name, study.summary.state)
    found = study.frontier
    return ComparedStudy(
        study=study.shown_name,
        state=study.summary.state,
        finished=len(points.finished),
        begun=len(points.searched),
        best=points.best_first[0].value if points.best_first else None,
        answer=found.answer_row.value if found and found.answer_row else None,
        answer_value=found.answer_best.reported.value if found and found.answer_best else None,
        device_hours=study.summary.held_s / 3600,
    )


def compared_figures(points: Sequence[StudyPoints]) -> list[ReportFigure]:
    """The figures that show all studies."""
    return [make(points) for make in (compared_frontiers, compared_histories)] if points else []


def differences(points: Sequence[StudyPoints]) -> list[str]:
    """What decides values, and is not the same in all studies."""
    found = {"objectives": {one.study.objectives.text for one in points}}
    for key, word in DECISIVE:
        found[word] = {str(one.study.description.get(key)) for one in points}
    return [word for word, values in found.items() if len(values) > 1]
