"""The other parts of a report: what was asked, how it went, what mattered, what it cost, what failed, where it ran."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence

from bigbatch.base import json_values
from bigbatch.train_loop.config.words import amount
from bigbatch.tune.console.answer_words import number_text, seconds_words
from bigbatch.tune.console.columns import plan_facts
from bigbatch.tune.report.answer_figures import frontier, history_over_hours
from bigbatch.tune.report.answer_section import best_trials
from bigbatch.tune.report.course_figures import (
    OUTSIDE,
    hours_by_outcome,
    learning_curves,
)
from bigbatch.tune.report.figure import ReportFigure, guarded
from bigbatch.tune.report.markup import (
    FigureBook,
    Markup,
    TableColumn,
    card,
    copy_block,
    definition_list,
    joined,
    side_by_side,
    table,
    tag,
)
from bigbatch.tune.report.rate_figures import rate_figures
from bigbatch.tune.report.recorded_study import (
    BROKEN,
    DIVERGENT,
    WAITING,
    RecordedStudy,
    StudyPoints,
)
from bigbatch.tune.report.space_figures import parameter_importance
from bigbatch.tune.runs.run import Run
from bigbatch.tune.storage.description import redact

MOST_ROWS = 60
"""A table of failed or stopped trials has at most so many rows."""
NOT_MEASURED = "not measured"


def section(title: str, name: str, *content: object) -> Markup:
    """A part of the page with its heading."""
    return tag("section", tag("h2", title), *content, id=name)


def asked_section(points: StudyPoints, prefix: str) -> Markup:
    """What was asked, and the command that repeats it."""
    d = points.study.description
    sessions = json_values.objects(d, "sessions")
    command = command_of(sessions[0]) if sessions else ""
    parts: list[object] = [definition_list(_plan(points))]
    if command:
        parts += [
            tag("h3", "The command that repeats it", style="margin-top:18px"),
            copy_block(command, f"{prefix}repeat", "Copy the command"),
        ]
    return section("What was asked", f"{prefix}asked", card(*parts))


def _plan(points: StudyPoints) -> list[tuple[str, object]]:
    frontier, seed = points.study.frontier, points.study.description.get("seed", "")
    values = frontier.facts.values if frontier and frontier.facts.name else ()
    batches = ", ".join(f"{v:,}" if isinstance(v, int) else str(v) for v in values)
    objective = points.study.objectives.first.sentence
    return [("objective", objective), *plan_facts(points.study.summary), ("batches", batches), ("seed", seed)]


def command_of(session: Mapping[str, object]) -> str:
    """The command line of a session as one would type it; empty if it is not known."""
    words = [redact(word) for word in json_values.texts(session, "command")]
    if not words:
        return ""
    name = os.path.basename(words[0])
    begin = ["bigbatch"] if name in ("bigbatch", "__main__.py") else ["python", words[0]]
    return shlex.join([*begin, *words[1:]])


def course_section(points: StudyPoints, book: FigureBook, prefix: str) -> Markup:
    """How the search went."""
    history, curves = (book.place(guarded(make, points), prefix) for make in (history_over_hours, learning_curves))
    return section(
        "How the search came to it",
        f"{prefix}course",
        history,
        curves,
        best_trials(points),
    )


def _left_out(count: int) -> str:
    return f"The first {MOST_ROWS} of {count:,} are shown; trials.parquet has all of them."


def space_section(points: StudyPoints, book: FigureBook, prefix: str) -> Markup:
    """Which parameters mattered, and which values did well."""
    rates = [book.place(figure, prefix) for figure in rate_figures(points)]
    drawn = [part for part in rates if part.startswith("<figure")]
    pairs = [side_by_side(*drawn[i : i + 2]) for i in range(0, len(drawn), 2)]
    pairs += [part for part in rates if part not in drawn]
    importance = book.place(guarded(parameter_importance, points), prefix)
    return joined(
        (
            section("What mattered", f"{prefix}space", importance),
            section("Learning rate by batch", f"{prefix}rates", *pairs),
        )
    )


def cost_section(points: StudyPoints, prefix: str) -> Markup:
    """What the search used."""
    held = points.study.summary.held_s / 3600
    by_outcome = hours_by_outcome(points)
    total = sum(by_outcome.values())
    trials = total - by_outcome.get(OUTSIDE, 0.0)
    sessions = json_values.objects(points.study.description, "sessions")
    elapsed = sum(json_values.number(one, "elapsed_s") for one in sessions)
    pairs = [
        (f"{points.study.hours} held", number_text(held) if held else NOT_MEASURED),
        (f"{points.study.hours} of trials", number_text(trials) if trials else NOT_MEASURED),
        *(
            (f"… {outcome}", f"{number_text(hours)} ({100 * hours / total:.0f} %)")
            for outcome, hours in by_outcome.items()
        ),
        (
            "wall time",
            f"{seconds_words(elapsed)} in {amount(len(sessions), 'session')}" if elapsed else "",
        ),
        ("energy", points.study.summary.energy.words()),
    ]
    return section("What it cost", f"{prefix}cost", card(definition_list(pairs)))


def failures_section(points: StudyPoints, prefix: str) -> Markup:
    """What failed, and why."""
    failed = [p for p in points.all if points.outcome(p) in (BROKEN, DIVERGENT)]
    if not failed:
        return section("Failures", f"{prefix}failures", card(tag("p", "No trial failed or diverged.")))
    titles = [TableColumn("trial", True), TableColumn("how"), TableColumn("batch", True), TableColumn("optimizer"),
              TableColumn("peak lr", True), TableColumn("epochs", True), TableColumn("why", is_wide=True)]  # fmt: skip
    rows = [_failed_row(points, p) for p in failed[:MOST_ROWS]]
    diverged = sum(points.outcome(p) == DIVERGENT for p in failed)
    words = (
        f"{diverged} of {_begun(points)} trials diverged: their loss or validation was not finite, so the "
        f"hyperparameters are the reason. {len(failed) - diverged} failed otherwise, which says nothing about them."
    )
    more = [tag("p", _left_out(len(failed)), class_="soft small")] if len(failed) > MOST_ROWS else []
    return section(
        "Failures", f"{prefix}failures", card(tag("p", words), table(titles, rows), *more, class_="card long")
    )


def _begun(points: StudyPoints) -> int:
    """Trials that have begun, with confirmations, which can fail too."""
    return sum(points.outcome(p) != WAITING or bool(points.curve(p)) for p in points.all)


def _failed_row(points: StudyPoints, p: Run) -> Sequence[object]:
    return [
        p.number, points.outcome(p), f"{p.batch:,}" if p.batch else "–", p.optimizer or "–", number_text(p.peak_lr),
        points.epochs_words(p), p.because or "–",
    ]  # fmt: skip


def environment_section(points: StudyPoints, prefix: str) -> Markup:
    """Where the search ran, with which versions."""
    sessions = json_values.objects(points.study.description, "sessions")
    if not sessions:
        return section("Where it ran", f"{prefix}environment", card(tag("p", "No session was recorded.")))
    cards = [_session(i + 1, one) for i, one in enumerate(sessions[-10:])]
    machine = json_values.mapping(points.study.description, "machine")
    gpus, cpus = (json_values.number(machine, key) for key in ("gpus", "cpus"))
    where = f"{gpus:g} GPUs, {cpus:g} CPU cores" if machine else ""
    return section(
        "Where it ran", f"{prefix}environment", card(definition_list([("devices", where)])) if where else "", *cards
    )


def _session(number: int, session: Mapping[str, object]) -> Markup:
    git, job = json_values.mapping(session, "git"), json_values.mapping(session, "slurm")
    packages = json_values.mapping(session, "packages")
    commit = json_values.text(git, "commit")[:12] + (" with changes" if git.get("dirty") else "")
    elapsed = json_values.number_or_none(session, "elapsed_s")
    versions = [f"{name} {version}" for name, version in packages.items() if version]
    pairs = [
        ("began", json_values.text(session, "started_at").replace("T", " ").replace("+00:00", " UTC")),
        ("ended", f"{json_values.text(session, 'outcome') or 'no end was written: killed, or still running'}"
         + (f" after {seconds_words(elapsed)}" if elapsed is not None else "")),
        ("command", tag("code", command_of(session))),
        ("host", f"{json_values.text(session, 'host')}, {json_values.text(session, 'platform')}".strip(", ")),
        ("Slurm job", ", ".join(f"{key} {value}" for key, value in job.items() if value not in (None, ""))),
        ("commit", commit),
        ("versions", ", ".join([f"Python {json_values.text(session, 'python')}", *versions])),
    ]  # fmt: skip
    return card(tag("h3", f"Session {number}"), definition_list(pairs))


def all_figures(study: RecordedStudy) -> list[ReportFigure]:
    """Every figure of a study, also those that say why they show nothing."""
    points = StudyPoints(study)
    makers = (frontier, history_over_hours, learning_curves, parameter_importance)
    return [*(guarded(make, points) for make in makers), *rate_figures(points)]
