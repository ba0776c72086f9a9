"""The parts of a report, from the answer to where the search ran."""

from __future__ import annotations

import json
import os
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from bigbatch.base import json_values
from bigbatch.train_loop.config.words import amount
from bigbatch.tune.console.answer_words import answer_in_words, number_text, seconds_words, value_text
from bigbatch.tune.console.columns import full_run_command, plan_facts
from bigbatch.tune.console.confirmation_words import confirmation_in_words
from bigbatch.tune.console.frontier_table import frontier_cells
from bigbatch.tune.report.figures import frontier, history_over_hours, learning_curves, parameter_importance
from bigbatch.tune.report.markup import FigureBook, Markup, card, copy_block, definition_list, table, tag
from bigbatch.tune.report.rate_figures import rate_figures
from bigbatch.tune.report.recorded_study import BROKEN, DIVERGENT, WAITING, RecordedStudy
from bigbatch.tune.runs.energy import energy_in_words
from bigbatch.tune.runs.frontier import Frontier
from bigbatch.tune.runs.run import Kind, Run, planned_epochs
from bigbatch.tune.storage.description import redact
from bigbatch.tune.storage.frontier_file import config_file, frontier_json
from bigbatch.tune.storage.summary import DONE, RUNNING, resume_words

MOST_ROWS = 60
"""A table of failed trials has at most so many rows."""
NOT_MEASURED = "not measured"
CONFIRMING, OUTSIDE = "confirmations", "outside of trials"


def answer_part(study: RecordedStudy, book: FigureBook) -> list[Markup]:
    """The answer, its figure, the frontier's table, and the configuration."""
    found, best = study.frontier, study.best
    if best is None:
        ends = Counter(study.outcome(run) for run in study.searched)
        count, have = len(study.searched), "has" if len(study.searched) == 1 else "have"
        said = f"{amount(count, 'trial')} {have} begun, none has finished"
        words = (
            f"{said} ({', '.join(f'{count} {end}' for end, count in ends.items())})" if ends else "No trial has begun"
        )
        return [card(tag("p", f"There is no answer yet. {words}.", class_="lead"), class_="card answer")]
    if found is not None:
        headline, *sentences = answer_in_words(frontier_json(found), study.hours)
        sentences += [_confirmation(study, found)] if found.usable else []
    else:
        worth = study.objectives.first.worth(best.value)
        headline, sentences = f"The best trial is {best.number}, with {worth} in the first objective.", []
    soft = [tag("p", text, class_="soft") for text in sentences]
    parts = [card(tag("p", headline, class_="lead"), *soft, class_="card answer")]
    if found is not None and found.facts.name is not None:
        parts += [
            book.place(frontier(study)),
            card(tag("h3", f"The best of each {found.facts.word}"), _frontier(study, found)),
        ]
    if study.objectives.several:
        parts.append(_pareto_front(study))
    if (found is None or found.usable) and best.config:
        row = found.answer_row if found and found.facts.name is not None else None
        file = f"{study.summary.folder}/{config_file(row.value) if row else 'best.json'}"
        parts.append(_configuration(study, best.config, file))
    return parts


def _confirmation(study: RecordedStudy, found: Frontier) -> str:
    summary = study.summary
    running, ended_early = summary.state == RUNNING, summary.state not in (RUNNING, DONE)
    return confirmation_in_words(
        frontier_json(found), summary.description, resume_words(summary), study.hours,
        running=running, ended_early=ended_early,
    )  # fmt: skip


def _frontier(study: RecordedStudy, found: Frontier) -> Markup:
    cells = frontier_cells(frontier_json(found), study.hours)
    cells["trial"] = [str(row.best.trial) if row.best else "–" for row in found.rows]
    return table(list(cells), list(zip(*cells.values(), strict=True)), found.answer)


def _pareto_front(study: RecordedStudy) -> Markup:
    """With several objectives: the trials that no other one beats."""
    each = study.objectives.each
    rows = [
        [run.number, *(one.worth(value) for one, value in zip(each, run.values, strict=True))]
        for run in study.objectives.front(study.best_first)[:MOST_ROWS]
    ]
    head = tag("h3", "The Pareto front: the trials that no other one beats")
    return card(head, table(["trial", *(one.metric.title for one in each)], rows))


def _configuration(study: RecordedStudy, config: Mapping[str, object], path: str) -> Markup:
    if function := json_values.text(study.description, "trainable"):
        config = json_values.mapping(json_values.mapping(config, "trainable"), "options")
        how = [tag("p", f"What {function} gets as its config, beside epochs and seed.", class_="soft small")]
    else:
        command = full_run_command(shlex.quote(path), json_values.whole_number(study.description, "max_epochs"))
        said = "Train it in full, for more epochs than the search gave it:"
        how = [tag("p", said, class_="soft small"), copy_block(command, "train", "Copy the command")]
    block = copy_block(json.dumps(dict(config), indent=2, default=str), "config", "Copy the JSON")
    whole = tag("details", tag("summary", "The whole configuration (JSON)"), block)
    return card(tag("h3", "The configuration to copy"), *how, whole)


def asked_part(study: RecordedStudy, _book: FigureBook) -> list[Markup]:
    """What was asked, and the command that repeats it."""
    found, seed = study.frontier, study.description.get("seed", "")
    values = found.facts.values if found and found.facts.name else ()
    facts = [
        *(("objective", objective.sentence) for objective in study.objectives.each),
        *plan_facts(study.summary),
        (f"each {found.facts.word}" if found else "", ", ".join(map(value_text, values))),
        ("seed", seed),
    ]
    sessions = json_values.objects(study.description, "sessions")
    parts = [definition_list(facts)]
    if command := command_of(sessions[0]) if sessions else "":
        parts += [tag("h3", "The command that repeats it"), copy_block(command, "repeat", "Copy the command")]
    return [card(*parts)]


def command_of(session: Mapping[str, object]) -> str:
    """The command line of a session as one would type it; empty if it is not known."""
    words = [redact(word) for word in json_values.texts(session, "command")]
    if not words:
        return ""
    begin = ["bigbatch"] if os.path.basename(words[0]) in ("bigbatch", "__main__.py") else ["python", words[0]]
    return shlex.join([*begin, *words[1:]])


def course_part(study: RecordedStudy, book: FigureBook) -> list[Markup]:
    """How the search went, and the ten best trials."""
    parts = [book.place(history_over_hours(study)), book.place(learning_curves(study))]
    shown = study.best_first[:10]
    if not shown:
        return parts
    own = study.description.get("trainable")
    names = (
        list(dict.fromkeys(name for run in shown for name in run.params)) if own else ["batch", "optimizer", "peak lr"]
    )
    rows = [
        [run.number, study.objectives.first.worth(run.value),
         *([_text(run.params.get(name, "–")) for name in names] if own else _settings(run)), run.epochs]
        for run in shown
    ]  # fmt: skip
    titles = ["trial", study.objectives.first.metric.short, *names, "epochs"]
    head = f"The best {len(rows)} of {len(study.best_first)} finished trials"
    return [*parts, card(tag("h3", head), table(titles, rows))]


def _settings(run: Run) -> list[str]:
    return [f"{run.batch:,}" if run.batch else "–", run.optimizer or "–", number_text(run.peak_lr)]


def _text(value: object) -> str:
    return number_text(value) if isinstance(value, float) else str(value)


def space_part(study: RecordedStudy, book: FigureBook) -> list[Markup]:
    """Which parameters mattered, and which learning rates did well."""
    return [book.place(figure) for figure in (parameter_importance(study), *rate_figures(study))]


def hours_by_outcome(study: RecordedStudy) -> dict[str, float]:
    """Device hours of the trials by how they ended, and those that no trial used."""
    found: Counter[str] = Counter()
    for run in study.all:
        found[CONFIRMING if run.kind == Kind.CONFIRMATION else study.outcome(run)] += run.gpu_hours or 0.0  # type: ignore[assignment]
    found[OUTSIDE] = max(0.0, study.summary.held_s / 3600 - sum(found.values()))  # type: ignore[assignment]
    return {name: hours for name, hours in found.items() if hours > 0}


def cost_part(study: RecordedStudy, _book: FigureBook) -> list[Markup]:
    """What the search used."""
    held, by_outcome = study.summary.held_s / 3600, hours_by_outcome(study)
    total, sessions = sum(by_outcome.values()), json_values.objects(study.description, "sessions")
    elapsed = sum(json_values.number(one, "elapsed_s") for one in sessions)
    outcomes = [
        (f"… {end}", f"{number_text(hours)} ({100 * hours / total:.0f} %)") for end, hours in by_outcome.items()
    ]
    pairs = [
        (f"{study.hours} held", number_text(held) if held else NOT_MEASURED),
        *outcomes,
        ("wall time", f"{seconds_words(elapsed)} in {amount(len(sessions), 'session')}" if elapsed else ""),
        ("energy", energy_in_words(study.trials)),
    ]
    return [card(definition_list(pairs))]


def failures_part(study: RecordedStudy, _book: FigureBook) -> list[Markup]:
    """What failed, and why."""
    failed = [run for run in study.all if study.outcome(run) in (BROKEN, DIVERGENT)]
    if not failed:
        return [card(tag("p", "No trial failed or diverged."))]
    rows = [
        [
            run.number,
            study.outcome(run),
            *_settings(run),
            f"{run.epochs} of {planned_epochs(run) or '?'}",
            run.because or "–",
        ]
        for run in failed[:MOST_ROWS]
    ]
    diverged = sum(study.outcome(run) == DIVERGENT for run in failed)
    begun = sum(study.outcome(run) != WAITING for run in study.all)
    words = (
        f"{diverged} of {begun} trials diverged: their loss or validation was not finite, so the "
        f"hyperparameters are the reason. {len(failed) - diverged} failed otherwise, which says nothing about them."
    )
    more = f"The first {MOST_ROWS} of {len(failed):,} are shown." if len(failed) > MOST_ROWS else ""
    titles = ["trial", "how", "batch", "optimizer", "peak lr", "epochs", "why"]
    return [card(tag("p", words), table(titles, rows), tag("p", more, class_="soft small"), class_="card long")]


def environment_part(study: RecordedStudy, _book: FigureBook) -> list[Markup]:
    """Where the search ran, with which versions."""
    sessions = json_values.objects(study.description, "sessions")
    rows = [_session(place, one) for place, one in enumerate(sessions, 1)][-10:]
    titles = ["session", "began", "end", "host", "Slurm job", "commit", "versions"]
    return [card(table(titles, rows) if rows else tag("p", "No session was recorded."))]


def _session(number: int, session: Mapping[str, object]) -> Sequence[object]:
    git, job = json_values.mapping(session, "git"), json_values.mapping(session, "slurm")
    packages = json_values.mapping(session, "packages")
    return [
        number,
        json_values.text(session, "started_at").replace("T", " ").replace("+00:00", " UTC"),
        json_values.text(session, "outcome") or "none written: killed, or still running",
        json_values.text(session, "host"),
        ", ".join(f"{key} {value}" for key, value in job.items() if value not in (None, "")) or "–",
        json_values.text(git, "commit")[:12] + " with changes" * bool(git.get("dirty")) or "–",
        ", ".join(f"{name} {version}" for name, version in packages.items() if version),
    ]


PARTS: dict[str, tuple[str, Callable[[RecordedStudy, FigureBook], list[Markup]]]] = {
    "answer": ("The answer", answer_part),
    "asked": ("What was asked", asked_part),
    "course": ("How the search came to it", course_part),
    "space": ("What mattered", space_part),
    "cost": ("What it cost", cost_part),
    "failures": ("Failures", failures_part),
    "environment": ("Where it ran", environment_part),
}
"""Its id in the page → its heading, and what writes it."""
