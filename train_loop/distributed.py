"""Ranks that must agree: sums over them, and the decisions that all of them take at the same step."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import nn

T = TypeVar("T")

PREPARE_S = 4 * 3600.0
"""How long ranks wait for each other's preparations; a collective would give up after ten minutes."""


def join_process_group(backend: str, prepare: Callable[[], None]) -> None:
    """``init_process_group`` by the usual variables, once ``prepare`` has run on every rank, however long it takes."""
    store, rank, workers = next(dist.rendezvous("env://"))
    prepare()
    store.set(f"bigbatch/prepared/{rank}", "")
    everyone, until = [f"bigbatch/prepared/{other}" for other in range(workers)], time.monotonic() + PREPARE_S
    while not store.check(everyone) and time.monotonic() < until:  # Store.wait would not answer to Ctrl-C
        time.sleep(0.2)
    dist.init_process_group(backend, store=store, rank=rank, world_size=workers)


@dataclass(frozen=True)
class World:
    """The workers of a run and this one's place among them. Without torch.distributed, or with one
    worker, every method returns at once."""

    rank: int
    workers: int
    device: torch.device

    @classmethod
    def current(cls, device: torch.device) -> World:
        """The ranks of torch's process group; one worker where there is no group."""
        if dist.is_available() and dist.is_initialized():
            return cls(dist.get_rank(), dist.get_world_size(), device)
        return cls(0, 1, device)

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """Sum over the ranks, in place, equal on all of them to the last bit."""
        if self.workers > 1:
            dist.all_reduce(values, op=dist.ReduceOp.SUM)
        return values

    def max(self, values: Sequence[float]) -> list[float]:
        """Largest value over the ranks, place by place, in float64. NaN is not allowed."""
        if self.workers == 1:
            return list(values)
        tensor = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        return tensor.tolist()

    def wait(self) -> None:
        """Until all ranks are here."""
        if self.workers > 1:
            dist.barrier()

    def gather(self, value: T) -> list[T]:
        """A small picklable value of each rank, by rank, on all of them."""
        if self.workers == 1:
            return [value]
        gathered = [value] * self.workers
        dist.all_gather_object(gathered, value)
        return gathered

    def share_buffers(self, model: nn.Module) -> None:
        """Rank 0's buffers (BatchNorm's running statistics) on all ranks."""
        if self.workers > 1:
            for buffer in model.buffers():
                dist.broadcast(buffer, src=0)


class RankMeetings:
    """Says at which steps the ranks talk to each other: about once every ``interval_s``.

    Each meeting costs a collective and waits for the device, so rank 0 measures how long steps take
    and tells the others when to meet next. One worker on a CPU has nobody to wait for and meets
    itself at every step.
    """

    def __init__(self, world: World, interval_s: float = 1.0) -> None:
        self._world = world
        self._interval_s = interval_s
        self._steps = 1
        self._left = 1
        self._last = time.monotonic()

    def due(self) -> bool:
        """Call once a step, on every rank alike."""
        self._left -= 1
        return self._left <= 0

    def meet(self, values: Sequence[float]) -> list[float]:
        """The largest of each value over the ranks; sets the next meeting."""
        now = time.monotonic()
        step_s = max((now - self._last) / max(self._steps - self._left, 1), 1e-6)
        steps = max(1.0, min(self._interval_s / step_s, 1000.0))
        alone = self._world.workers == 1 and self._world.device.type == "cpu"
        proposal = 1.0 if alone else steps if self._world.rank == 0 else 0.0
        *agreed, steps = self._world.max([*values, proposal])
        self._steps = self._left = int(steps)
        self._last = time.monotonic()
        return agreed


def pick_device() -> torch.device:
    """The current CUDA device where there is one, else the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")
