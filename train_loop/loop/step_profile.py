"""Measure the steps of a run: how long each phase takes, and what an epoch and the whole run would take.

The steps are those of training, at learning rate 0, so that the weights stay as they are. With several workers each
measured step is followed by one whose gradients stay on their worker. The difference of the two backward passes is the
communication that the backward pass does not hide, with the wait for the slowest worker.
"""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
import torch.profiler
from torch.nn.parallel import DistributedDataParallel

from bigbatch.train_loop.data.sampling import micro_sizes
from bigbatch.train_loop.data.source import Step
from bigbatch.train_loop.loop.assembly import Run
from bigbatch.train_loop.loop.chronometer import OTHER, PHASES, STEP, StepTimer
from bigbatch.train_loop.loop.train import take_step
from bigbatch.train_loop.loop.validation import measure, prepare_batch_norm
from bigbatch.train_loop.loop.worker_use import forget_peak, peak_bytes

WARMUP_STEPS = 5
"""Not measured: kernels are chosen and compiled, memory is reserved, loader processes fill their slots."""


@dataclass(frozen=True)
class Spread:
    """Seconds of several steps."""

    min_s: float
    median_s: float
    mean_s: float
    sd_s: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """The spread of at least one value; the standard deviation is that of a sample, 0 for one value."""
        sd = statistics.stdev(values) if len(values) > 1 else 0.0
        return cls(min(values), statistics.median(values), statistics.fmean(values), sd)


@dataclass(frozen=True)
class StepProfile:
    """What was measured of a run. Times of phases are the mean over the workers, step by step."""

    device: str
    """E.g. ``NVIDIA H100``, ``CPU``."""
    workers: int
    global_size: int
    accumulation_steps: int
    micro_size: int
    loader_processes: int
    """Of each worker."""
    steps: int
    """Measured ones."""
    step: Spread
    phases: dict[str, Spread]
    """By the names in ``PHASES``, and ``other``: what is left of a step."""
    communication: Spread | None
    """A part of ``backward``. None for one worker. Differences of noisy times may be below 0."""
    slowest_data_s: float
    """The median wait for images of the worker that waits longest."""
    validation: Spread
    """Of a batch, on the slowest worker."""
    validation_batches: int
    """In an epoch, on the worker that has most."""
    bn_s: float
    """Precise BatchNorm statistics, once each epoch."""
    steps_per_epoch: int
    epochs: int
    validations: int
    """Epochs after which the run validates."""
    memory_bytes: int
    """See ``worker_use.peak_bytes``; the most of all workers."""
    device_memory_bytes: int | None
    """Of the whole device; None on CPUs."""
    last_step: float = 1.0
    """Images of an epoch's last step, as a part of the global batch; below 1 with ``data.drop_last=false``."""
    seconds: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Of each measured step, by the names in ``phases``, ``step``, and ``communication`` if there is some: means over
    the workers. ``validation``: of each measured batch on rank 0."""

    @property
    def images_per_s(self) -> float:
        """Training images over the time of their steps, all workers together."""
        return self.global_size / self.step.mean_s

    def share(self, phase: str) -> float:
        """The part of a step that goes into a phase, 0 to 1; phases add up to 1."""
        return self.phases[phase].mean_s / self.step.mean_s

    @property
    def communication_share(self) -> float:
        """The part of a step that goes into communication, 0 to 1; it is also a part of ``backward``."""
        return max(0.0, self.communication.mean_s) / self.step.mean_s if self.communication else 0.0

    @property
    def train_s(self) -> float:
        """Estimate: the steps of an epoch. A smaller last one takes its part."""
        return (self.steps_per_epoch - 1 + self.last_step) * self.step.mean_s

    @property
    def val_s(self) -> float:
        """Estimate: validation after an epoch, with the images of the holdout."""
        return self.validation_batches * self.validation.mean_s

    @property
    def run_s(self) -> float:
        """Estimate: all epochs with their validations. Start-up and checkpoints come on top."""
        return self.epochs * self.train_s + self.validations * (self.bn_s + self.val_s)

    @property
    def device_hours(self) -> float:
        """Estimate: the whole run times its workers, in hours."""
        return self.workers * self.run_s / 3600


def measure_steps(run: Run, steps: int) -> StepProfile:
    """Measure ``steps`` training steps, and validation. All ranks call it.

    Their profiles are equal, but for ``loader_processes``.
    """
    device, world, timer = run.world.device, run.world, _timed(run)
    batches = _endless_steps(run)
    for _ in range(WARMUP_STEPS):
        _timed_step(run, timer, batches)
    timer.take()
    forget_peak(device)
    times, local = _steps_and_local_steps(run, timer, batches, steps)
    batches.close()
    (batch_s, count), bn_s = _validation(run, timer, steps), _batch_norm_s(run, timer)
    by_name = _by_name(run, times)
    communication = _communication(run, times, local)
    slowest = world.max([statistics.median(one["data"] for one in times), *_as_list(Spread.of(batch_s)), count, bn_s])
    properties = torch.cuda.get_device_properties(device) if device.type == "cuda" else None
    return StepProfile(
        device=properties.name if properties else "CPU",
        workers=world.workers,
        global_size=run.split.global_size,
        accumulation_steps=run.split.accumulation_steps,
        micro_size=run.split.micro_size,
        loader_processes=run.source.processes,
        steps=steps,
        step=Spread.of(by_name[STEP]),
        phases={name: Spread.of(by_name[name]) for name in (*PHASES, OTHER)},
        communication=Spread.of(communication) if communication else None,
        slowest_data_s=slowest[0],
        validation=Spread(*slowest[1:5]),
        validation_batches=int(slowest[5]),
        bn_s=slowest[6],
        steps_per_epoch=run.steps_per_epoch,
        epochs=run.config.epochs,
        validations=sum(map(run.config.validates, range(1, run.config.epochs + 1))),
        memory_bytes=int(world.max([float(peak_bytes(device))])[0]),
        device_memory_bytes=properties.total_memory if properties else None,
        last_step=_last_step(run),
        seconds={**by_name, **({"communication": communication} if communication else {}), "validation": batch_s},
    )


def _last_step(run: Run) -> float:
    micro = micro_sizes(run.source.info.train_size, run.split, run.config.data.drop_last)[-1]
    return micro / run.split.micro_size


def trace_steps(run: Run, steps: int, folder: str) -> None:
    """Trace ``steps`` training steps with torch's profiler into a file of this rank in ``folder``, a new one each time.

    Perfetto and TensorBoard's profiler read it. The steps and their phases are named ranges.
    """
    timer, batches = _timed(run), _endless_steps(run)
    _timed_step(run, timer, batches)
    write = torch.profiler.tensorboard_trace_handler(folder, f"rank{run.world.rank}")
    with torch.profiler.profile(on_trace_ready=write, record_shapes=True) as profiler:
        for _ in range(steps):
            _timed_step(run, timer, batches)
            profiler.step()
        timer.clock.wait()
    batches.close()


def _timed(run: Run) -> StepTimer:
    """Make the run time its phases from now on."""
    timer = StepTimer(run.world.device)
    run.clock, run.step = timer, dataclasses.replace(run.step, phase=timer.phase)
    return timer


def _endless_steps(run: Run) -> Generator[Step, None, None]:
    """Steps of the last epoch, again and again: if the image size grows, it has the largest images."""
    while True:
        yield from run.source.train_steps(run.config.seed, run.config.epochs - 1, run.split, run.world.rank)


def _timed_step(run: Run, timer: StepTimer, batches: Iterator[Step]) -> None:
    """One step of training at learning rate 0."""
    with timer.step():
        with timer.part("data_s"):
            step = next(batches)
        take_step(run, step, 0.0)


def _steps_and_local_steps(
    run: Run, timer: StepTimer, batches: Iterator[Step], steps: int
) -> tuple[list[dict[str, float]], list[dict[str, float]]]:
    """The times of ``steps`` steps; and of as many between them that sum no gradients, if there are several workers."""
    parallel = run.step.parallel
    alone = not isinstance(parallel, DistributedDataParallel)
    for _ in range(steps):
        _timed_step(run, timer, batches)
        if not alone:
            with parallel.no_sync():  # type: ignore[operator]
                _timed_step(run, timer, batches)
    times = timer.take()
    return (times, []) if alone else (times[::2], times[1::2])


def _by_name(run: Run, times: list[dict[str, float]]) -> dict[str, list[float]]:
    """The seconds of each step by phase, mean over the ranks."""
    names = (*PHASES, OTHER, STEP)
    mean = _mean_over_ranks(run, [[one[name] for name in names] for one in times])
    return {name: [row[column] for row in mean] for column, name in enumerate(names)}


def _mean_over_ranks(run: Run, rows: list[list[float]]) -> list[list[float]]:
    tensor = torch.tensor(rows, dtype=torch.float64, device=run.world.device)
    mean: list[list[float]] = (run.world.sum(tensor) / run.world.workers).tolist()
    return mean


def _communication(run: Run, times: list[dict[str, float]], local: list[dict[str, float]]) -> list[float]:
    """Seconds of each step; none of one worker."""
    if not local:
        return []
    pairs = zip(times, local, strict=True)
    return [row[0] for row in _mean_over_ranks(run, [[a["backward"] - b["backward"]] for a, b in pairs])]


def _validation(run: Run, timer: StepTimer, most: int) -> tuple[list[float], int]:
    """Seconds of each of at most ``most`` batches on this rank, without the first; and how many there are."""
    # As in a run's validation, which keeps nothing for a backward pass.
    size = 2 * run.split.micro_size
    share = size, run.world.rank, run.world.workers
    info, of_all = run.source.info, size * run.world.workers
    count = -(-info.val_size // of_all) - (-info.holdout_size // of_all)
    run.model.eval()
    batches = itertools.islice(run.source.val_batches(*share), most + 1)
    with torch.no_grad():
        while True:
            with timer.step():
                with timer.part("data_s"):
                    batch = next(batches, None)
                if batch is not None:
                    measure(run, [batch])
            if batch is None:
                break
    run.model.train()
    # The last one found no batch; the first one also chose kernels.
    seconds = [one[STEP] for one in timer.take()[:-1]]
    return seconds[1:] or seconds or [0.0], count


def _batch_norm_s(run: Run, timer: StepTimer) -> float:
    began = timer.clock.wait()
    prepare_batch_norm(run)
    return timer.clock.wait() - began


def _as_list(spread: Spread) -> list[float]:
    return [spread.min_s, spread.median_s, spread.mean_s, spread.sd_s]
