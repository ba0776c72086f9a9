"""A scaling study in words: the plan, the table from serial to many nodes, and what it means."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from bigbatch.train_loop.config.words import epochs_text
from bigbatch.tune.console.answer_words import seconds_words
from bigbatch.tune.console.text import aligned, from_here
from bigbatch.tune.scaling.analysis import LEAST_EFFICIENCY, ScalingAnalysis
from bigbatch.tune.scaling.scale_plan import WEAK, ScalePlan, rate_rule_words
from bigbatch.tune.scaling.size_process import CONFIG_FILE
from bigbatch.tune.scaling.size_result import SizeResult, size_folder

HEAD = (
    "", "WORKERS", "NODES", "BATCH", "PEAK LR", "IMAGES/S", "SPEED-UP", "EFFICIENCY", "EPOCH", "COMM.", "DATA",
)  # fmt: skip


def plan_lines(plan: ScalePlan, done: Sequence[int], epoch_s: Mapping[int, float]) -> list[str]:
    """What will be measured, and what that takes as far as it is known.

    Args:
        done: sizes that are finished.
        epoch_s: estimates of the time of an epoch, by workers; empty: not known.
    """
    c = plan.config
    what = f"{c.model.name} on {c.data.name}"
    same = "each worker keeps its share of the batch" if plan.mode == WEAK else "the global batch stays"
    trained = f"{epochs_text(plan.epochs)} of training" if plan.epochs else "no training (--epochs 0)"
    search = f", after a search of {plan.retune_trials} trials" if plan.retune_trials else ""
    lines = [
        f"{plan.mode} scaling of {from_here(plan.source)}: {what}; {same}",
        f"each size: {plan.profile_steps} profiled steps, {trained}{search}; {plan.machine.unit}",
    ]
    lines += [f"note: {text}" for text in plan.info.notes]
    if plan.mode == WEAK:
        lines.append(f"peak rate follows the batch of {c.optimizer.name}: {rate_rule_words(c.optimizer.name)}")
    for size in plan.sizes:
        split = size.config.batch.split(size.workers)
        state = "done" if size.workers in done else ""
        cost = cost_words(plan, epoch_s, [size.workers]) if epoch_s and plan.epochs and not state else ""
        lines.append(
            f"  {size.kind:10} {size.workers:4} worker{'s' if size.workers > 1 else ' '} batch {split.global_size} = "
            f"{split.workers} × {split.accumulation_steps} × {split.micro_size}, lr {size.config.optimizer.peak_lr:.4g}"
            f"{'  ' * bool(state or cost)}{state or cost}"
        )
    if not epoch_s and plan.epochs:
        lines.append("what this takes is known once the first size is measured")
    lines.append(f"results go to {from_here(plan.output)}")
    return lines


def cost_words(plan: ScalePlan, epoch_s: Mapping[int, float], workers: Sequence[int]) -> str:
    """What these sizes take if workers are worth the same at each: ``about 12 min, 0.2 device hours``."""
    epochs = (1 + plan.retune_trials) * max(plan.epochs, 1)
    seconds = [epochs * epoch_s.get(count, 0.0) for count in workers]
    hours = sum(one * count for one, count in zip(seconds, workers, strict=True)) / 3600
    return f"about {brief_seconds(sum(seconds))} of training, {hours:.2g} device hours"


def table_text(plan: ScalePlan, found: ScalingAnalysis) -> str:
    """The table of the measured sizes."""
    head = [*HEAD, *_objective_head(plan, found)]
    return aligned([head, *(_size_row(plan, found, one) for one in found.sizes)], right=range(1, len(head)))


def _objective_head(plan: ScalePlan, found: ScalingAnalysis) -> list[str]:
    if all(one.objective is None and not one.diverged for one in found.sizes):
        return []
    return [f"{plan.objective.metric.title} after {epochs_text(plan.epochs)}".upper()]


def _size_row(plan: ScalePlan, found: ScalingAnalysis, one: SizeResult) -> list[str]:
    row = [
        one.kind, f"{one.workers}", f"{one.nodes}", f"{one.global_size:,}",
        f"{one.peak_lr:.4g}{' (searched)' if one.searched else ''}", f"{one.images_per_s:,.0f}",
        f"{found.speed_up[one.workers]:.2f}", f"{100 * found.efficiency[one.workers]:.0f} %",
        brief_seconds(one.epoch_s), f"{100 * one.communication_share:.0f} %", f"{100 * one.data_share:.0f} %",
    ]  # fmt: skip
    if _objective_head(plan, found):
        row.append(
            "diverged" if one.diverged else "–" if one.objective is None else plan.objective.worth(one.objective)
        )
    return row


def useful_text(found: ScalingAnalysis) -> str:
    """How many workers are useful, and why, in a sentence or two."""
    useful = found.useful
    part = f"{100 * LEAST_EFFICIENCY:.0f} %"
    if useful.next_workers is None:
        first = (
            f"Up to {_workers(useful.workers)}, the most measured, at least {part} of the device hours buy progress."
        )
    else:
        first = (
            f"Past {_workers(useful.workers)} more is waste: at {useful.next_workers} less than {part} of the device "
        )
        first += f"hours buy progress, compared with {_workers(found.sizes[0].workers)}."
    if useful.noise_scale is None:
        return (
            f"{first} Speed alone decided: the gradient noise scale was not measured (it needs an epoch of training)."
        )
    noise = f"The gradient noise scale is {useful.noise_scale:,.0f} images: at that batch a run needs twice the images."
    if useful.by_speed_alone != useful.workers:
        noise += f" By speed alone it would be {useful.by_speed_alone}."
    return f"{first} {noise}"


def _workers(count: int) -> str:
    return f"{count:,} worker{'s' if count > 1 else ''}"


def repeat_text(plan: ScalePlan) -> str:
    """How a row is trained by hand: from serial to multi-node one number changes."""
    config = str(from_here(size_folder(plan.output, plan.sizes[0].workers) / CONFIG_FILE))
    config = config.replace(f"/{plan.sizes[0].workers}/", "/N/")
    also = "; with it change the batch and its rate, which are in the file" if plan.mode == WEAK else ""
    return (
        f"From row to row one number changes, N{also}:\n    bigbatch train --config {shlex.quote(config)} --workers N\n"
        "    srun -n N python train_loop/run.py --config … on several nodes"
    )


def brief_seconds(seconds: float) -> str:
    """As ``seconds_words`` from 90 s on; below ``12.4 s``, ``12.4 ms`` and ``3.1 µs``."""
    if seconds == 0 or seconds >= 90:
        return seconds_words(seconds)
    if seconds >= 1:
        return f"{seconds:.3g} s"
    return f"{1e3 * seconds:.3g} ms" if seconds >= 1e-3 else f"{1e6 * seconds:.3g} µs"
