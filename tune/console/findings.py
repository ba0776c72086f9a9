"""The plan before a search and the findings after it, as text."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from bigbatch.base import json_values
from bigbatch.base.root import ROOT
from bigbatch.train_loop.config.given import USABLE
from bigbatch.train_loop.config.plug_ins import shown_name
from bigbatch.train_loop.config.words import epochs_text
from bigbatch.train_loop.host.disk_space import quota_lines
from bigbatch.tune.budget.ledger import DeviceSeconds
from bigbatch.tune.console.answer_words import answer_in_words, counted_noun
from bigbatch.tune.console.columns import Columns, columns_of, full_run_command, own_next_step
from bigbatch.tune.console.confirmation_words import by_confirmed, confirm_lines, confirmation_in_words
from bigbatch.tune.console.display import duration, end_in_words
from bigbatch.tune.console.frontier_table import WIDTH, frontier_lines, of_the_answer
from bigbatch.tune.console.outcome import best_in_words, failures_in_words, objective_lines, print_front
from bigbatch.tune.console.plan_notes import plan_notes, smaller_steps
from bigbatch.tune.console.wrapped import from_here, say, say_command
from bigbatch.tune.plan.enqueued import in_words
from bigbatch.tune.plan.fitting import side_of_images, suits_resnet50
from bigbatch.tune.plan.holdout import images_in_words, kinds_in_words
from bigbatch.tune.plan.own_code import own_component_lines, trainable_lines
from bigbatch.tune.plan.search_plan import SearchPlan
from bigbatch.tune.plan.warm_start import known_in_words
from bigbatch.tune.runs.observer import TrialView, ranked
from bigbatch.tune.runs.reported import Confirmed, clearly_worse
from bigbatch.tune.storage.description import redact
from bigbatch.tune.storage.frontier_file import FRONTIER_FOLDER
from bigbatch.tune.storage.patient_journal import JOB_VARIABLE

RUNNER_UPS = 4


@dataclass(frozen=True)
class SearchAnswer:
    """What a search has found, for its last lines."""

    values: Mapping[str, object] = field(default_factory=dict)
    """The content of frontier.json; empty where there is none: several objectives, or a time to a target."""
    confirmed: Mapping[int, Confirmed] = field(default_factory=dict)
    """Number of a confirmed trial → what its fresh seeds came to."""
    unconfirmed: tuple[int, float] = (0, 0.0)
    """Confirmations that are still to be made, and the device hours that they take."""


STEMS = {
    "imagenet": "imagenet: 7×7/2 and max-pool",
    "small": "small: 3×3, no pooling",
    "small_pool": "small_pool: 3×3/2 and max-pool",
}


NO_ANSWER = SearchAnswer()
"""Of a search that has found nothing, or has several objectives or a target."""


def print_plan(plan: SearchPlan, console: Console) -> None:
    """Print what the search will do, its highest cost, and where its results go."""
    for key, text in _trainable_lines(plan):
        say(console, text, f"{key:11}")


def print_machine(plan: SearchPlan, console: Console) -> None:
    """Print the resources of a joined cluster, and how the search uses them."""
    model = "" if _searches_models(plan) else f"; {plan.model}{_why_model(plan)}"
    say(console, f"The cluster has {plan.machine.describe()}: {plan.share.describe()}{model}")
    if sharing := plan.sharing.words(plan.machine):
        say(console, sharing, f"{'on a GPU':11}")


def _trainable_lines(plan: SearchPlan) -> list[tuple[str, str]]:
    lines = [
        ("study", plan.study + _resumed(plan)),
        ("space", f"{plan.space.name}: {plan.space.doc}"),
    ]
    lines += [("", f"{name:24} {interval.describe()}") for name, interval in plan.ranges.items()]
    lines += [("", f"{key:24} {value} (set)") for key, value in plan.overrides.items() if key != "data.holdout"]
    fixed = columns_of(plan.space, plan.workload, plan.overrides, plan.ranges).fixed.items()
    lines += (
        [("fixed", ", ".join(f"{name} {text}" for name, text in fixed if text))] if any(dict(fixed).values()) else []
    )
    stops = f"strategy {shown_name(plan.strategy)}, stopping {shown_name(plan.stopping)}"
    return [
        *lines,
        *(trainable_lines(plan.space) or _data_lines(plan)),
        *own_component_lines(plan),
        *_frontier(plan),
        ("trials", f"{_how_many(plan)} of at most {epochs_text(plan.max_epochs)}, {stops}"),
        *([("first", in_words(plan.enqueued))] if plan.enqueued else []),
        *(("warm start", known_in_words(study)) for study in plan.warm_start),
        *objective_lines(plan),
        *confirm_lines(plan),
        *(("note", text) for text in plan_notes(plan)),
        ("resources", _resources(plan)),
        *([("on a GPU", text)] if (text := plan.sharing.words(plan.machine)) else []),
        ("at most", _cost(plan)),
        ("results", quoted_path(plan.folder)),
        *(("", line) for line in quota_lines()),
    ]


def _data_lines(plan: SearchPlan) -> list[tuple[str, str]]:
    """What our own training loop trains, and on what."""
    d, searches_models = plan.data, _searches_models(plan)
    last_step = smaller_steps(plan)
    return [
        ("data", f"{d.name}: {images_in_words(d)}{kinds_in_words(d)}"),
        *([("last step", last_step)] if last_step else []),
        *([] if searches_models else [("model", shown_name(plan.model) + _why_model(plan)), *_stem(plan)]),
    ]


def _searches_models(plan: SearchPlan) -> bool:
    return any(plan.space.key_of(name) == "model.name" for name in plan.ranges)


def _frontier(plan: SearchPlan) -> list[tuple[str, str]]:
    """What the search compares, and what its answer will be."""
    if plan.frontier is None or plan.frontier.searched is None:
        return []
    within = plan.tolerance.words(plan.objectives.first.metric)
    numbers = all(isinstance(value, (int, float)) for value in plan.frontier.values)
    which = "largest" if numbers else "last"
    text = f"the best for each {plan.frontier.name}; the answer is the {which} within {within} of the best"
    return [("frontier", text)]


def print_frontier(values: Mapping[str, object], hours: str, console: Console) -> None:
    """Print the table of frontier.json's content, where it compares values."""
    lines = frontier_lines(values, hours, console.width if console.is_terminal else WIDTH) if values else []
    for place, (line, is_answer) in enumerate(lines):
        console.print(f"\n{line}" if place == 0 else line, style="bold" if is_answer else "", soft_wrap=True)


def _stem(plan: SearchPlan) -> list[tuple[str, str]]:
    """For a ResNet, its first layers and the image size they suit."""
    if not plan.model.startswith(("resnet", "resnext", "wide_resnet")):
        return []
    setting = plan.overrides.get("model.stem", "auto")
    stem = plan.data.stem if setting == "auto" else setting
    text = f"{STEMS[stem]}" + (f", for {plan.data.image_size} px (auto)" if setting == "auto" else "")
    if stem == "small":
        text += "; slower than model.stem=imagenet, which halves the image's sides twice before the blocks"
    return [("stem", text)]


def _resumed(plan: SearchPlan) -> str:
    if not plan.resume:
        return ""
    return " (resumed; failed trials are repeated)" if plan.options.retry_failed else " (resumed)"


def _why_model(plan: SearchPlan) -> str:
    if not plan.model_was_auto:
        return ""
    have = f"{plan.data.train_size:,} images of {side_of_images(plan.data)} px"
    if not suits_resnet50(plan.data):
        return f" (auto: {have}; --model resnet50 works too)"
    if not plan.machine.nodes:
        return f" (auto: {have}; resnet50 if the cluster has GPUs)"
    if not plan.machine.gpus:
        return " (auto: no accelerator here; --model resnet50 works too)"
    return f" (auto: {have}, and there is an accelerator)"


def _resources(plan: SearchPlan) -> str:
    share, machine = plan.share, plan.machine
    if not machine.nodes:
        return f"Ray cluster {plan.address}, {share.workers} worker{'s' * (share.workers != 1)} for each trial"
    cores = f"{machine.cpus} CPU core{'s' * (machine.cpus != 1)}"
    have = f"{machine.gpus} GPU{'s' * (machine.gpus != 1)}, {cores}" if machine.gpus else f"{cores}, no GPU"
    return f"{have}: {share.describe()}"


def _how_many(plan: SearchPlan) -> str:
    return "as many as the budget allows," if plan.open_ended else str(plan.trials)


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
    trials: list[TrialView],
    elapsed_s: float,
    used: DeviceSeconds,
    console: Console,
    found: SearchAnswer = NO_ANSWER,
) -> None:
    """Print the answer, how certain it is, whether it was confirmed, and the next command."""
    done = by_confirmed(ranked(trials), found.confirmed, plan.objectives.first)
    _print_counts(plan, trials, len(done), elapsed_s, used, console)
    if not done:
        return
    hours = "GPU h" if plan.machine.gpus else "worker h"
    headline, *sentences = answer_in_words(found.values, hours) if found.values else [best_in_words(done[0])]
    print_frontier(found.values, hours, console)
    say(console, f"\n{headline}", style="bold")
    if found.values.get(USABLE) is False:
        return
    done = of_the_answer(done, json_values.mapping(found.values, "answer"), plan.frontier)
    columns = columns_of(plan.space, plan.workload, plan.overrides, plan.ranges)
    for name, value in columns.of(done[0]).items():
        say(console, f"  {name:10} {value}")
    if plan.objectives.several:
        print_front(plan, done, columns, console)
    if found.values:
        sentences.append(
            confirmation_in_words(found.values, plan.to_dict(), resume_command(plan), hours, found.unconfirmed)
        )
    for text in sentences:
        say(console, text)
    if not plan.objectives.several:
        _print_runner_ups(plan, done, found.confirmed, columns, console)
    if plan.frontier and plan.frontier.searched:
        each = quoted_path(plan.folder / FRONTIER_FOLDER)
        say(console, f"\nEach row's configuration: {each}/VALUE.json")
    best_file = quoted_path(plan.folder / "best.json")
    if plan.trainable:
        say(console, f"\n{own_next_step(plan.model, best_file)}")
    else:
        say_command(console, train_command(plan), "\nTrain it in full:")


def _print_counts(
    plan: SearchPlan, trials: list[TrialView], done: int, elapsed_s: float, used: DeviceSeconds, console: Console
) -> None:
    """Print how many trials ended in which way, what was used, and why trials failed."""
    once = [t for t in trials if not t.is_replaced and t.confirms is None]
    pruned, failed, waiting = (sum(t.state == state for t in once) for state in ("PRUNED", "FAIL", "WAITING"))
    paused, infeasible = sum(t.paused for t in once), sum(t.is_infeasible for t in once)
    unit = "GPU hours" if plan.machine.gpus else "worker hours (no GPU)"
    console.print(
        f"\n{done} of {len(once)} trials ran to their end, {pruned - paused - infeasible} stopped early, "
        f"{f'{infeasible} infeasible, ' if infeasible else ''}{failed} failed"
        f"{f', {paused} paused' if paused else ''}"
        f"{f', {waiting} interrupted' if waiting else ''}; "
        f"{duration(elapsed_s)} elapsed, {used.words(unit)}; {used.energy.words()}."
    )
    for line in failures_in_words(trials):
        console.print(f"  {line}")


def _print_runner_ups(
    plan: SearchPlan,
    done: list[TrialView],
    confirmed: Mapping[int, Confirmed],
    columns: Columns,
    console: Console,
) -> None:
    """The next best trials after the first of ``done``, by the values that choose."""
    marks = ["" for _ in done[1:]]
    if plan.objectives.first.metric.is_proportion and done[0].number not in confirmed:
        verdicts = clearly_worse([t.value or 0.0 for t in done], plan.data.val_size)
        marks = [" (clearly worse)" if worse else " (cannot be told apart)" for worse in verdicts]
    if done[1:]:
        console.print("\nRunner-ups, by the values that choose:")
    for trial, mark in list(zip(done[1:], marks, strict=True))[:RUNNER_UPS]:
        seeds, worth = confirmed.get(trial.number), end_in_words(trial)
        if seeds is not None:
            worth, mark = plan.objectives.first.worth(seeds.mean), f" ({counted_noun(len(seeds.seeds), 'fresh seed')})"
        say(console, f"  {worth:>7}  trial {trial.number}{mark}: {columns.line(trial)}")


def say_retries(retries: Mapping[int, int], console: Console) -> None:
    """Print which failed trials ``--retry-failed`` repeats."""
    words = ", ".join(f"{failed} as trial {number}" for failed, number in sorted(retries.items()))
    text = f"Tried again: trial {words}." if words else "--retry-failed: there is no failed trial to try again."
    say(console, f"\n{text}")


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
    if JOB_VARIABLE not in os.environ:  # a job's cluster ends with the job
        parts += ["--address", plan.options.address] if plan.options.address else []
        parts += ["--metrics-port", str(plan.options.metrics_port)] if plan.options.metrics_port else []
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
