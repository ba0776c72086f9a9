"""Find the largest micro-batch that fits into a device's memory, once for each device and model.

``batch.max_micro_size=0`` requests it. Larger batches accumulate gradients, so any global batch runs on one GPU.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.amp.grad_scaler import GradScaler

from bigbatch.cluster.host.atomic_files import write_json
from bigbatch.train_loop.config import DEFAULT_MICRO_SIZE, ConfigError, TrainConfig
from bigbatch.train_loop.data.info import DataInfo
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
    """Peak bytes of a training step with this many images; infinite if they do not fit."""


def largest_micro_batch(fits: Callable[[int], bool], limit: int = MAX_MICRO_BATCH) -> int:
    """The largest m from 1 to ``limit`` with ``fits(m)``; 0 if there is none. If m does not fit, no larger m may fit.
    Doubles from 1, then halves the gap: at most 2·log2(limit) + 1 calls."""
    good, bad = 0, limit + 1
    size = 1
    while size <= limit and fits(size):
        good, size = size, size * 2
    bad = min(size, bad)
    while bad - good > 1:
        middle = (good + bad) // 2
        if fits(middle):
            good = middle
        else:
            bad = middle
    return good


def probe_micro_batch(memory: DeviceMemory, key: str, cache: Path | None, limit: int = MAX_MICRO_BATCH) -> int:
    """The device's bound for a configuration, from the cache or measured.

    Args:
        key: identifies everything that decides a step's memory, see ``step_key``.
        cache: JSON file with ``{device: {key: micro-batch}}``; None: no cache.

    Raises ConfigError if a single image does not fit.
    """
    device = f"{memory.name}, {memory.total_bytes} bytes"
    known = _read(cache)
    found = known.get(device, {}).get(key)
    if isinstance(found, int) and 1 <= found <= limit:
        return found
    allowed = (1 - HEADROOM) * memory.total_bytes
    size = largest_micro_batch(lambda m: memory.peak_bytes(m) <= allowed, limit)
    if size == 0:
        raise ConfigError(
            f"a training step of one image must fit into the device's memory; got {memory.total_bytes / 2**30:.1f} GiB "
            f"on {memory.name}. Set model.activation_checkpointing=true, a smaller data.image_size or another model."
        )
    known.setdefault(device, {})[key] = size
    _write(cache, known)
    return size


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
    limit = min(MAX_MICRO_BATCH, config.batch.global_size)
    return min(probe_micro_batch(memory, step_key(config, info, precision) + f"-{limit}", cache_file(), limit), limit)


def cuda_memory(config: TrainConfig, info: DataInfo, device: torch.device, precision: str) -> DeviceMemory:
    """The device's memory, and a function that measures the peak of a training step with a number of images."""
    properties = torch.cuda.get_device_properties(device)

    def peak_bytes(images: int) -> float:
        try:
            torch.cuda.reset_peak_memory_stats(device)
            _train_step(config, info, device, precision, images)
            return float(torch.cuda.max_memory_reserved(device))
        except torch.cuda.OutOfMemoryError:
            return float("inf")
        finally:
            gc.collect()
            torch.cuda.empty_cache()

    return DeviceMemory(properties.name, properties.total_memory, peak_bytes)


def _train_step(config: TrainConfig, info: DataInfo, device: torch.device, precision: str, images: int) -> None:
    """Train two steps, because the first makes the optimizer's state; with a second set of gradients, like DDP's
    buckets.

    It uses no fp16 scale: gradients of made-up images may overflow, and a skipped step would make no state.
    """
    model = placed(build_model(config.model, info), config, device).train()
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


def _read(cache: Path | None) -> dict[str, dict[str, int]]:
    try:
        values = json.loads(cache.read_text()) if cache else {}
    except (OSError, ValueError):
        return {}
    if not isinstance(values, dict):
        return {}
    return {device: sizes for device, sizes in values.items() if isinstance(sizes, dict)}


def _write(cache: Path | None, known: dict[str, dict[str, int]]) -> None:
    """Replaced whole: other processes may read or write it. Without a writable home the probe runs each time."""
    if cache is None:
        return
    try:
        cache.parent.mkdir(parents=True, exist_ok=True)
        write_json(cache, known, indent=1)
    except OSError as error:
        warnings.warn(f"the measured micro-batch cannot be stored: {error}", stacklevel=2)
