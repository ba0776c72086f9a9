"""``bigbatch studies``: one line for each study of a folder. Takes no lease and loads no Optuna."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from bigbatch.base import json_values
from bigbatch.base.command_line import OneLineParser
from bigbatch.train_loop.config import ConfigError
from bigbatch.train_loop.config.given import USABLE
from bigbatch.tune.console.wrapped import aligned, said_in_one_line, terminal_width, wrapped
from bigbatch.tune.runs.learned import FRESH_SEEDS, HELD_OUT, NOTHING_LEARNED
from bigbatch.tune.runs.objectives import objectives_of
from bigbatch.tune.storage.description import STUDY_FILE
from bigbatch.tune.storage.summary import DEFAULT_RUNS, UNREADABLE, StudySummary, changed_words, list_studies


def studies_main(argv: Sequence[str]) -> int:
    """Print the studies. Returns the exit code."""
    parser = OneLineParser(prog="bigbatch studies", description="List the studies of a folder.")
    parser.add_argument("--output", metavar="DIR", help="the folder of studies (default: runs)")
    args = parser.parse_args(argv)
    return said_in_one_line("bigbatch studies", lambda: print(_listed(args.output)))


def _listed(given: str | None) -> str:
    output = Path(given or DEFAULT_RUNS)
    found = list_studies(output) if given or os.path.exists(output) else []
    if os.path.isfile(output / STUDY_FILE):
        folder = output if output.name not in ("", "..") else output.resolve()  # what "." is called, and lies in
        raise ConfigError(
            f"--output is a folder that holds studies; got {str(output)!r}, a study itself. "
            f"Write {shlex.join(['--output', str(folder.parent)])}, or bigbatch show {shlex.quote(str(folder))}."
        )
    return studies_text(found, width=terminal_width()) if found else f"No study in {output}. Begin one: bigbatch tune"


def studies_text(found: Sequence[StudySummary], width: int | None = None) -> str:
    """The studies as a table, the one that changed last at the end.

    Args:
        width: the most characters of a line, where that is possible. The last column goes on below itself.
    """
    rows = [("STUDY", "STATE", "TRIALS", "BEST", "HOURS", "CHANGED", ""), *map(_row, found)]
    lines = aligned([(*row[:-1], "|") for row in rows], right=(2, 3, 4)).splitlines()
    return "\n".join(wrapped(row[-1], width, line[:-1]) for line, row in zip(lines, rows, strict=True))


def _row(one: StudySummary) -> tuple[str, ...]:
    if one.state == UNREADABLE:
        return (one.folder.name, one.state, "–", "–", "–", changed_words(one), one.why)
    damaged = "a part of its ledger is damaged" if one.damaged else ""
    return (
        one.folder.name,
        one.state,
        trials_words(one),
        _best_words(one),
        f"{one.held_s / 3600:.2f}" + "+?" * bool(one.damaged),
        changed_words(one),
        "; ".join(part for part in (one.why, damaged, one.problem) if part),
    )


def _best_words(one: StudySummary) -> str:
    """The answer's value by what did not choose it, and what that is; else the best value so far."""
    if one.answer.get(USABLE) is False:
        return "nothing learned" if one.answer.get("unusable_because") == NOTHING_LEARNED else "no difference"
    trial, rows = json_values.mapping(one.answer, "answer").get("trial"), json_values.objects(one.answer, "rows")
    row = next((row for row in rows if trial is not None and row.get("trial") == trial), {})
    value = json_values.number_or_none(row, "reported")
    if value is None:
        return value_words(one, one.best)
    seeds = json_values.whole_number(row, "seeds")
    mark = {HELD_OUT: "held out", FRESH_SEEDS: f"{seeds} seeds"}.get(str(row.get("reported_by")), "chosen")
    return f"{value_words(one, value)} {mark}"


def trials_words(one: StudySummary) -> str:
    """``7/16``, or ``7`` where the budget is the limit."""
    return f"{one.ended}/{one.planned}" if one.planned is not None else str(one.ended)


def value_words(one: StudySummary, value: float | None) -> str:
    """A value of the study's first objective, with its unit: an accuracy in per cent."""
    if value is None:
        return "–"
    try:
        return objectives_of(one.description).first.worth(value)
    except ConfigError:  # a later version may know more metrics
        return f"{value:.4g}"
