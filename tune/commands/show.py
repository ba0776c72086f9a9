"""``bigbatch show STUDY``: one study, running or not: its plan, trials, frontier, best trial, hours and next commands.

Loads neither Optuna nor Ray and takes no lease, so it may be called at any time, also while the driver writes.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from bigbatch.base import json_values
from bigbatch.base.atomic_files import read_json
from bigbatch.base.command_line import OneLineParser
from bigbatch.cluster.host.optuna_journal import State
from bigbatch.train_loop.config import ConfigError
from bigbatch.train_loop.config.given import USABLE
from bigbatch.train_loop.config.words import amount, epochs_text
from bigbatch.tune.commands.studies import trials_words, value_words
from bigbatch.tune.console.answer_words import answer_in_words
from bigbatch.tune.console.columns import (
    columns_of,
    config_of,
    full_run_command,
    own_next_step,
    plan_facts,
    state_words,
    trial_settings,
)
from bigbatch.tune.console.confirmation_words import confirmation_in_words
from bigbatch.tune.console.frontier_table import INFEASIBLE, frontier_lines, no_result_in_words
from bigbatch.tune.console.text import aligned, said_in_one_line
from bigbatch.tune.runs.energy import energy_in_words
from bigbatch.tune.runs.objectives import PARETO_FILE
from bigbatch.tune.runs.run import Kind, Run, begun, counted_trials, failed_trials, of_kind, was_refused
from bigbatch.tune.storage.frontier_file import FRONTIER_FILE, FRONTIER_FOLDER
from bigbatch.tune.storage.summary import (
    DEFAULT_RUNS,
    DONE,
    FAILED,
    RUNNING,
    UNREADABLE,
    StudySummary,
    ask_queue,
    changed_words,
    counted,
    find_study,
    resume_words,
    summarize,
)

MOST_TRIALS = 20
"""Without --all the table shows this many trials, the latest. The best one is described below it."""


def show_main(argv: Sequence[str]) -> int:
    """Print one study. Returns the exit code."""
    parser = OneLineParser(prog="bigbatch show", description="Print one study, running or not.")
    parser.add_argument("study", metavar="STUDY|PATH", help="a study's name in --output, or its folder")
    parser.add_argument("--output", metavar="DIR", default=DEFAULT_RUNS, help="the folder of studies (default: runs)")
    parser.add_argument("--all", action="store_true", help=f"print every trial, not only {MOST_TRIALS}")
    args = parser.parse_args(argv)

    def shown() -> None:
        found = summarize(find_study(args.study, Path(args.output)))
        if found.state == UNREADABLE:
            raise ConfigError(f"the study must be readable; got {str(found.folder)!r}: {found.why}")
        ask_queue([found])
        print(study_text(found, None if args.all else MOST_TRIALS))

    return said_in_one_line("bigbatch show", shown)


def study_text(found: StudySummary, most: int | None = MOST_TRIALS) -> str:
    """A study in full.

    Args:
        most: how many trials the table shows; None: all.
    """
    why, unit = f" ({found.why})" if found.why else "", "GPU hours" if found.has_gpus else "worker hours"
    facts = [
        ("study", found.name),
        ("state", f"{found.state}{why}, changed {changed_words(found)}"),
        ("folder", str(found.folder)),
        *plan_facts(found),
        ("ended", trials_words(found) + _ends(found)),
        ("used", f"{found.held_s / 3600:.2f} {unit} by all drivers of the study"),
        *(("damaged", f"ledger/{name} cannot be read, so its hours are missing above") for name in found.damaged),
        *([("damaged", found.problem)] if found.problem else []),
        ("energy", energy_in_words(found.study.trials)),
    ]
    keys = max(len(key) for key, _ in facts)
    parts = ["\n".join(f"{key:{keys}}  {text}" for key, text in facts)]
    parts += [_trials(found, most), _answer(found) or _best(found), _front(found), _commands(found)]
    return "\n\n".join(part for part in parts if part)


def _ends(found: StudySummary) -> str:
    """``: 3 ran to their end; 2 confirmations``; empty before a trial has begun."""
    words = {"COMPLETE": "ran to their end", "PRUNED": "stopped or paused", "FAIL": "failed",
             "RUNNING": _running_words(found), "WAITING": "waiting"}  # fmt: skip
    states = counted(t.state for t in begun(counted_trials(found.study.trials)))
    refused = sum(was_refused(trial) for trial in found.study.trials)
    confirmations = of_kind(found.study.begun, Kind.CONFIRMATION)
    open_ones = sum(trial.state in (State.RUNNING, State.WAITING) for trial in confirmations)
    parts = [", ".join(f"{count} {words[state]}" for state, count in states.items())]
    parts += [f"{amount(refused, 'configuration')} refused before training"] if refused else []
    not_ended = f" ({open_ones} not ended)" if open_ones else ""
    parts += [f"{amount(len(confirmations), 'confirmation')}{not_ended}"] if confirmations else []
    return f": {'; '.join(parts)}" if parts[0] else ""


def _running_words(found: StudySummary) -> str:
    """The state of a trial that has begun and not ended. A driver that was killed has left such trials behind."""
    return "running" if found.state == RUNNING else "interrupted"


# Trials


def _trials(found: StudySummary, most: int | None) -> str:
    """The table of the trials, with their most important settings, or the parameters of a user's own space."""
    trials, best = found.study.begun, _best_trial(found)
    shown = trials
    if most is not None:
        latest = {trial.number for trial in trials[-most:]} | ({best.number} if best else set())
        shown = [trial for trial in trials if trial.number in latest or trial.state == State.RUNNING]
    if not shown:
        return ""
    settings = [_settings(found, trial) for trial in shown]
    names = columns_of(settings)
    head = ("", "TRIAL", "STATE", *(name.upper() for name in names), "EPOCHS", "VALUE", "HOURS")
    rows: list[tuple[str, ...]] = [head]
    for trial, values in zip(shown, settings, strict=True):
        hours = json_values.number_or_none(trial.user_attrs, "gpu_hours")
        last = trial.last_of(found.watched) if found.watched else None
        rows.append(
            (
                "*" if best is trial else "",
                str(trial.number),
                _running_words(found) if trial.state == State.RUNNING else state_words(trial),
                *(values.get(name, "") for name in names),
                _epochs(trial),
                value_words(found, trial.value if trial.state == State.COMPLETE else last),
                "–" if hours is None else f"{hours:.2f}",
            )
        )
    left = len(trials) - len(shown)
    note = f"\n{amount(left, 'earlier trial')}; --all prints all." if left else ""
    return aligned(rows, right=(1, *range(len(head) - 3, len(head)))) + note


def _settings(found: StudySummary, trial: Run) -> dict[str, str]:
    """The trial's settings, and the parameters of a user's own space."""
    own = json_values.text(found.description, "space_source", "built-in") != "built-in"
    return trial_settings(config_of(trial), trial.params, own=own)


def _epochs(trial: Run) -> str:
    planned = json_values.whole_number_or_none(trial.config, "epochs")
    return f"{trial.epochs}/{planned}" if planned else str(trial.epochs)


# What came out


def _answer(found: StudySummary) -> str:
    """The frontier's table and what follows from it, as at the end of a search. Empty without a finished trial."""
    values = found.answer
    if not values:
        return ""
    hours = "GPU h" if found.has_gpus else "worker h"
    try:
        headline, *sentences = answer_in_words(values, hours)
        lines = [line for line, _ in frontier_lines(values, hours)]
        if values.get(USABLE) is not False:
            command, running, early = resume_words(found), found.state == RUNNING, found.state not in (RUNNING, DONE)
            line = confirmation_in_words(values, found.description, command, hours, running=running, ended_early=early)
            sentences.append(line)
    except (KeyError, StopIteration, TypeError, ValueError, ConfigError):
        note = f"{FRONTIER_FILE} cannot be read; the next --resume writes it again."
        return "\n".join(part for part in (_best(found), note) if part)
    if lines:
        lines.append("")
    best = _best_trial(found)
    settings = [f"  {name:10} {text}" for name, text in _settings(found, best).items()] if best else []
    each = [f"Each row's configuration: {found.folder / FRONTIER_FOLDER}/VALUE.json"] if lines and best else []
    return "\n".join([*lines, headline, *settings, *sentences, *each])


def _front(found: StudySummary) -> str:
    """The trials on the Pareto front of several objectives; or why a search that has ended has no result."""
    several = "," in json_values.text(found.description, "objective")
    front = json_values.objects(read_json(found.folder / PARETO_FILE), "front") if several else []
    if front:
        numbers = ", ".join(str(json_values.whole_number(trial, "trial")) for trial in front)
        return f"On the Pareto front: trial {numbers} ({found.folder / PARETO_FILE})"
    once = [t for t in counted_trials(found.study.begun) if t.config]
    ends = [_end_of(found, t) for t in once]
    if found.state == RUNNING or found.answer or not ends or "COMPLETE" in ends:
        return ""
    why = no_result_in_words([(end, t.because) for end, t in zip(ends, once, strict=True)], several=several)
    return f"{why[0].upper()}{why[1:]}"


def _end_of(found: StudySummary, trial: Run) -> str:
    if trial.user_attrs.get("infeasible"):
        return INFEASIBLE
    return "WAITING" if trial.state == State.RUNNING and found.state != RUNNING else trial.state.name


def _best_trial(found: StudySummary) -> Run | None:
    """The trial of best.json that somebody may train: the answer's; None where there is no usable answer."""
    values = found.answer
    answer = json_values.mapping(values, "answer").get("trial")
    other = None if values.get(USABLE) is False or answer is not None else found.best_trial
    return next((trial for trial in found.study.trials if trial.number == answer), other)


def _best(found: StudySummary) -> str:
    """The best trial of a study without an answer of its own: several objectives, or a time to a target."""
    best = _best_trial(found)
    if best is None:
        return ""
    lines = [f"Best: trial {best.number}, {value_words(found, best.value)} after {epochs_text(best.epochs)}"]
    return "\n".join(lines + [f"  {name:10} {text}" for name, text in _settings(found, best).items()])


def _commands(found: StudySummary) -> str:
    lines, failed = [], failed_trials(found.study.trials)
    if found.state not in (RUNNING, DONE) and not (found.state == FAILED and failed):
        lines += ["Continue it:", f"  {resume_words(found)}"]
    if found.state != RUNNING and failed:
        command = f"{resume_words(found)} --retry-failed"
        lines += ["Try the failed trials again, when their cause is mended:", f"  {command}"]
    best_file, most = found.folder / "best.json", json_values.whole_number(found.description, "max_epochs")
    if found.answer.get(USABLE) is False or not read_json(best_file):
        return "\n".join(lines)  # nothing to train: the answer says why
    if found.description.get("trainable"):
        parameters = best.params if (best := _best_trial(found)) else {}
        lines.append(own_next_step(shlex.quote(str(best_file)), parameters, most))
    else:
        lines += ["Train the best in full:", f"  {full_run_command(shlex.quote(str(best_file)), most)}"]
    return "\n".join(lines)
