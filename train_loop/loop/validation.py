"""Validation: BatchNorm's statistics before it, the sums over its images, and what of them is recorded.

Last, what a constant prediction reaches on the validation examples: a run that is not better has learned nothing. The
constant is made of these examples' own targets, so no other constant of its kind does better on them. Where targets are
classes it is the logarithm of their frequencies: the cross entropy is then the entropy of the frequencies, and the
answer the most frequent class. Else it is the mean of the targets. Loss and metrics are those of validation.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from bigbatch.train_loop.data.source import Batch
from bigbatch.train_loop.distributed import World
from bigbatch.train_loop.errors import NonFiniteLossError
from bigbatch.train_loop.loop.assembly import Run, on_device, seed_batch
from bigbatch.train_loop.loop.metrics import MetricSums, ValidationMetric, values_of
from bigbatch.train_loop.model import precise_bn
from bigbatch.train_loop.model.losses import LossFunction, in_float32
from bigbatch.train_loop.plugins.nested import Nested, example_count, map_tensors


def prepare_batch_norm(run: Run) -> None:
    """Prepare BatchNorm's statistics for validation: recompute them, or share rank 0's running averages."""
    config = run.config
    run.world.share_buffers(run.model)  # of other layers too: all ranks validate the network that checkpoints hold
    if not precise_bn.is_precise_bn_on(config.precise_bn, run.steps_per_epoch):
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


@torch.no_grad()  # not inference mode: a network may keep a tensor that it makes here, and train with it
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
                baseline |= constant_values(targets, name, run.step.validation_loss, run.metrics, run.world)
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
    sums, loss_of, whole = MetricSums(run.world.device), run.step.validation_loss, 0
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
        if not math.isfinite(loss):
            raise NonFiniteLossError(
                f"validation loss is {loss / images} after epoch {run.progress.epoch + 1}, "
                f"whose last learning rate was {run.progress.learning_rate:.6g}"
            )
        values |= {f"{name}_loss": loss / images, f"{name}_top1": part_of(correct, images)}
    return values


MOST_BYTES = 64 * 2**20
"""Targets of a rank that are kept at most. With more there is no baseline."""
LEAST_SHARE = 1e-12
"""In place of a share of 0 or 1, whose logarithm or log-odds are infinite: some losses make NaN of these."""
NO_ONE_TENSOR = "other"
"""The kind of targets or outputs for which no constant is known."""


class TargetKind(NamedTuple):
    """What targets are to the outputs: the ranks must agree on it."""

    are_classes: bool
    example: tuple[int, ...]
    """Classes: their number, and the dimension of the outputs with their scores. Else the shape of one target."""


class SeenTargets:
    """The targets of validation with the shapes of their outputs, batch by batch, as long as a constant is known."""

    def __init__(self) -> None:
        self.batches: list[tuple[torch.Tensor, torch.Size]] = []
        self.kind: TargetKind | str | None = None
        """None before the first batch."""
        self._bytes = 0

    def add(self, outputs: Nested, targets: Nested) -> None:
        """Keep a copy of the targets, if they are few: the loader writes into its own memory again."""
        if self.kind == NO_ONE_TENSOR:
            return
        kind = _kind(outputs, targets)
        self._bytes += targets.nbytes if isinstance(targets, torch.Tensor) else 0
        if kind is None or self.kind not in (None, kind) or self._bytes > MOST_BYTES:
            self.kind, self.batches = NO_ONE_TENSOR, []
            return
        self.kind = kind
        self.batches.append((targets.clone(), outputs.shape))


def _kind(outputs: Nested, targets: Nested) -> TargetKind | None:
    if not (isinstance(outputs, torch.Tensor) and isinstance(targets, torch.Tensor) and outputs.is_floating_point()):
        return None
    if targets.is_complex() or outputs.ndim == 0 or outputs.shape[:1] != targets.shape[:1]:
        return None
    if not targets.is_floating_point() and targets.dtype != torch.bool and outputs.ndim == targets.ndim + 1:
        for dimension in (1, outputs.ndim - 1):  # torch's convention, then that of many transformers
            scores = outputs.shape[dimension]
            if scores > 1 and outputs.shape[:dimension] + outputs.shape[dimension + 1 :] == targets.shape:
                return TargetKind(True, (scores, dimension))
    numbers = math.prod(targets.shape[1:])
    if numbers == math.prod(outputs.shape[1:]) or (numbers == 1 and targets.is_floating_point()):
        return TargetKind(False, tuple(targets.shape[1:]))
    return None


def constant_values(
    seen: SeenTargets, prefix: str, loss: LossFunction, metrics: Mapping[str, ValidationMetric], world: World
) -> dict[str, float]:
    """Name of a metric → the value of the constant over the examples of all ranks, which all call this.

    What raises an exception for constant outputs, or gives no finite number, is left out. The metrics have then seen
    these examples.

    Args:
        prefix: ``val`` or ``holdout``.
    """
    kinds = {kind for kind in world.gather(seen.kind) if kind is not None}
    kind = kinds.pop() if len(kinds) == 1 else None
    if not isinstance(kind, TargetKind):
        return {}
    made = _class_constants(seen, kind, world) if kind.are_classes else _mean_constants(seen, kind, world)
    measured = [(_loss_and_top1(seen, kind, constant, loss, world), constant) for constant in made]
    if not measured:
        return {}
    # NaN is neither less nor more than a number: as a key it would win or lose by its place.
    (mean_loss, top1), constant = min(measured, key=lambda one: math.inf if math.isnan(one[0][0]) else one[0][0])
    found = {f"{prefix}_loss": mean_loss, f"{prefix}_top1": top1}
    for name, value in _metric_values(seen, kind, constant, metrics, world).items():
        found[f"{prefix}_{name}"] = value
    return {name: value for name, value in world.of_first(found).items() if math.isfinite(value)}


def _class_constants(seen: SeenTargets, kind: TargetKind, world: World) -> list[torch.Tensor]:
    """The log frequencies ``[K]``. Targets that are no class, as those that a loss ignores, do not count."""
    classes = kind.example[0]
    counts = torch.zeros(classes, dtype=torch.float64, device=world.device)
    for targets, _ in seen.batches:
        flat = targets.flatten().long()
        counts += torch.bincount(flat[(flat >= 0) & (flat < classes)], minlength=classes)
    world.sum(counts)
    total = counts.sum().item()
    return [(counts / total).clamp(min=LEAST_SHARE).log().float()] if total else []


def _mean_constants(seen: SeenTargets, kind: TargetKind, world: World) -> list[torch.Tensor]:
    """The mean target. Where all are shares, from 0 to 1, also its log-odds and its logarithm: outputs may be logits.

    The loss knows which of them its outputs are: the one with the least loss counts. NaN in targets does not count.
    """
    size = math.prod(kind.example)
    sums = torch.zeros(2 * size + 1, dtype=torch.float64, device=world.device)
    for targets, _ in seen.batches:
        values = targets.double()
        numbers = [values.nansum(0), (~values.isnan()).sum(0), ((values < 0) | (values > 1)).sum()]
        sums += torch.cat([number.flatten().double() for number in numbers])
    totals, counts, outside = world.sum(sums).split((size, size, 1))
    mean = totals / counts
    share = mean.clamp(LEAST_SHARE, 1 - LEAST_SHARE)
    made = [mean] if outside.item() else [mean, share.logit(), share.log()]
    return [constant.float() for constant in made]


def _constant_outputs(kind: TargetKind, constant: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """The constant as a model would return it for a batch: float32 of ``shape``."""
    if kind.are_classes:
        places = [1] * len(shape)
        places[kind.example[1]] = -1
        return _own_memory(constant.reshape(places).expand(shape))
    one = constant.reshape(shape[1:]) if constant.numel() == math.prod(shape[1:]) else constant.reshape(())
    return _own_memory(one.expand(shape))


def _own_memory(outputs: torch.Tensor) -> torch.Tensor:
    """A copy, as a model's outputs are: a metric may view them in another shape, or change them in place."""
    return outputs.clone(memory_format=torch.contiguous_format)


def _loss_and_top1(
    seen: SeenTargets, kind: TargetKind, constant: torch.Tensor, loss: LossFunction, world: World
) -> tuple[float, float]:
    """Over the examples of all ranks; not a number for what there is none of."""
    sums = MetricSums(world.device)
    for targets, shape in seen.batches:
        outputs = _constant_outputs(kind, constant, shape)
        try:
            mean_loss = loss(outputs, targets)
        except Exception:  # the user's function may refuse constant outputs
            # Not left out: all ranks must meet in the sum.
            mean_loss = outputs.new_tensor(math.nan)
        sums.add(mean_loss, outputs, targets)
    total, correct, examples = world.sum(sums.values).tolist()
    return (total / examples, correct / examples) if examples else (math.nan, math.nan)


def _metric_values(
    seen: SeenTargets,
    kind: TargetKind,
    constant: torch.Tensor,
    metrics: Mapping[str, ValidationMetric],
    world: World,
) -> dict[str, float]:
    """Name → value. A metric that fails on one rank is left out on all, before they share its state."""
    if not metrics:
        return {}
    failed = [float(not _takes(metric, seen, kind, constant)) for metric in metrics.values()]
    found: dict[str, float] = {}
    for (name, metric), fails in zip(metrics.items(), world.max(failed), strict=True):
        if fails:
            continue
        try:
            found |= {f"{name}{suffix}": value for suffix, value in metric.values().items()}
        except Exception:  # as for the loss
            continue
    return found


def _takes(metric: ValidationMetric, seen: SeenTargets, kind: TargetKind, constant: torch.Tensor) -> bool:
    """Whether the metric takes the constant for all batches of this rank."""
    try:
        metric.reset()
        for targets, shape in seen.batches:
            metric.update(_constant_outputs(kind, constant, shape), targets)
    except Exception:  # as for the loss
        return False
    return True
