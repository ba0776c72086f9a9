"""Find the largest micro-batch that fits into a device's memory, once for each device and model, whatever the batch.

``batch.max_micro_size=0`` requests it. Larger batches accumulate gradients, so any global batch runs on one GPU.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import hashlib
import json
import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.amp.grad_scaler import GradScaler

from bigbatch.base import json_values
from bigbatch.base.atomic_files import write_json
from bigbatch.train_loop.config import ConfigError, TrainConfig
from bigbatch.train_loop.config.sections import DEFAULT_MICRO_SIZE
from bigbatch.train_loop.data.info import DataInfo
from bigbatch.train_loop.host.ranks import memory_part, trials_on_gpu
from bigbatch.train_loop.loop.oom_retry import is_device_memory_full, needs_more_images
from bigbatch.train_loop.loop.step import TrainStep, placed
from bigbatch.train_loop.model.networks import build_model
from bigbatch.train_loop.model.weight_average import WeightAverage
from bigbatch.train_loop.optim import build_optimizer
from bigbatch.train_loop.optim.schedules import optimizer_at_start

HEADROOM = 0.1
"""Part of the memory that stays free, for fragments, NCCL's buffers and validation batches."""
MAX_MICRO_BATCH = 4096
"""No larger micro-batch is tried: accelerators are busy long before."""


@dataclass(frozen=True)
class DeviceMemory:
    """A device as the probe sees it. Tests use one that only calculates."""

    name: str
    """The device's name in the cache."""
    total_bytes: int
    peak_bytes: Callable[[int], float]
    """Peak bytes of a training step with this many images; infinite if they do not fit. Where the network cannot train
    with so few, what its forward pass took until then: the search goes on to more images."""


def largest_that_fits(fits: Callable[[int], bool]) -> int:
    """The most images that fit, at most ``MAX_MICRO_BATCH``; 0 if none does. If m does not fit, no larger m may.

    Doubles what fits, then halves the gap.
    """
    best, too_many = 0, MAX_MICRO_BATCH + 1
    while too_many - best > 1:
        doubled = min(max(2 * best, 1), MAX_MICRO_BATCH)
        size = doubled if doubled < too_many else (best + too_many) // 2
        if fits(size):
            best = size
        else:
            too_many = size
    return best


def probe_micro_batch(memory: DeviceMemory, key: str, cache: Path | None) -> int:
    """The device's bound for a configuration: from the cache, else measured.

    Args:
        key: identifies everything that decides a step's memory, see ``step_key``.
        cache: JSON file with ``{device: {key: bound}}``; None: no cache.

    Raises ConfigError if a single image does not fit.
    """
    device = f"{memory.name}, {memory.total_bytes} bytes"
    before = json_values.whole_number(json_values.mapping(_read(cache), device), key)
    if 1 <= before <= MAX_MICRO_BATCH:
        return before
    allowed = (1 - HEADROOM) * memory.total_bytes
    found = largest_that_fits(lambda m: memory.peak_bytes(m) <= allowed)
    if found == 0:
        raise ConfigError(
            f"a training step of one image must fit into the device's memory; got {memory.total_bytes / 2**30:.1f} GiB "
            f"on {memory.name}. Set model.activation_checkpointing=true, a smaller data.image_size or another model."
        )
    _write(cache, device, key, found)
    return found


def step_key(config: TrainConfig, info: DataInfo, precision: str) -> str:
    """A hash of everything that decides a step's memory: network, image, optimizer state, arithmetic, torch version."""
    facts = {
        "model": config.to_dict()["model"],
        "image": [info.channels, info.image_size, info.num_classes],
        "optimizer": [config.optimizer.name, config.optimizer.momentum > 0],
        "ema": config.ema_decay > 0,
        "loss": config.loss,
        "precision": precision,
        "torch": torch.__version__,
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def cache_file() -> Path:
    """The file with measured bounds, for all runs of this user."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bigbatch" / "micro_batches.json"


def max_micro_size(config: TrainConfig, info: DataInfo, device: torch.device, precision: str) -> int:
    """The bound for this process's device. ``DEFAULT_MICRO_SIZE`` for CPUs, which have no separate memory, and for data
    that are no images, which this probe cannot make up: a micro-batch that does not fit is halved (``healing``)."""
    if device.type != "cuda" or not info.image_size or not info.are_classes:
        return DEFAULT_MICRO_SIZE
    memory = cuda_memory(config, info, device, precision)
    return probe_micro_batch(memory, step_key(config, info, precision), cache_file())


def cuda_memory(config: TrainConfig, info: DataInfo, device: torch.device, precision: str) -> DeviceMemory:
    """The memory that this process may use of the device, and a function that measures the peak of a training step with
    a number of images."""
    properties = torch.cuda.get_device_properties(device)

    def peak_bytes(images: int) -> float:
        torch.cuda.reset_peak_memory_stats(device)
        try:
            with _untuned():
                _train_step(config, info, device, precision, images)
        except Exception as error:
            if is_device_memory_full(error, device):
                return float("inf")
            if not needs_more_images(error):
                raise
        finally:
            # What this size leaves behind would count as the next one's.
            gc.collect()
            torch.cuda.empty_cache()
        # Reserved, not allocated: what lies idle between the allocator's blocks is missing, too.
        return float(torch.cuda.max_memory_reserved(device))

    total_bytes = int(properties.total_memory * memory_part(trials_on_gpu()))
    return DeviceMemory(properties.name, total_bytes, peak_bytes)


@contextlib.contextmanager
def _untuned() -> Iterator[None]:
    """Within the block cuDNN does not time its algorithms, which takes seconds for each new shape: most sizes that are
    tried are not used."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = False
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def _train_step(config: TrainConfig, info: DataInfo, device: torch.device, precision: str, images: int) -> None:
    """Train two steps, because the first makes the optimizer's state; with a second set of gradients, like DDP's
    buckets.

    It uses no fp16 scale: gradients of made-up images may overflow, and a skipped step would make no state.
    """
    # SyncBatchNorm would wait for the other workers, which may try other sizes.
    network = dataclasses.replace(config.model, sync_bn=False)
    model = placed(build_model(network, info), config, device).train()
    step = TrainStep(
        config=config,
        device=device,
        normalise=lambda pixels: pixels,
        model=model,
        parallel=model,
        optimizer=build_optimizer(model, optimizer_at_start(config), precision == "fp16"),
        scaler=GradScaler(device.type, enabled=False),
        average=WeightAverage(model, config.ema_decay) if config.ema_decay > 0 else None,
        precision=precision,
    )
    buckets = [torch.empty_like(p) for p in model.parameters()]
    pixels = torch.randn(images, info.channels, info.image_size, info.image_size, device=device)
    labels = torch.zeros(images, dtype=torch.int64, device=device)
    for number in (1, 2):
        step.gradients(step.prepare(pixels), labels, 1, last=True)
        step.update(config.optimizer.peak_lr, number)
    del buckets


def _read(cache: Path | None) -> dict[str, object]:
    try:
        return json_values.json_object(cache.read_text()) if cache else {}
    except (OSError, ValueError):
        return {}


def _write(cache: Path | None, device: str, key: str, found: int) -> None:
    """Replaced whole: other processes may read or write it. Without a writable home the probe runs each time."""
    if cache is None:
        return
    known = _read(cache)  # again: others may have written meanwhile
    known[device] = {**json_values.mapping(known, device), key: found}
    try:
        cache.parent.mkdir(parents=True, exist_ok=True)
        write_json(cache, known, indent=1)
    except OSError as error:
        warnings.warn(f"the measured micro-batch cannot be stored: {error}", stacklevel=2)
