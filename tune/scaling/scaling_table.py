"""What the trainings of all sizes say: a table, and the number of workers past which more is waste.

A batch of B images needs 1 + B/B_noise times the images of a very small one for the same progress, so 1 + B_noise/B
times the fewest steps (McCandlish et al. 2018, arXiv 1812.06162, section 2.3, where B_noise is the noise scale). The
device hours for the same progress at n workers, compared with the smallest size, are then worth

    images/s of a worker(n) / images/s of a worker(smallest) · (1 + B(smallest)/B_noise) / (1 + B(n)/B_noise)

At half of it every second device hour buys nothing: that is the limit here, as it is for the noise scale itself, at
which twice the images are needed.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bigbatch.base import json_values
from bigbatch.train_loop.config import ConfigError, TrainConfig
from bigbatch.train_loop.config.words import amount, epochs_text
from bigbatch.tune.console.answer_words import seconds_words
from bigbatch.tune.console.text import aligned, from_here
from bigbatch.tune.runs import metrics
from bigbatch.tune.scaling.scale_plan import WEAK, ScaleMachine, ScalePlan

LEAST_EFFICIENCY = 0.5
RESULT_FILE = "result.json"
"""What ``bigbatch train`` leaves in the folder of a size that is done."""


@dataclass(frozen=True)
class SizeResult:
    """One finished size."""

    workers: int
    config: TrainConfig
    images_per_s: float
    """Of all workers: the median of the epochs after the first, which also warms up."""
    epoch_s: float
    """Median seconds, with validation and checkpoints."""
    hours: float
    """Device hours of all epochs."""
    last: Mapping[str, object]
    """The record of the last epoch."""
    noise_scale: float | None
    """Images; the median of the second half of the epochs: it grows while a network learns. None: not measured."""


def read_sizes(output: Path) -> list[SizeResult]:
    """All finished sizes of a folder, smallest first. Raises ConfigError for a damaged file."""
    found = (_read_size(path) for path in output.glob(f"*/{RESULT_FILE}") if path.parent.name.isdigit())
    return sorted(found, key=lambda one: one.workers)


def _read_size(path: Path) -> SizeResult:
    try:
        values = json_values.json_object(path.read_text())
        config = TrainConfig.from_dict(json_values.mapping(values, "config"))
        history = json_values.objects(values, "history")
        later = history[1:]
        noise = [json_values.number_or_none(record, "noise_scale") for record in history[len(history) // 2 :]]
        known, workers = [value for value in noise if value is not None], int(path.parent.name)
        return SizeResult(
            workers=workers,
            config=config,
            images_per_s=statistics.median(json_values.number(record, "images_per_s") for record in later),
            epoch_s=statistics.median(metrics.of_record(metrics.EPOCH_S, record) for record in later),
            hours=sum(metrics.of_record(metrics.EPOCH_S, record) for record in history) * workers / 3600,
            last=history[-1],
            noise_scale=statistics.median(known) if known else None,
        )
    except (OSError, ValueError, IndexError) as error:
        raise ConfigError(
            f"a finished size is a readable {RESULT_FILE}; got {str(path)!r} ({error}). Remove its folder: the same "
            "command measures this size again."
        ) from None


def plan_lines(plan: ScalePlan, done: Sequence[int]) -> list[str]:
    """What will be trained. ``done``: sizes that are finished."""
    c = plan.config
    same = "each worker keeps its share of the batch" if plan.mode == WEAK else "the global batch stays"
    lines = [
        f"{plan.mode} scaling of {from_here(plan.source)}: {c.model.name} on {c.data.name}; {same}",
        f"each size: {epochs_text(plan.sizes[0].config.epochs)} of training; {plan.machine.unit}",
        *(f"note: {text}" for text in plan.info.notes),
    ]
    for size in plan.sizes:
        split = size.config.batch.split(size.workers)
        lines.append(
            f"  {amount(size.workers, 'worker'):>10}, {size.nodes:,} node{'s' * (size.nodes > 1)}: "
            f"batch {split.global_size} = {split.workers} × "
            f"{split.accumulation_steps} × {split.micro_size}, lr {size.config.optimizer.peak_lr:.4g}"
            f"{', done' * (size.workers in done)}"
        )
    return [*lines, f"results go to {from_here(plan.output)}"]


def table_text(machine: ScaleMachine, sizes: Sequence[SizeResult]) -> str:
    """The table of the finished sizes."""
    metric = "val_top1" if json_values.number_or_none(sizes[0].last, "val_top1") is not None else "val_loss"
    hours, title = ("GPU HOURS" if machine.unit == "GPUs" else "CORE HOURS"), metrics.TITLES[metric].upper()
    head = ["WORKERS", "NODES", "BATCH", "PEAK LR", "IMAGES/S", "EFFICIENCY", "EPOCH", hours, title]
    alone = progress_efficiencies(sizes, None)
    rows = [
        [
            f"{one.workers}", f"{machine.nodes_for(one.workers)}", f"{one.config.batch.global_size:,}",
            f"{one.config.optimizer.peak_lr:.4g}", f"{one.images_per_s:,.0f}", f"{100 * alone[one.workers]:.0f} %",
            seconds_words(one.epoch_s), f"{one.hours:.2g}", f"{json_values.number(one.last, metric):.4g}",
        ]
        for one in sizes
    ]  # fmt: skip
    return aligned([head, *rows], right=range(len(head)))


def progress_efficiencies(sizes: Sequence[SizeResult], noise_scale: float | None) -> dict[int, float]:
    """By workers: progress per device hour as a part of the smallest size's; of images alone without a noise scale."""
    first, found = sizes[0], {}
    for one in sizes:
        found[one.workers] = one.images_per_s / one.workers / (first.images_per_s / first.workers)
        if noise_scale:
            small, large = first.config.batch.global_size, one.config.batch.global_size
            found[one.workers] *= (1 + small / noise_scale) / (1 + large / noise_scale)
    return found


def useful_text(sizes: Sequence[SizeResult]) -> str:
    """Past how many workers more is waste, in a line."""
    met = [one.noise_scale for one in sizes if one.noise_scale is not None]
    noise = statistics.median(met) if met else None
    basis = (
        f"with a gradient noise scale of {noise:,.0f} images" if noise else "by speed alone: no noise scale is known"
    )
    efficiencies = progress_efficiencies(sizes, noise)
    part = f"{100 * LEAST_EFFICIENCY:.0f} % of the device hours buy progress"
    wasteful = next((n for n, found in efficiencies.items() if found < LEAST_EFFICIENCY), None)
    if wasteful is None:
        return f"Up to {amount(sizes[-1].workers, 'worker')}, the most measured, at least {part} ({basis})."
    useful = max(n for n in efficiencies if n < wasteful)
    return f"Past {amount(useful, 'worker')} more is waste: at {wasteful} less than {part} ({basis})."
