"""Validation: BatchNorm's statistics before it, the sums over its images, and what of them is recorded."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from bigbatch.train_loop.data.source import Batch
from bigbatch.train_loop.errors import ImageError, NonFiniteLossError
from bigbatch.train_loop.loop.assembly import Run
from bigbatch.train_loop.loop.constant_prediction import SeenTargets, constant_values
from bigbatch.train_loop.loop.device_batches import on_device, seed_batch
from bigbatch.train_loop.loop.metrics import MetricSums
from bigbatch.train_loop.loop.own_metrics import values_of
from bigbatch.train_loop.model import precise_bn
from bigbatch.train_loop.model.losses import LossFunction, has_own_loss, in_float32
from bigbatch.train_loop.plugins.nested import Nested, example_count, map_tensors


def prepare_batch_norm(run: Run) -> None:
    """Prepare BatchNorm's statistics for validation: recompute them, or share rank 0's running averages."""
    config = run.config
    if not precise_bn.is_precise_bn_on(config.precise_bn, run.steps_per_epoch):
        run.world.share_buffers(run.model)
        return
    count = precise_bn.images_of(config.precise_bn_images, run.source.info.train_size)
    if config.model.sync_bn:  # its forward is a collective: as many batches on each rank
        whole = run.split.micro_size * run.world.workers
        count = max(count // whole, 1) * whole
    batches = run.source.bn_batches(
        config.seed, run.progress.epoch, run.split.micro_size, count, run.world.rank, run.world.workers
    )

    numbers = itertools.count()

    def forward(images: Nested) -> None:
        seed_batch(run, "batch norm", next(numbers))  # a layer may have dropout before it
        with run.step.autocast():
            run.model(images)

    precise_bn.recompute_statistics(run.model, (images for images, _ in on_device(run, batches)), run.world, forward)


@torch.inference_mode()
def validate(run: Run) -> tuple[torch.Tensor, dict[str, Any]]:
    """This rank's sums over its share of the validation images, then of the holdout: float64 ``[6]``; and the fields of
    the record that hold for all ranks: the further metrics, and in the first epoch what a constant prediction reaches.

    Together the ranks see each image once.
    """
    run.model.eval()
    # There is no backward pass, so twice the micro-batch fits.
    share = 2 * run.split.micro_size, run.world.rank, run.world.workers
    seen = SeenTargets if _needs_baseline(run) else lambda: None
    sums, values, baseline = [], dict[str, float | None](), dict[str, float]()
    for name, read in (("val", run.source.val_batches), ("holdout", run.source.holdout_batches)):
        targets = seen()
        sums.append(measure(run, read(*share), targets))
        if name == "val" or run.source.info.holdout_size:
            values |= values_of(run.metrics, name)
            if targets is not None:
                baseline |= constant_values(targets, name, _validation_loss(run), run.metrics, run.world)
    run.model.train()
    return torch.cat(sums), {"metrics": values, "baseline": baseline or None}


def _needs_baseline(run: Run) -> bool:
    """Whether this is the first validation of the process, and no epoch before it has a baseline. No rank differs."""
    first = not any(map(run.config.validates, range((run.resumed_from_epoch or 0) + 1, run.progress.epoch + 1)))
    return first and not any(record.get("baseline") for record in run.progress.history)


def measure(run: Run, batches: Iterable[Batch], seen: SeenTargets | None = None) -> torch.Tensor:
    """Sums over the images of ``batches``, see ``MetricSums``; the further metrics have then seen these images.

    ``seen`` keeps their targets. On a GPU a smaller last batch is filled up to the size of the others.
    """
    sums, loss_of, whole = MetricSums(run.world.device), _validation_loss(run), 0
    for metric in run.metrics.values():
        metric.reset()
    for images, labels in on_device(run, batches):
        count = example_count(labels)
        whole = max(whole, count) if tunes_shapes(run.world.device) else 0
        missing = whole - count if isinstance(images, torch.Tensor) and len(images) == count < whole else 0
        if missing:
            images = F.pad(images, [0, 0] * (images.ndim - 1) + [0, missing])  # black images
        logits = _logits(run, images)
        if run.config.data.test_flip:
            logits = (logits + _logits(run, images.flip(3))) / 2
        if missing:  # in evaluation no image depends on the others
            logits = map_tensors(partial(_first, count=count), logits)
        if seen is not None:
            seen.add(logits, labels)
        sums.add(loss_of(logits, labels), logits, labels)
        for metric in run.metrics.values():
            metric.update(logits, labels)
    return sums.values


def tunes_shapes(device: torch.device) -> bool:
    """Whether a batch of another size costs more than its images: cuDNN times its algorithms for each shape."""
    return device.type == "cuda"


def _first(outputs: torch.Tensor, count: int) -> torch.Tensor:
    return outputs[:count] if outputs.ndim else outputs


def _validation_loss(run: Run) -> LossFunction:
    """The plain cross entropy, by which runs with other smoothing compare, or the user's loss."""
    return run.step.loss if has_own_loss(run.config) else F.cross_entropy


def _logits(run: Run, images: Nested) -> Nested:
    """The model's outputs, of images float32 ``[N, num_classes]``, computed without DDP."""
    with run.step.autocast():
        return in_float32(run.model(images))


def part_of(correct: float, images: float) -> float | None:
    """Top-1 from its sums; None where the targets are no classes."""
    return None if math.isnan(correct) else correct / images


def validation_values(run: Run, sums: Sequence[float]) -> dict[str, Any]:
    """The fields of the record that ``validate`` has measured, from its sums over all ranks."""
    values: dict[str, Any] = {}
    parts = [("val", sums[:3])] + ([("holdout", sums[3:])] if run.source.info.holdout_size else [])
    for name, (loss, correct, images) in parts:
        if not images:
            raise ImageError("no validation image can be read. Repair the data set.")
        if not math.isfinite(loss):
            raise NonFiniteLossError(
                f"validation loss is {loss / images} after epoch {run.progress.epoch + 1}, "
                f"whose last learning rate was {run.progress.learning_rate:.6g}"
            )
        values |= {f"{name}_loss": loss / images, f"{name}_top1": part_of(correct, images)}
    return values
