"""The gauges of a worker: what no epoch's record holds, or what changes within an epoch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from bigbatch.train_loop.host.gpu_counters import GpuCounters, open_gpu_counters
from bigbatch.train_loop.launch.gauges import EPOCHS, GPU_MEMORY, GPU_POWER, GPU_USE, TRUST_RATIO, GaugeBoard
from bigbatch.train_loop.launch.trial_task import TrialTask
from bigbatch.train_loop.reporter import EpochRecord, Reporter

if TYPE_CHECKING:
    import torch


class StepReporter(Reporter, Protocol):
    """A reporter that hears of steps, and of a resumed run's past."""

    def steps_done(self, epoch: int, step: int, steps: int, images_per_step: int) -> None:
        """See ``Reporter``."""

    def resumed(self, history: Sequence[EpochRecord]) -> None:
        """See ``Reporter``."""


class GaugedReporter:
    """A reporter that also sets the gauges of its trial. It stands before the one that it is given."""

    def __init__(self, reporter: StepReporter, board: GaugeBoard, tags: Mapping[str, str]) -> None:
        self._reporter, self._board, self._tags = reporter, board, tags

    def __getattr__(self, name: str) -> Any:
        """All other methods are those of the reporter behind."""
        return getattr(self._reporter, name)

    def report(self, record: EpochRecord) -> None:
        """An epoch has ended."""
        self._board.set(EPOCHS, record.epoch, **self._tags)
        self._reporter.report(record)

    def checkpoint_requested(self) -> bool:
        """What the reporter behind says."""
        return self._reporter.checkpoint_requested()

    def steps_done(self, epoch: int, step: int, steps: int, images_per_step: int) -> None:
        """Show the progress within the epoch."""
        self._board.set(EPOCHS, epoch - 1 + step / steps, **self._tags)
        self._reporter.steps_done(epoch, step, steps, images_per_step)

    def resumed(self, history: Sequence[EpochRecord]) -> None:
        """Begin where the checkpoint ends."""
        self._board.set(EPOCHS, len(history), **self._tags)
        self._reporter.resumed(history)

    def trust_ratios(self, quantiles: Mapping[float, float]) -> None:
        """Show the spread of the layers' trust ratios."""
        for quantile, value in quantiles.items():
            self._board.set(TRUST_RATIO, value, quantile=f"{quantile:g}", **self._tags)


@contextmanager
def worker_gauges(task: TrialTask, reporter: StepReporter, device: torch.device, rank: int) -> Iterator[Reporter]:
    """The reporter of this rank, which sets gauges while the block runs. Without tags it is ``reporter`` itself."""
    with device_gauges(task, device, rank) as board:
        yield reporter if board is None or rank != 0 else GaugedReporter(reporter, board, task.gauge_tags)


@contextmanager
def device_gauges(task: TrialTask, device: torch.device, rank: int) -> Iterator[GaugeBoard | None]:
    """The board on which this rank's gauges stand while the block runs, with those of its GPU. Without tags None."""
    if not task.gauge_tags:
        yield None
        return
    tags, gpu = task.gauge_tags, _gpu_of(device)

    def look(board: GaugeBoard) -> None:
        if gpu is not None:
            board.set(GPU_MEMORY, gpu.memory_used_bytes(), rank=rank, **tags)
            board.set(GPU_USE, gpu.utilization(), rank=rank, **tags)
            board.set(GPU_POWER, gpu.power_w(), rank=rank, **tags)

    with GaugeBoard(look) as board:
        yield board


def _gpu_of(device: torch.device) -> GpuCounters | None:
    """The counters of a worker's GPU; None on CPUs, and where NVML cannot be asked."""
    if device.type != "cuda":
        return None
    import torch

    return open_gpu_counters(str(torch.cuda.get_device_properties(device).uuid))
