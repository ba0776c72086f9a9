"""Train with smaller micro-batches until they fit into the device's memory: see ``oom_retry``."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import torch

from bigbatch.train_loop.errors import DeviceMemoryError
from bigbatch.train_loop.host.ranks import trials_on_gpu
from bigbatch.train_loop.loop.assembly import Run
from bigbatch.train_loop.loop.oom_retry import Halving, Healing, is_device_memory_full, needs_more_images

T = TypeVar("T")


def until_it_fits(
    begin: Callable[[Sequence[Halving]], Run], go_on: Callable[[Run], T], folder: Path | None, device: torch.device
) -> T:
    """What ``go_on`` returns for the run that ``begin`` sets up; with smaller micro-batches until they fit.

    Args:
        begin: sets up a run after these halvings, from its checkpoint if it has one.
        folder: of the checkpoints.

    Raises:
        ConfigError: the micro-batch that was asked for is one image, with which the network cannot train.
        DeviceMemoryError: nothing fits; or another worker must also start again (``healed``); or other trials share the
            GPU, and then no smaller micro-batch is tried.
        NodeMemoryError: nothing fits into the memory of CPUs.
    """
    healing = Healing(folder)
    while True:
        with _device_memory_named(device):
            run = begin(healing.halvings)
        gc.collect()  # or garbage would stay as long
        gc.freeze()  # the collector need not look at what stays until the run's end
        try:
            return go_on(run)
        except Exception as error:
            if needs_more_images(error) and run.split.micro_size == 1:
                raise healing.refuse_single_images(run.config) from error
            if not is_device_memory_full(error, device):
                raise
            if (trials := trials_on_gpu()) > 1:  # with fewer beside it this micro-batch may fit: the search repeats it
                raise DeviceMemoryError(
                    f"a part of the memory of a GPU that {trials} trials share is too small ({_first_line(error)})"
                ) from error
            failed = healing.meet(error, run.split, (run.progress.epoch, run.progress.step), run.world.rank)
            if run.world.workers > 1 or not isinstance(failed, DeviceMemoryError) or not failed.healed:
                raise failed from error
        finally:
            # What stays frozen is never collected, this run's garbage neither.
            gc.unfreeze()
            run.source.close()
        # Its tensors are the memory that is to be free.
        del run
        _free_device_memory()


def _free_device_memory() -> None:
    gc.collect()  # hooks and graphs of the run that failed refer to each other
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


@contextlib.contextmanager
def _device_memory_named(device: torch.device) -> Iterator[None]:
    """Within the block, before the first step, too little device memory is a DeviceMemoryError: it has nothing to do
    with the micro-batch."""
    try:
        yield
    except Exception as error:
        if not is_device_memory_full(error, device):
            raise
        raise DeviceMemoryError(
            "the device's memory is too small for the network and its optimizer, without any images "
            f"({_first_line(error)})"
        ) from error


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
