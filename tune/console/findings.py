"""The plan before a search and the findings after it, as text."""

from __future__ import annotations

import os
import shlex
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from optuna.trial import FrozenTrial
from rich.console import Console

from bigbatch.base import json_values
from bigbatch.base.root import ROOT
from bigbatch.cluster.host.holder import JOB_FOLDER
from bigbatch.cluster.host.optuna_journal import State
from bigbatch.train_loop.config.given import USABLE
from bigbatch.train_loop.config.rules import shown_name
from bigbatch.train_loop.config.words import epochs_text
from bigbatch.train_loop.errors import in_one_line
from bigbatch.train_loop.host.disk_space import quota_lines
from bigbatch.tune.budget.ledger import DeviceSeconds
from bigbatch.tune.console.answer_words import answer_in_words
from bigbatch.tune.console.columns import config_of, full_run_command, own_next_step, trial_settings
from bigbatch.tune.console.confirmation_words import confirm_lines, confirmation_in_words
from bigbatch.tune.console.display import duration
from bigbatch.tune.console.frontier_table import INFEASIBLE, frontier_lines, no_result_in_words
from bigbatch.tune.console.plan_notes import plan_notes
from bigbatch.tune.console.text import from_here
from bigbatch.tune.plan.enqueued import in_words
from bigbatch.tune.plan.holdout import images_in_words, kinds_in_words
from bigbatch.tune.plan.own_code import own_component_lines, trainable_lines
from bigbatch.tune.plan.search_plan import SearchPlan
from bigbatch.tune.plan.warm_start import known_in_words
from bigbatch.tune.runs.objective import TimeToTarget
from bigbatch.tune.runs.objectives import PARETO_FILE
from bigbatch.tune.runs.run import (
    AnyTrial,
    Run,
    begun,
    counted_trials,
    ended_because,
    is_paused,
    retried_trials,
    search_trials,
    was_refused,
)
from bigbatch.tune.storage.description import redact
from bigbatch.tune.storage.frontier_file import FRONTIER_FOLDER


def print_plan(plan: SearchPlan, console: Console) -> None:
    """Print what the search will do, its highest cost, and where its results go."""
    broken = textwrap.TextWrapper(console.width, subsequent_indent=" " * 11, break_long_words=False)
    broken.break_on_hyphens = False
    for key, text in _trainable_lines(plan):
        line = f"{key:11}{text}"
        console.print(broken.fill(line) if console.is_terminal else line)


def print_machine(plan: SearchPlan, console: Console) -> None:
    """Print the resources of a joined cluster, and how the search uses them."""
    model = "" if _searches_models(plan) else f"; {plan.model}{_why_model(plan)}"
    console.print(f"The cluster has {plan.machine.describe()}: {plan.share.describe()}{model}")
    if sharing := plan.sharing.words(plan.machine, plan.share):
        console.print(f"{'on a GPU':11}{sharing}")


def _trainable_lines(plan: SearchPlan) -> list[tuple[str, str]]:
    lines = [
        ("study", plan.study + " (resumed)" * plan.resume),
        ("space", f"{plan.space.name}: {plan.space.doc}".removesuffix(": ")),
    ]
    lines += [("", f"{name:24} {interval.describe()}") for name, interval in plan.ranges.items()]
    lines += [("", f"{key:24} {value} (set)") for key, value in plan.overrides.items() if key != "data.holdout"]
    how_many = "as many as the budget allows," if plan.open_ended else plan.trials
    stops = f"strategy {shown_name(plan.strategy)}, stopping {shown_name(plan.stopping)}"
    return [
        *lines,
        *(trainable_lines(plan.space) or _data_lines(plan)),
        *own_component_lines(plan),
        *_frontier(plan),
        ("trials", f"{how_many} of at most {epochs_text(plan.max_epochs)}, {stops}"),
        *([("first", in_words(plan.enqueued))] if plan.enqueued else []),
        *(("warm start", known_in_words(study)) for study in plan.warm_start),
        *objective_lines(plan),
        *confirm_lines(plan),
        *(("note", text) for text in plan_notes(plan)),
        ("resources", _resources(plan)),
        *([("on a GPU", text)] if (text := plan.sharing.words(plan.machine, plan.share)) else []),
        ("at most", _cost(plan)),
        ("results", quoted_path(plan.folder)),
        *(("", line) for line in quota_lines()),
    ]


def _data_lines(plan: SearchPlan) -> list[tuple[str, str]]:
    """What our own training loop trains, and on what."""
    return [
        ("data", f"{plan.data.name}: {images_in_words(plan.data)}{kinds_in_words(plan.data)}"),
        *([] if _searches_models(plan) else [("model", shown_name(plan.model) + _why_model(plan))]),
    ]


def _searches_models(plan: SearchPlan) -> bool:
    return any(plan.space.key_of(name) == "model.name" for name in plan.ranges)


def _frontier(plan: SearchPlan) -> list[tuple[str, str]]:
    """What the search compares, and what its answer will be."""
    if plan.frontier is None or plan.frontier.searched is None:
        return []
    within = plan.tolerance.words(plan.objectives.first.metric)
    numbers = all(type(value) in (int, float) for value in plan.frontier.values)
    which = "largest" if numbers else "last"
    text = f"the best for each {plan.frontier.name}; the answer is the {which} within {within} of the best"
    return [("frontier", text)]


def _why_model(plan: SearchPlan) -> str:
    return f" (auto{'; --model resnet50 works too' * (plan.model == 'resnet18')})" if plan.model_was_auto else ""


def _resources(plan: SearchPlan) -> str:
    share, machine = plan.share, plan.machine
    if not machine.nodes:
        return f"Ray cluster {plan.address}, {share.workers} worker{'s' * (share.workers != 1)} for each trial"
    cores = f"{machine.cpus} CPU core{'s' * (machine.cpus != 1)}"
    have = f"{machine.gpus} GPU{'s' * (machine.gpus != 1)}, {cores}" if machine.gpus else f"{cores}, no GPU"
    return f"{have}: {share.describe()}"


def _cost(plan: SearchPlan) -> str:
    epochs = plan.trials * plan.max_epochs
    words = epochs_text(epochs)
    if plan.data.train_size:
        words += f" = {epochs * plan.data.train_size:,} training images"
    parts = [] if plan.open_ended else [words]
    if plan.budget_gpu_hours is not None:
        parts.append(f"{plan.budget_gpu_hours:g} {'GPU' if plan.machine.gpus else 'worker'} hours")
    if plan.time_budget_s is not None:
        parts.append(f"{duration(plan.time_budget_s)} of time")
    return ", ".join(parts)


def print_findings(
    plan: SearchPlan,
    trials: Sequence[AnyTrial],
    elapsed_s: float,
    used: DeviceSeconds,
    console: Console,
    answer: Mapping[str, object] = MappingProxyType({}),
    unconfirmed: tuple[int, float] = (0, 0.0),
) -> None:
    """Print the answer, how certain it is, whether it was confirmed, and the next command.

    Args:
        trials: all of the study.
        answer: the content of frontier.json; empty where there is none: several objectives, or a time to a target.
        unconfirmed: confirmations that are still to be made, and the device hours that they take.
    """
    done = plan.objectives.ranked(search_trials(trials))
    _print_counts(plan, trials, len(done), elapsed_s, used, console)
    if not done:
        return
    hours = "GPU h" if plan.machine.gpus else "worker h"
    headline, *sentences = answer_in_words(answer, hours) if answer else [best_in_words(plan, done[0])]
    for place, (line, is_answer) in enumerate(frontier_lines(answer, hours) if answer else ()):
        console.print(f"\n{line}" if place == 0 else line, style="bold" if is_answer else "", soft_wrap=True)
    console.print(f"\n{headline}", style="bold")
    if answer.get(USABLE) is False:
        return
    number = json_values.mapping(answer, "answer").get("trial")
    best = next((trial for trial in done if trial.number == number), done[0])
    for name, value in trial_settings(config_of(best), best.params, own=plan.space.source != "built-in").items():
        console.print(f"  {name:10} {value}")
    if plan.objectives.several:
        console.print(f"\n{front_in_words(plan, done)}")
    if answer:
        sentences.append(confirmation_in_words(answer, plan.to_dict(), resume_command(plan), hours, unconfirmed))
    for text in sentences:
        console.print(text)
    if plan.frontier and plan.frontier.searched:
        each = quoted_path(plan.folder / FRONTIER_FOLDER)
        console.print(f"\nEach row's configuration: {each}/VALUE.json")
    best_file = quoted_path(plan.folder / "best.json")
    if plan.trainable:
        console.print(f"\n{own_next_step(best_file, best.params, plan.max_epochs)}", soft_wrap=True)
    else:
        console.print("\nTrain it in full:")
        console.print(f"  {train_command(plan)}", soft_wrap=True)


def _print_counts(
    plan: SearchPlan, trials: Sequence[AnyTrial], done: int, elapsed_s: float, used: DeviceSeconds, console: Console
) -> None:
    """Print how many trials ended in which way, what was used, and why trials failed."""
    once = begun(counted_trials(trials))
    states = (State.PRUNED, State.FAIL, State.WAITING)
    pruned, failed, waiting = (sum(t.state == state for t in once) for state in states)
    paused, infeasible = sum(map(is_paused, once)), sum(_end_of(t) == INFEASIBLE for t in once)
    unit = "GPU hours" if plan.machine.gpus else "worker hours (no GPU)"
    console.print(
        f"\n{done} of {len(once)} trials ran to their end, {pruned - paused - infeasible} stopped early, "
        f"{f'{infeasible} infeasible, ' if infeasible else ''}{failed} failed"
        f"{f', {paused} paused' if paused else ''}"
        f"{f', {waiting} interrupted' if waiting else ''}; "
        f"{duration(elapsed_s)} elapsed, {used.held_s / 3600:.2f} {unit} held by the study, "
        f"{sum(used.trials_s.values()) / 3600:.2f} of them spent on trials."
    )
    for line in failures_in_words(trials):
        console.print(f"  {line}")


def say_retries(retries: Mapping[int, int], console: Console) -> None:
    """Print which failed trials ``--retry-failed`` repeats."""
    words = ", ".join(f"{failed} as trial {number}" for failed, number in sorted(retries.items()))
    text = f"Tried again: trial {words}." if words else "--retry-failed: there is no failed trial to try again."
    console.print(f"\n{text}")


def train_command(plan: SearchPlan) -> str:
    """The command that trains the best configuration in full."""
    command = "bigbatch train" if _by_console_command() else f"python {quoted_path(ROOT / 'train_loop' / 'run.py')}"
    return full_run_command(quoted_path(plan.folder / "best.json"), plan.max_epochs, command)


def resume_command(plan: SearchPlan, spent_hours: float | None = None) -> str:
    """The command that continues this study, from the current folder.

    ``spent_hours``: given if the budget is spent, the device hours used so far.
    """
    command = "bigbatch tune" if _by_console_command() else f"python {quoted_path(ROOT / 'tune' / 'run.py')}"
    parts = ["--resume", "--study", plan.study]
    if plan.options.output:
        parts += ["--output", plan.options.output]
    if JOB_FOLDER not in os.environ:  # a job's cluster ends with the job
        parts += ["--address", plan.options.address] if plan.options.address else []
    if spent_hours is not None and plan.budget_gpu_hours is not None:
        parts += ["--budget-gpu-hours", f"{_more_hours(plan.budget_gpu_hours, spent_hours):g}"]
    if plan.storage:
        parts += ["--storage", redact(plan.storage)]
        if redact(plan.storage) != plan.storage:
            return f"{command} {shlex.join(parts)}\n  (with the database's password in place of ***)"
    return f"{command} {shlex.join(parts)}"


def _more_hours(budget: float, spent: float) -> float:
    """A budget with which the study can continue: twice the old one; twice the used hours if they are much more."""
    return 2 * budget if spent < 1.5 * budget else float(f"{2 * spent:.3g}")


def print_disk_full(plan: SearchPlan, full: str) -> None:
    """Print one line: which file system cannot be written, and the command that continues the study."""
    saved = "All reported epochs are saved; best.json and the tables may lack the last ones"
    line = f"error: {full}. {saved}. Mend that, then continue with: {resume_command(plan)}"
    print(line, file=sys.stderr, flush=True)


def _by_console_command() -> bool:
    return Path(sys.argv[0]).name == "bigbatch"


def quoted_path(path: Path) -> str:
    """The path as a user would type it in the current folder, in a shell."""
    return shlex.quote(str(from_here(path)))


# What came out


def objective_lines(plan: SearchPlan) -> list[tuple[str, str]]:
    """The plan's lines about objectives and constraints."""
    lines = [("objective", f"{objective.text}: {objective.sentence}") for objective in plan.objectives.each]
    if plan.objectives.several:
        lines.append(("", "several objectives: no trial is stopped early, and best.json is the best in the first one"))
    stated = [(one, plan.baseline[one.name]) for one in plan.objectives.each if one.name in plan.baseline]
    lines += [("baseline", f"{one.metric.title} {one.worth(value)} by a constant prediction") for one, value in stated]
    lines += [("constraint", text) for text in plan.constraints]
    return lines


def best_in_words(plan: SearchPlan, best: AnyTrial) -> str:
    """The line that names the best trial."""
    objective = plan.objectives.first
    what = f"{objective.goal}: " if isinstance(objective, TimeToTarget) else f"{objective.metric.title} "
    value, epochs = objective.worth(best.values[0]), epochs_text(Run.of(best).epochs)
    return f"Best: trial {best.number}, {what}{value} after {epochs}"


def why_nothing(plan: SearchPlan, trials: Sequence[AnyTrial]) -> str:
    """Why no trial of the search is the best, or its front is empty; empty if there is nothing to say but that."""
    unfinished = [(_end_of(t), ended_because(t)) for t in begun(counted_trials(trials))]
    if not plan.objectives.several and all(end != INFEASIBLE for end, _ in unfinished):
        return ""
    return no_result_in_words(unfinished, several=plan.objectives.several)


def _end_of(trial: AnyTrial) -> str:
    """Its state, or ``INFEASIBLE``."""
    is_infeasible = trial.state == State.PRUNED and ended_because(trial).startswith(INFEASIBLE)
    return INFEASIBLE if is_infeasible else trial.state.name


def front_in_words(plan: SearchPlan, done: list[AnyTrial]) -> str:
    """How many trials no other one beats. ``done``: sorted, the best in the first objective first."""
    front = plan.objectives.front(done)
    return (
        f"The Pareto front holds {len(front)} of {len(done)} finished trials: no other one is as good in all "
        f"objectives and better in one. {PARETO_FILE} has them, and bigbatch report a table."
    )


def failures_in_words(trials: Sequence[AnyTrial]) -> list[str]:
    """A text for each failed trial. One of several lines names the first trial where it would repeat that one's."""
    said: dict[str, int] = {}
    texts, retries = [], retried_trials(trials)
    for trial in begun(trials):
        if trial.state != State.FAIL:
            continue
        again = f" (tried again as trial {retries[trial.number]})" if trial.number in retries else ""
        because = ended_because(trial)
        first = said.setdefault(because, trial.number)
        if "\n" in because and first != trial.number:
            because = f"as trial {first}"
        texts.append(f"trial {trial.number} failed{again}: {because}")
    return texts


def refusals_in_words(trials: Sequence[FrozenTrial]) -> list[str]:
    """A line about the configurations that could not begin; no line if all could."""
    refused = [trial for trial in trials if was_refused(trial)]
    if not refused:
        return []
    because = in_one_line(ended_because(refused[-1]))
    what = f"{len(refused)} configuration{'s were' if len(refused) > 1 else ' was'} refused before training"
    return [f"{what}, and cost{'' if len(refused) > 1 else 's'} no trial; the last one: {because}."]
