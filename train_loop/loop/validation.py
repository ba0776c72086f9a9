"""Validation: BatchNorm's statistics before it, the sums over its images, and the values for the record.

If targets are classes, there is a baseline: what a constant prediction reaches on the validation examples. A run that
is not better has learned nothing. The constant is the logarithm of the classes' frequencies in these examples. No other
constant is better: its cross entropy is the entropy of the frequencies, and its answer the most frequent class.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from bigbatch.train_loop.data.source import Batch
from bigbatch.train_loop.distributed import World
from bigbatch.train_loop.errors import NonFiniteLossError
from bigbatch.train_loop.loop.assembly import Run, on_device, seed_batch
from bigbatch.train_loop.loop.metrics import MetricSums, Sums, ValidationMetric, values_of
from bigbatch.train_loop.model import precise_bn
from bigbatch.train_loop.model.losses import LossFunction, in_float32
from bigbatch.train_loop.plugins.nested import Nested, example_count, map_tensors


def prepare_batch_norm(run: Run) -> None:
    """Prepare BatchNorm's statistics for validation: recompute them, or share rank 0's running averages."""
    config = run.config
    run.world.share_buffers(run.model)  # of other layers too: all ranks validate the network that checkpoints hold
    if config.precise_bn == "off" or (config.precise_bn == "auto" and run.steps_per_epoch >= precise_bn.FEW_STEPS):
        return
    count = precise_bn.images_of(config.precise_bn_images, run.source.info.train_size)
    if config.model.sync_bn:  # its forward is a collective: each rank needs equally many batches
        whole = run.split.micro_size * run.world.workers
        count = max(count // whole, 1) * whole
    batches = run.source.bn_batches(
        config.seed, run.progress.epoch, run.split.micro_size, count, run.world.rank, run.world.workers
    )

    numbers = itertools.count()

    def forward(images: Nested) -> None:
        seed_batch(run, "batch norm", next(numbers))  # dropout may come before BatchNorm
        with run.step.autocast():
            run.model(images)

    precise_bn.recompute_statistics(run.model, (images for images, _ in on_device(run, batches)), run.world, forward)


@torch.no_grad()  # not inference mode: a network may keep a tensor that it makes here, and train with it
def validate(run: Run) -> tuple[list[torch.Tensor], dict[str, Any]]:
    """Validate on this rank's share of the validation images, and of the holdout's if there is one.

    Returns this rank's sums (``MetricSums``), and the record's fields that are the same on all ranks: the further
    metrics and, in the first validation, the baseline. Together the ranks see each image once.
    """
    run.model.eval()
    # There is no backward pass, so twice the micro-batch fits.
    share = 2 * run.split.micro_size, run.world.rank, run.world.workers
    seen = SeenTargets if _needs_baseline(run) else lambda: None
    sums, values, baseline = [], dict[str, float | None](), dict[str, float]()
    parts = [("val", run.source.val_batches), ("holdout", run.source.holdout_batches)]
    for name, read in parts[: 2 if run.source.info.holdout_size else 1]:
        targets = seen()
        sums.append(measure(run, read(*share), targets))
        values |= values_of(run.metrics, name)
        if targets is not None:
            baseline |= constant_values(targets, name, run.step.validation_loss, run.metrics, run.world)
    run.model.train()
    return sums, {"metrics": values, "baseline": baseline or None}


def _needs_baseline(run: Run) -> bool:
    """Whether this is the first validation of the process, and no epoch before it has a baseline. No rank differs."""
    first = not any(map(run.config.validates, range((run.resumed_from_epoch or 0) + 1, run.progress.epoch + 1)))
    return first and not any(record.get("baseline") for record in run.progress.history)


def measure(run: Run, batches: Iterable[Batch], seen: SeenTargets | None = None) -> torch.Tensor:
    """Sums over the images of ``batches``, see ``MetricSums``. The further metrics are reset, then get these images.

    ``seen`` keeps their targets. On a GPU a smaller last batch is filled up to the size of the others.
    """
    sums, loss_of, whole = MetricSums(run.world.device), run.step.validation_loss, 0
    for metric in run.metrics.values():
        metric.reset()
    for images, labels in on_device(run, batches):
        count = example_count(labels)
        whole = max(whole, count) if tunes_shapes(run.world.device) else 0
        missing = whole - count if isinstance(images, torch.Tensor) and len(images) == count < whole else 0
        if missing:
            images = F.pad(images, [0, 0] * (images.ndim - 1) + [0, missing])  # black images
        with run.step.autocast():
            logits = in_float32(run.model(images))  # without DDP
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


def validation_values(run: Run, sums: Sequence[Sums]) -> dict[str, Any]:
    """The fields of the record that ``validate`` has measured, from its sums over all ranks."""
    values: dict[str, Any] = {}
    for name, part in zip(("val", "holdout"), sums, strict=False):
        if not math.isfinite(part.loss):
            raise NonFiniteLossError(
                f"validation loss is {part.mean_loss} after epoch {run.progress.epoch + 1}, "
                f"whose last learning rate was {run.progress.learning_rate:.6g}"
            )
        values |= {f"{name}_loss": part.mean_loss, f"{name}_top1": part.top1}
    return values


MOST_BYTES = 64 * 2**20
"""The largest size of a rank's targets that are kept. With more there is no baseline."""
LEAST_SHARE = 1e-12
"""Replaces a frequency of 0. Its logarithm is infinite, which some losses turn into NaN."""
UNKNOWN = -1


class SeenTargets:
    """Validation's targets and the shapes of its scores, batch by batch, as long as all targets are classes."""

    def __init__(self) -> None:
        self.batches: list[tuple[torch.Tensor, torch.Size]] = []
        self.classes = 0
        """0 before the first batch; ``UNKNOWN`` for other targets."""
        self._bytes = 0

    def add(self, outputs: Nested, targets: Nested) -> None:
        """Keep the targets, if they are few: as a copy, because the loader reuses its memory."""
        classes = _classes(outputs, targets)
        self._bytes += targets.nbytes if classes > 0 else 0
        if classes == UNKNOWN or self.classes not in (0, classes) or self._bytes > MOST_BYTES:
            self.classes, self.batches = UNKNOWN, []
            return
        self.classes = classes
        self.batches.append((targets.clone(), outputs.shape))


def _classes(outputs: Nested, targets: Nested) -> int:
    """K, if these are scores ``[N, K, …]`` and classes ``[N, …]``; else ``UNKNOWN``."""
    if not (isinstance(outputs, torch.Tensor) and isinstance(targets, torch.Tensor)):
        return UNKNOWN
    if not outputs.is_floating_point() or targets.is_floating_point() or outputs.ndim != targets.ndim + 1:
        return UNKNOWN
    alike = outputs.shape[:1] + outputs.shape[2:] == targets.shape
    return outputs.shape[1] if alike and outputs.shape[1] > 1 else UNKNOWN


def constant_values(
    seen: SeenTargets, prefix: str, loss: LossFunction, metrics: Mapping[str, ValidationMetric], world: World
) -> dict[str, float]:
    """Name of a metric → its value for the constant over the examples of all ranks. All ranks call this.

    A metric that raises an exception for constant outputs, or is not finite, is left out. Afterwards the metrics'
    states are those of these examples.

    Args:
        prefix: ``val`` or ``holdout``.
    """
    kinds = {classes for classes in world.gather(seen.classes) if classes}
    if len(kinds) != 1 or UNKNOWN in kinds:
        return {}
    counts = torch.zeros(kinds.pop(), dtype=torch.float64, device=world.device)
    for targets, _ in seen.batches:
        flat = targets.flatten().long()  # labels that are no class, which a loss may ignore, do not count
        counts += torch.bincount(flat[(flat >= 0) & (flat < len(counts))], minlength=len(counts))
    total = world.sum(counts).sum().item()
    if not total:
        return {}
    constant = (counts / total).clamp(min=LEAST_SHARE).log().float()
    found = _loss_and_top1(seen, constant, loss, world) | _metric_values(seen, constant, metrics, world)
    return {f"{prefix}_{name}": value for name, value in world.of_first(found).items() if math.isfinite(value)}


def _constant_outputs(constant: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """The constant as a model would return it for a batch: float32 of ``shape``, in memory of its own: a metric may
    view it in another shape, or change it in place."""
    places = constant.reshape([1, -1] + [1] * (len(shape) - 2))
    return places.expand(shape).clone(memory_format=torch.contiguous_format)


def _loss_and_top1(seen: SeenTargets, constant: torch.Tensor, loss: LossFunction, world: World) -> dict[str, float]:
    """Loss and top-1 of the constant over the examples of all ranks; NaN for one that cannot be computed."""
    sums = MetricSums(world.device)
    for targets, shape in seen.batches:
        outputs = _constant_outputs(constant, shape)
        try:
            mean_loss = loss(outputs, targets)
        except Exception:  # the user's function may refuse constant outputs
            # Not left out: all ranks must meet in the sum.
            mean_loss = outputs.new_tensor(math.nan)
        sums.add(mean_loss, outputs, targets)
    total = Sums(*world.sum(sums.values).tolist())
    return {"loss": total.mean_loss, "top1": total.correct / total.images}


def _metric_values(
    seen: SeenTargets, constant: torch.Tensor, metrics: Mapping[str, ValidationMetric], world: World
) -> dict[str, float]:
    """Name → value. A metric that fails on one rank is left out on all, before they share its state."""
    failed = [float(not _takes(metric, seen, constant)) for metric in metrics.values()]
    found: dict[str, float] = {}
    for (name, metric), fails in zip(metrics.items(), world.max(failed) if failed else (), strict=True):
        with contextlib.suppress(Exception):  # as for the loss
            found |= {} if fails else {f"{name}{suffix}": value for suffix, value in metric.values().items()}
    return found


def _takes(metric: ValidationMetric, seen: SeenTargets, constant: torch.Tensor) -> bool:
    """Whether the metric takes the constant for all batches of this rank."""
    try:
        metric.reset()
        for targets, shape in seen.batches:
            metric.update(_constant_outputs(constant, shape), targets)
    except Exception:  # as for the loss
        return False
    return True
