"""Batches on the device, and the seed of what is drawn there."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

import torch

from bigbatch.train_loop.data.source import Batch
from bigbatch.train_loop.loop.assembly import Run


def seed_batch(run: Run, part: int | str, number: int) -> None:
    """Seed dropout and similar layers from the position alone: resuming or the number of ranks changes nothing.

    Args:
        part: part of the epoch: a step, or another use of training images.
        number: number of this rank's batch in it.
    """
    position = (run.config.seed, run.progress.epoch, part, number * run.world.workers + run.world.rank)
    seed = int.from_bytes(hashlib.blake2b(repr(position).encode(), digest_size=8).digest(), "little")
    # What torch.manual_seed calls in the end; it also formats stack traces for devices that are not in use.
    torch.default_generator.manual_seed(seed)
    device = run.world.device
    if device.type == "cuda":
        torch.cuda.default_generators[device.index].manual_seed(seed)


def on_device(run: Run, batches: Iterable[Batch]) -> Iterator[Batch]:
    """The model's input images, and labels."""
    for batch in batches:
        with run.clock.phase("transfer"):
            images, labels = run.upload(batch)
            del batch  # its slot in the loader is free after the copy
            images = run.step.prepare(images)
        yield images, labels
