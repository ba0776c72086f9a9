"""``bigbatch studies``: one line for each study of a folder. Takes no lease; without ``--sort`` it loads no Optuna."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from bigbatch.base import json_values
from bigbatch.base.command_line import OneLineParser
from bigbatch.train_loop.config import ConfigError
from bigbatch.train_loop.config.given import USABLE
from bigbatch.tune.console.text import aligned, said_in_one_line
from bigbatch.tune.runs.learned import FRESH_SEEDS, HELD_OUT, NOTHING_LEARNED
from bigbatch.tune.runs.objectives import objectives_of
from bigbatch.tune.storage.description import STUDY_FILE
from bigbatch.tune.storage.summary import DEFAULT_RUNS, UNREADABLE, StudySummary, changed_words, list_studies


def studies_main(argv: Sequence[str]) -> int:
    """Print the studies. Returns the exit code."""
    parser = OneLineParser(prog="bigbatch studies", description="List the studies of a folder.")
    add = parser.add_argument
    add("--output", metavar="DIR", help="the folder of studies (default: runs)")
    add("--sort", metavar="METRIC", help="rank the best trial of each study, and full runs, e.g. by val_loss:min")
    add("--cap", metavar="NAME=LIMIT", help="with --sort: gpu_hours=10 or time=90m, that a run may use")
    add("--trials", action="store_true", help="with --sort: rank every trial")
    args = parser.parse_args(argv)
    return said_in_one_line("bigbatch studies", lambda: print(_ranked(args) if args.sort else _listed(args)))


def _listed(args: argparse.Namespace) -> str:
    if args.cap or args.trials:
        raise ConfigError(
            f"{'--cap' if args.cap else '--trials'} needs a metric to rank by. Write --sort val_top1 too."
        )
    output = Path(args.output or DEFAULT_RUNS)
    found = list_studies(output) if args.output or os.path.exists(output) else []
    if os.path.isfile(output / STUDY_FILE):
        folder = output if output.name not in ("", "..") else output.resolve()  # what "." is called, and lies in
        raise ConfigError(
            f"--output is a folder that holds studies; got {str(output)!r}, a study itself. "
            f"Write {shlex.join(['--output', str(folder.parent)])}, or bigbatch show {shlex.quote(str(folder))}."
        )
    return studies_text(found) if found else f"No study in {output}. Begin one: bigbatch tune"


def _ranked(args: argparse.Namespace) -> str:
    from bigbatch.tune.console.ranking import RIGHT, ranking, read_cap, read_sort

    objective, cap, output = read_sort(args.sort), read_cap(args.cap), Path(args.output or DEFAULT_RUNS)
    rows = ranking(output, objective, cap, args.trials, lambda why: print(why, file=sys.stderr, flush=True))
    return f"{objective.sentence}, {cap.words}\n\n{aligned(rows, right=RIGHT)}"


def studies_text(found: Sequence[StudySummary]) -> str:
    """The studies as a table, the one that changed last at the end."""
    head = ("STUDY", "STATE", "TRIALS", "BEST", "HOURS", "CHANGED", "")
    return aligned([head, *map(_row, found)], right=(2, 3, 4))


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
