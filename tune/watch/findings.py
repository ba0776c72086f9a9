"""The plan before a search and the findings after it, as text."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console

from bigbatch.cluster.host import json_values
from bigbatch.cluster.host.atomic_files import read_json
from bigbatch.cluster.host.root import ROOT
from bigbatch.train_loop.config.plug_ins import shown_name
from bigbatch.train_loop.config.words import epochs_text
from bigbatch.train_loop.host.disk_space import quota_lines
from bigbatch.tune.plan.enqueued import in_words
from bigbatch.tune.plan.holdout import images_in_words, kinds_in_words
from bigbatch.tune.plan.notes import plan_notes, smaller_steps
from bigbatch.tune.plan.own_components import own_component_lines
from bigbatch.tune.plan.search_plan import SearchPlan
from bigbatch.tune.plan.trainable_plan import trainable_lines
from bigbatch.tune.plan.warm_start import known_in_words
from bigbatch.tune.study.certainty import compare_with_best
from bigbatch.tune.study.confirmation import Confirmed
from bigbatch.tune.study.frontier_file import FRONTIER_FILE, FRONTIER_FOLDER
from bigbatch.tune.study.ledger import DeviceSeconds
from bigbatch.tune.study.patient_journal import JOB_VARIABLE
from bigbatch.tune.study.provenance import redact
from bigbatch.tune.watch.columns import Columns, columns_of
from bigbatch.tune.watch.compared_words import how_sure
from bigbatch.tune.watch.confirmed_words import (
    NOT_CONFIRMED,
    by_confirmed,
    confirm_lines,
    confirmed_best,
    confirmed_words,
    holdout_words,
    seeds_in_words,
)
from bigbatch.tune.watch.display import duration
from bigbatch.tune.watch.failures import failures_in_words
from bigbatch.tune.watch.frontier_table import WIDTH, answer_in_words, frontier_lines, of_the_answer
from bigbatch.tune.watch.observer import TrialView, ranked
from bigbatch.tune.watch.outcome import best_in_words, ends_in_words, no_interval, objective_lines, print_front
from bigbatch.tune.watch.setting_words import own_next_step

RUNNER_UPS = 4
STEMS = {
    "imagenet": "imagenet: 7×7/2 and max-pool",
    "small": "small: 3×3, no pooling",
    "small_pool": "small_pool: 3×3/2 and max-pool",
}


def print_plan(plan: SearchPlan, console: Console) -> None:
    """Print what the search will do, its highest cost, and where its results go."""
    for key, text in _trainable_lines(plan):
        console.print(f"{key:11}{text}", markup=False, soft_wrap=True)


def print_machine(plan: SearchPlan, console: Console) -> None:
    """Print the resources of a joined cluster, and how the search uses them."""
    model = "" if _searches_models(plan) else f"; {plan.model}{_why_model(plan)}"
    text = f"The cluster has {plan.machine.describe()}: {plan.share.describe()}{model}"
    console.print(text, markup=False, soft_wrap=True)


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
    factors = plan.workload.lr_factors.items()
    lines += [("", f"{f'prior[{name}]':24} × {factor:.3g}, by its range test") for name, factor in factors]
    stops = f"strategy {shown_name(plan.strategy)}, stopping {shown_name(plan.stopping)}"
    return [
        *lines,
        *(trainable_lines(plan.space) or _data_lines(plan)),
        *own_component_lines(plan),
        *_frontier(plan),
        ("trials", f"{_how_many(plan)} of at most {epochs_text(plan.max_epochs)}, {stops}"),
        *([("fidelity", plan.fidelity.describe(plan.open_ended))] if plan.fidelity else []),
        *([("transfer", plan.transfer.describe(plan.open_ended))] if plan.transfer else []),
        *([("find-lr", "a range test of each optimizer before the first trial")] if plan.options.find_lr else []),
        *([("first", in_words(plan.enqueued))] if plan.enqueued else []),
        *(("warm start", known_in_words(study)) for study in plan.warm_start),
        *objective_lines(plan),
        *confirm_lines(plan),
        *(("note", text) for text in plan_notes(plan)),
        ("resources", _resources(plan)),
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
    text = f"the best for each {plan.frontier.name}; the answer is the largest within {plan.tolerance:g} points"
    return [("frontier", f"{text} of the best")]


def print_frontier(plan: SearchPlan, console: Console) -> Mapping[str, object]:
    """Print the table of frontier.json and what follows from it. Returns its content; empty without a frontier."""
    values = read_json(plan.folder / FRONTIER_FILE) if plan.frontier else {}
    if values:
        hours = "GPU h" if plan.machine.gpus else "worker h"
        console.print()
        for line, is_answer in frontier_lines(values, hours, console.width if console.is_terminal else WIDTH):
            console.print(line, style="bold" if is_answer else "", markup=False, soft_wrap=True)
        for text in answer_in_words(values, hours):
            console.print(text, markup=False, soft_wrap=True)
        each = quoted_path(plan.folder / FRONTIER_FOLDER)
        console.print(f"Each row's configuration: {each}/VALUE.json", markup=False, soft_wrap=True)
    return values


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
    if not plan.machine.nodes:
        return " (auto: resnet50 if the cluster has GPUs)"
    return (
        " (auto: there is an accelerator)"
        if plan.machine.gpus
        else " (auto: no accelerator here; --model resnet50 works too)"
    )


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
    if plan.fidelity:
        words = plan.fidelity.cost_in_words(plan.max_epochs)
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
    confirmed: Mapping[int, Confirmed] | None = None,
) -> None:
    """Print the best configuration, how certain it is, and the next command.

    Args:
        confirmed: number of a confirmed trial → what its fresh seeds came to.
    """
    confirmed = confirmed or {}
    done = by_confirmed(ranked(trials), confirmed, plan.objectives.first)
    _print_counts(plan, trials, len(done), elapsed_s, used, console)
    if not done:
        return
    frontier = print_frontier(plan, console)
    done = of_the_answer(done, frontier, plan.frontier)
    best, columns = done[0], columns_of(plan.space, plan.workload, plan.overrides, plan.ranges)
    text = best_in_words(best)
    if best.number in confirmed:
        text = confirmed_best(confirmed[best.number], plan.objectives.first, best.epoch)
    console.print(f"\n{text}", style="bold")
    for name, value in columns.of(best).items():
        console.print(f"  {name:10} {value}", markup=False)
    if plan.objectives.several:
        print_front(plan, done, columns, console)
    elif best.number in confirmed:
        _print_confirmed(plan, done, confirmed, columns, console)
    else:
        _print_runner_ups(plan, done, columns, console)
    best_file = quoted_path(plan.folder / "best.json")
    next_step = f"Train it in full:\n  {train_command(plan)}"
    next_step = own_next_step(plan.model, best_file) if plan.trainable else next_step
    console.print(f"\n{next_step}", markup=False, soft_wrap=True)


def _print_counts(
    plan: SearchPlan, trials: list[TrialView], done: int, elapsed_s: float, used: DeviceSeconds, console: Console
) -> None:
    """Print how many trials ended in which way, what was used, and why trials failed."""
    once = [t for t in trials if not t.is_replaced and t.confirms is None]
    pruned, failed, waiting = (_count(once, state) for state in ("PRUNED", "FAIL", "WAITING"))
    paused, infeasible = sum(t.paused for t in once), sum(t.is_infeasible for t in once)
    cheap = sum(t.ran_cheaply for t in once)
    unit = "GPU hours" if plan.machine.gpus else "worker hours (no GPU)"
    console.print(
        f"\n{done} of {len(once)} trials ran to their end, {f'{cheap} cheap runs, ' if cheap else ''}"
        f"{pruned - paused - infeasible - cheap} stopped early, "
        f"{f'{infeasible} infeasible, ' if infeasible else ''}{failed} failed"
        f"{f', {paused} paused' if paused else ''}"
        f"{f', {waiting} interrupted' if waiting else ''}; "
        f"{duration(elapsed_s)} elapsed, {used.words(unit)}; {used.energy.words()}."
    )
    for line in failures_in_words(trials):
        console.print(f"  {line}", markup=False)


def _print_confirmed(
    plan: SearchPlan,
    done: list[TrialView],
    confirmed: Mapping[int, Confirmed],
    columns: Columns,
    console: Console,
) -> None:
    """What the fresh seeds say of the best trial, the first of ``done``, and of the next best ones."""
    among = sum(trial.number in confirmed for trial in done)
    objective = plan.objectives.first
    sure = confirmed_words(
        confirmed[done[0].number],
        objective,
        images=plan.data.val_size,
        held_out=plan.data.holdout_size,
        searched=len(done),
        among=among,
    )
    console.print(f"\n{sure}{' Runner-ups:' if done[1:] else ''}", markup=False, soft_wrap=True)
    for trial in done[1 : 1 + RUNNER_UPS]:
        found = confirmed.get(trial.number)
        value, mark = (found.mean, seeds_in_words(found)) if found else (trial.value, "not confirmed")
        line = f"  {objective.worth(value):>7}  trial {trial.number} ({mark}): {columns.line(trial)}"
        console.print(line, markup=False, soft_wrap=True)


def _print_runner_ups(plan: SearchPlan, done: list[TrialView], columns: Columns, console: Console) -> None:
    """How sure the best trial is, and the next best ones."""
    marks = ["" for _ in done[1:]]
    if plan.objectives.first.has_interval:
        found = compare_with_best([t.value or 0.0 for t in done], plan.data.val_size)
        marks = [" (clearly worse)" if worse else " (cannot be told apart)" for worse in found.worse]
        held = json_values.number_or_none(done[0].records[-1], "holdout_top1") if done[0].records else None
        first = f"{holdout_words(held, plan.data.holdout_size)} " if held is not None else ""
        console.print(
            f"\n{first}{how_sure(done, found, plan.data.val_size, _compared_with(plan))}", markup=False, soft_wrap=True
        )
    else:
        console.print(f"\n{no_interval(plan.objectives.first, len(done))}", markup=False, soft_wrap=True)
    for trial, mark in list(zip(done[1:], marks, strict=True))[:RUNNER_UPS]:
        console.print(f"  {ends_in_words(trial):>7}  trial {trial.number}{mark}: {columns.line(trial)}", markup=False)
    if plan.objectives.first.has_interval and done[1:]:
        console.print(NOT_CONFIRMED, markup=False, soft_wrap=True)


def say_retries(retries: Mapping[int, int], console: Console) -> None:
    """Print which failed trials ``--retry-failed`` repeats."""
    words = ", ".join(f"{failed} as trial {number}" for failed, number in sorted(retries.items()))
    text = f"Tried again: trial {words}." if words else "--retry-failed: there is no failed trial to try again."
    console.print(f"\n{text}", markup=False, soft_wrap=True)


def _compared_with(plan: SearchPlan) -> str:
    """Which trials compare with the best one, where those of other batches do not: `` of its batch``."""
    if plan.frontier is None:
        return ""
    return " of its batch" if plan.frontier.name == "global_batch_size" else f" of its {plan.frontier.name}"


def train_command(plan: SearchPlan) -> str:
    """The command that trains the best configuration in full."""
    epochs = max(30, 2 * plan.max_epochs)
    command = "bigbatch train" if _by_console_command() else f"python {quoted_path(ROOT / 'train_loop' / 'run.py')}"
    return f"{command} --config {quoted_path(plan.folder / 'best.json')} --set epochs={epochs}"


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
    """Print one line: which file system is full, and the command that continues the study."""
    line = f"error: {full}. All reported epochs are saved. Make room there, then continue with: {resume_command(plan)}"
    print(line, file=sys.stderr, flush=True)


def _by_console_command() -> bool:
    return Path(sys.argv[0]).name == "bigbatch"


def quoted_path(path: Path) -> str:
    """The path as a user would type it in the current folder."""
    with contextlib.suppress(ValueError):
        path = path.relative_to(Path.cwd())
    return shlex.quote(str(path))


def _count(trials: list[TrialView], state: str) -> int:
    return sum(t.state == state for t in trials)
