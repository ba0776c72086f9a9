"""Measure the steps of a run: how long each phase takes, and what an epoch and the whole run would take.

The steps are those of training, none of them a replay, at learning rate 0: the weights stay as they are. With several
workers each measured step is followed by one whose gradients stay on their worker. The difference of the two backward
passes is the communication that the backward pass does not hide, with the wait for the slowest worker.
"""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections.abc import Generator, Iterator
from dataclasses import dataclass

import torch
import torch.profiler
from torch.nn.parallel import DistributedDataParallel

from bigbatch.train_loop.data.source import Batch, Step
from bigbatch.train_loop.loop.assembly import Run
from bigbatch.train_loop.loop.chronometer import OTHER, PHASES, STEP, StepTimer
from bigbatch.train_loop.loop.train import take_step
from bigbatch.train_loop.loop.validation import measure, prepare_batch_norm, tunes_shapes
from bigbatch.train_loop.loop.worker_use import forget_peak, peak_bytes
from bigbatch.train_loop.model.sharding import whole_weights

WARMUP_STEPS = 5
"""These steps are not measured: they choose and compile kernels, reserve memory and fill the loader's slots."""


@dataclass(frozen=True)
class StepProfile:
    """What was measured of a run, with estimates. Validation's times are the slowest worker's, the others are means."""

    device: str
    workers: int
    global_size: int
    accumulation_steps: int
    micro_size: int
    steps: int
    """Measured steps."""
    phases: dict[str, float]
    """Seconds, means over the steps and the workers: of ``PHASES``, of the whole ``step``, and of ``other``, its rest.
    ``communication`` is a part of ``backward``: 0 for one worker. A small one may be measured as below 0."""
    images_per_s: float
    steps_per_epoch: int
    train_s: float
    """Seconds of the training steps of an epoch."""
    val_s: float
    """Seconds of a validation, including the holdout's images."""
    bn_s: float
    """Seconds of precise BatchNorm statistics, before each validation."""
    epochs: int
    run_s: float
    """Seconds of all epochs with their validations, without start-up and checkpoints."""
    memory_bytes: int
    """See ``worker_use.peak_bytes``; the largest of all workers."""


def measure_steps(run: Run, steps: int) -> StepProfile:
    """Measure ``steps`` training steps, and validation. All ranks call it, and get the same result."""
    device, world, config, split, timer = run.world.device, run.world, run.config, run.split, _timed(run)
    batches = _endless_steps(run)
    for _ in range(WARMUP_STEPS):
        _timed_step(run, timer, batches)
    timer.take()
    forget_peak(device)
    phases = _phases(run, timer, batches, steps)
    batches.close()
    with whole_weights(run.model):  # as in a run: ranks have different numbers of batches
        val_s, began = _validation_s(run, timer, steps), timer.wait()
        prepare_batch_norm(run)
    val_s, bn_s, memory = world.max([val_s, timer.wait() - began, float(peak_bytes(device))])
    validations = sum(map(config.validates, range(1, config.epochs + 1)))
    train_s = run.steps_per_epoch * phases[STEP]
    return StepProfile(
        device=torch.cuda.get_device_properties(device).name if device.type == "cuda" else "CPU",
        **dataclasses.asdict(split),
        global_size=split.global_size,
        steps=steps,
        phases=phases,
        images_per_s=split.global_size / phases[STEP],
        steps_per_epoch=run.steps_per_epoch,
        train_s=train_s,
        val_s=val_s,
        bn_s=bn_s,
        epochs=config.epochs,
        run_s=config.epochs * train_s + validations * (bn_s + val_s),
        memory_bytes=int(memory),
    )


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
        timer.wait()
    batches.close()


def _timed(run: Run) -> StepTimer:
    """Make the run time its phases from now on."""
    timer = StepTimer(run.world.device)
    run.clock, run.step = timer, dataclasses.replace(run.step, phase=timer.phase)
    return timer


def _endless_steps(run: Run) -> Generator[Step, None, None]:
    """Steps of the last epoch, again and again."""
    while True:
        yield from run.source.train_steps(run.config.seed, run.config.epochs - 1, run.split, run.world.rank)


def _timed_step(run: Run, timer: StepTimer, batches: Iterator[Step]) -> None:
    """One step of training at learning rate 0."""
    with timer.step():
        with timer.part("data_s"):
            step = next(batches)
        take_step(run, step, 0.0)


def _phases(run: Run, timer: StepTimer, batches: Iterator[Step], steps: int) -> dict[str, float]:
    """The mean times of ``steps`` steps. With DDP, a step that sums no gradients follows each of them."""
    parallel = run.step.parallel
    is_summed = isinstance(parallel, DistributedDataParallel)
    for _ in range(steps):
        _timed_step(run, timer, batches)
        if is_summed:
            with parallel.no_sync():  # type: ignore[operator]
                _timed_step(run, timer, batches)
    times = timer.take()
    whole, local = (times[::2], times[1::2]) if is_summed else (times, times)
    means = {name: statistics.fmean(one[name] for one in whole) for name in (*PHASES, OTHER, STEP)}
    means["communication"] = means["backward"] - statistics.fmean(one["backward"] for one in local)
    here = torch.tensor([*means.values()], dtype=torch.float64, device=run.world.device)
    return dict(zip(means, (run.world.sum(here) / run.world.workers).tolist(), strict=True))


def _validation_s(run: Run, timer: StepTimer, most: int) -> float:
    """Seconds of a whole validation on this rank: measured, or if it has more than ``most`` batches, estimated from
    those after the first. On a GPU a first pass chooses kernels, as the first of a run's validations does for all."""
    size = 2 * run.split.micro_size  # as in a run's validation, which keeps nothing for a backward pass
    info, of_all = run.source.info, size * run.world.workers
    count = -(-info.val_size // of_all) - (-info.holdout_size // of_all)
    at: list[float] = []

    def timed() -> Iterator[Batch]:
        at[:] = [timer.wait()]
        for batch in itertools.islice(run.source.val_batches(size, run.world.rank, run.world.workers), most + 1):
            yield batch
            at.append(timer.wait())

    run.model.eval()
    with torch.no_grad():
        for _ in range(1 + tunes_shapes(run.world.device)):
            measure(run, timed())
    run.model.train()
    times = [after - before for before, after in itertools.pairwise(at)]
    # Of a few batches the loader reads all while the first one waits.
    return count * statistics.fmean(times[len(times) < count :] or [0.0])
