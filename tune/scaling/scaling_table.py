"""A scaling study in words: the plan, the table from serial to many nodes, the model and what it means."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from bigbatch.train_loop.config.words import epochs_text
from bigbatch.tune.console.answer_words import seconds_words
from bigbatch.tune.console.wrapped import aligned, from_here
from bigbatch.tune.scaling.analysis import LEAST_EFFICIENCY, ModelledSize, ScalingAnalysis
from bigbatch.tune.scaling.scale_plan import WEAK, ScalePlan, rate_rule_words
from bigbatch.tune.scaling.size_process import CONFIG_FILE
from bigbatch.tune.scaling.size_result import SizeResult, size_folder
from bigbatch.tune.scaling.step_model import FEWEST_SIZES, LinkCost

HEAD = (
    "", "WORKERS", "NODES", "BATCH", "PEAK LR", "IMAGES/S", "SPEED-UP", "EFFICIENCY", "EPOCH", "COMM.", "DATA",
)  # fmt: skip
MODEL_HEAD = ("model", "WORKERS", "NODES", "BATCH", "IMAGES/S", "EFFICIENCY", "EPOCH", "COMM.", "DATA")
POOR_MODEL = 0.2
"""From this error at sizes left out on, the model's lines carry a warning."""


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
    head = table_head(plan, found)
    return aligned([head, *size_rows(plan, found)], right=range(1, len(head)))


def table_head(plan: ScalePlan, found: ScalingAnalysis) -> list[str]:
    """The titles of the columns of ``size_rows``."""
    return [*HEAD, *_objective_head(plan, found)]


def size_rows(plan: ScalePlan, found: ScalingAnalysis) -> list[list[str]]:
    """A row of texts for each measured size."""
    return [_size_row(plan, found, one) for one in found.sizes]


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


def model_text(found: ScalingAnalysis) -> str:
    """The model's table with its error, marked as a model; or why there is none."""
    first, *terms = model_terms(found)
    lines = [first, *(f"  {line}" for line in [*terms, *model_notes(found)])]
    if found.beyond:
        lines.append(aligned([MODEL_HEAD, *model_rows(found)], right=range(1, len(MODEL_HEAD))))
    return "\n".join(lines)


def model_terms(found: ScalingAnalysis) -> list[str]:
    """What was fitted, and its error at sizes left out; or why there is no model."""
    model = found.model
    if model is None:
        return [
            f"No model: it needs {FEWEST_SIZES} measured sizes, or its error is not known; here "
            f"{'is' if len(found.sizes) == 1 else 'are'} {len(found.sizes)}. Measure more sizes with --workers."
        ]
    step, image, own, shared = map(
        brief_seconds, (model.step_s, model.image_s, model.own_input_s, model.shared_input_s)
    )
    lines = ["MODEL, not measured: a step = compute + input + ring all-reduce"]
    lines.append(f"compute     {step} + {image} for each image of a worker")
    lines.append(f"input       {own} for each image of a worker + {shared} for each image of all")
    size = f"{found.gradient_bytes / 1e6:,.1f} MB of gradients"
    for where, link in (("within a node", model.within), ("between nodes", model.between)):
        if link is not None:
            lines.append(f"all-reduce  {where}: {link_words(link)}, {size}")
    errors = ", ".join(f"{round(100 * error):+d} % at {workers}" for workers, error in found.errors.items())
    lines.append(f"error of the step's time at each size, by a model of the others: {errors}")
    return lines


def model_rows(found: ScalingAnalysis) -> list[list[str]]:
    """A row of texts for each size that only the model knows, in the columns of ``MODEL_HEAD``."""
    return [_modelled_row(found, one) for one in found.beyond]


def model_notes(found: ScalingAnalysis) -> list[str]:
    """What makes the model's lines less certain."""
    notes, model = [], found.model
    worst = max(map(abs, found.errors.values()), default=0.0)
    if worst >= POOR_MODEL:
        notes.append(
            f"WARNING: the model misses sizes by up to {100 * worst:.0f} %. Measure more steps (--profile-steps) on "
            "idle devices, or more sizes."
        )
    beyond_a_node = [one.workers for one in found.beyond if one.nodes > 1]
    if model is not None and model.between is None and beyond_a_node:
        notes.append(
            f"WARNING: no size with several nodes was measured. From {beyond_a_node[0]} workers on, the network "
            "between nodes is taken for as fast as that within one; it is slower."
        )
    if model is not None and sum(one.nodes > 1 for one in found.sizes) == 1 and beyond_a_node:
        notes.append(
            "WARNING: only one size with several nodes was measured. All its cost is taken for bandwidth, none "
            "for latency, which grows with the workers."
        )
    return notes


def link_words(link: LinkCost) -> str:
    """``9.3 GB/s and 12 µs a turn``; a part that the sizes do not show is left out."""
    parts = [f"{1e-9 / link.s_per_byte:,.3g} GB/s"] if link.s_per_byte > 0 else []
    parts += [f"{brief_seconds(link.latency_s)} a turn"] if link.latency_s > 0 else []
    return " and ".join(parts) or "hidden behind the backward pass"


def _modelled_row(found: ScalingAnalysis, one: ModelledSize) -> list[str]:
    first = found.sizes[0]
    per_worker = first.global_size / first.step_s / first.workers
    return [
        "model", f"{one.workers}", f"{one.nodes}", f"{one.global_size:,}", f"{one.images_per_s:,.0f}",
        f"{100 * one.images_per_s / one.workers / per_worker:.0f} %",
        "–" if one.epoch_s is None else brief_seconds(one.epoch_s),
        f"{100 * one.step.communication_s / one.step.step_s:.0f} %", f"{100 * one.step.data_s / one.step.step_s:.0f} %",
    ]  # fmt: skip


def useful_text(found: ScalingAnalysis) -> str:
    """How many workers are useful, and why, in a sentence or two."""
    useful = found.useful
    part = f"{100 * LEAST_EFFICIENCY:.0f} %"
    if useful.next_workers is None:
        first = (
            f"Up to {_workers(useful.workers)}, the most looked at, at least {part} of the device hours buy progress."
        )
    else:
        first = (
            f"Past {_workers(useful.workers)} more is waste: at {useful.next_workers} less than {part} of the device "
        )
        first += f"hours buy progress, compared with {_workers(found.sizes[0].workers)}."
    modelled = {one.workers for one in found.beyond}
    if useful.workers in modelled or useful.next_workers in modelled:
        first += " This rests on the model."
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
