"""``--loader-report``: measure the speed of the loader and of the model, and say what would help.

The loader is timed alone: in this process for its rate per core, and as configured. The model is timed with one
batch of the loader, again and again. The rates are those of this machine now, with its other load.
"""

from __future__ import annotations

import itertools
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import torch

from bigbatch.train_loop.config import TrainConfig
from bigbatch.train_loop.data.catalogue import open_data
from bigbatch.train_loop.data.loading.counts import AUTO, MAX_PROCESSES, SUPPLY_MARGIN, cores_per_rank
from bigbatch.train_loop.data.loading.device_source import DeviceSource
from bigbatch.train_loop.data.sets.scan import FolderScan
from bigbatch.train_loop.data.source import Batch, DataSource
from bigbatch.train_loop.distributed import pick_device
from bigbatch.train_loop.loop.assembly import Run, set_up
from bigbatch.train_loop.loop.checkpoint import CheckpointFolder
from bigbatch.train_loop.loop.train import take_step
from bigbatch.train_loop.plugins.nested import example_count
from bigbatch.train_loop.reporter import ListReporter

MEASURE_S = 4.0


@dataclass(frozen=True)
class ImageRates:
    """Rates in images per second."""

    core: float
    """The loader's rate in one process, per second of CPU time."""
    loader: float
    """As configured."""
    model: float
    workers: int
    """Loader processes."""
    cores: int
    """CPU cores that this worker may use."""
    decodes: bool = field(default=True, kw_only=True)
    """False: decoded images are on the device, which cuts them as a part of the model's work."""


def print_report(config: TrainConfig, stage_folder: str | None = None, scan: FolderScan | None = None) -> None:
    """Measure the rates; print what limits the images per second and what would help."""
    rates, device = measure_rates(config, stage_folder, MEASURE_S, scan)
    how = "decoding in the training process" if rates.decodes else "images are on the device"
    if rates.workers:
        how = f"{rates.workers} loader process{'es' if rates.workers > 1 else ''}"
    print(f"loader  {rates.loader:>8,.0f} images/s  {how}; {rates.core:,.0f} per core, {rates.cores} cores here")
    print(f"model   {rates.model:>8,.0f} images/s  {config.model.name} on {device}, training")
    for line in loader_advice(rates, device.type):
        print(line)
    if config.data.loader.workers == AUTO and rates.workers:
        kept = min(_needed(rates), rates.workers)
        print(f"auto    a run begins with {rates.workers} and keeps about {kept} after an epoch, by these rates")


def measure_rates(
    config: TrainConfig, stage_folder: str | None, seconds: float, scan: FolderScan | None = None
) -> tuple[ImageRates, torch.device]:
    """The rates of a core, of the loader and of the model, each measured alone for ``seconds``; and the device."""
    cores = cores_of_a_run(torch.cuda.device_count())
    if config.data.loader.workers == AUTO:
        config = config.replace_keys({"data.loader.workers": min(cores - 1, MAX_PROCESSES)})
    run = set_up(config, ListReporter(), CheckpointFolder(None, 0.0), pick_device(), stage_folder, scan)
    try:
        alone = replace(config.data, loader=replace(config.data.loader, workers=0))
        here = open_data(alone, stage_folder, scan=scan, device=run.world.device)
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # as in a loader process
        core = _rate(_batches(run, here), seconds, time.process_time)
        torch.set_num_threads(threads)
        loader = _rate(_batches(run, run.source), seconds, time.perf_counter)
        step = [next(_batches(run, run.source))]
        run.source.close()  # its processes would decode beside the model
        decodes = not isinstance(run.source, DeviceSource)
        workers = config.data.loader.workers if decodes else 0
        rates = ImageRates(core, loader, _model_rate(run, step, seconds), workers, cores, decodes=decodes)
        return rates, run.world.device
    finally:
        run.source.close()


def cores_of_a_run(gpus: int, env: Mapping[str, str] = os.environ) -> int:
    """Cores that a worker of a run of this configuration would have here: under Ray its GPU's share."""
    cores = cores_per_rank(env)
    return cores if "LOCAL_WORLD_SIZE" in env else max(cores // max(gpus, 1), 1)


def _last_epoch(config: TrainConfig) -> int:
    """The last epoch: if the image size grows, it has the largest images."""
    return config.epochs - 1


def _batches(run: Run, source: DataSource) -> Iterator[Batch]:
    for epoch in itertools.repeat(_last_epoch(run.config)):
        for step in source.train_steps(run.config.seed, epoch, run.split, 0):
            yield from step


def _rate(batches: Iterator[Batch], seconds: float, clock: Callable[[], float]) -> float:
    """Images per second, without the first batch, which waits for processes to start."""
    next(batches)
    began, images = clock(), 0
    while clock() - began < seconds:
        images += example_count(next(batches)[1])
    return float(images / (clock() - began))


def _model_rate(run: Run, step: list[Batch], seconds: float) -> float:
    def wait() -> float:
        if run.world.device.type == "cuda":
            torch.cuda.synchronize(run.world.device)
        return time.perf_counter()

    for _ in range(2):  # kernels are chosen and memory is reserved
        take_step(run, step, 0.0)
    began, steps = wait(), 0
    while steps < 2 or time.perf_counter() - began < seconds:
        take_step(run, step, 0.0)
        steps += 1
    return steps * sum(example_count(labels) for _, labels in step) / (wait() - began)


def loader_advice(rates: ImageRates, device: str) -> list[str]:
    """Lines that say what limits a run with these rates, and what would help."""
    together = rates.loader
    if rates.workers == 0:  # decoding and training take turns
        together = 1 / (1 / rates.loader + 1 / rates.model)
        bound = f"bound   by turns: the run takes {together:,.0f} images/s of the model's {rates.model:,.0f}."
        if together * SUPPLY_MARGIN >= rates.model:
            return [bound + " Decoding costs little."]
        if not rates.decodes:
            return [bound]
        if device == "cpu" and rates.cores == 1:
            return [bound, "help    a smaller stored size: bigbatch pack --profile fast."]
        return [bound, *_more_processes(rates)]
    if rates.loader >= SUPPLY_MARGIN * rates.model:
        spare = f" {_needed(rates)} would do." if _needed(rates) < rates.workers else ""
        return [f"bound   by the model; the loader brings {rates.loader / rates.model:.1f} times what it takes.{spare}"]
    bound = f"bound   by the loader: it brings {rates.loader / rates.model:.2f} of what the model takes."
    if _needed(rates) <= rates.workers:
        return [
            bound,
            f"help    a process brings {rates.loader / rates.workers:,.0f} images/s, a core alone {rates.core:,.0f}: "
            "the cores are shared, or the file system is slow",
        ]
    return [bound, *_more_processes(rates)]


def _more_processes(rates: ImageRates) -> list[str]:
    if _needed(rates) <= rates.cores:
        return [f"help    --set data.loader.workers={_needed(rates)}"]
    more = (
        [] if rates.workers >= rates.cores - 1 else ["help    --set data.loader.workers=-1 takes the cores there are"]
    )
    return [
        *more,
        f"help    {_needed(rates)} cores a GPU or worker (here {rates.cores}), or smaller stored images: "
        "bigbatch pack --profile fast",
    ]


def _needed(rates: ImageRates) -> int:
    """The number of loader processes for the model's rate, with a margin."""
    return max(math.ceil(SUPPLY_MARGIN * rates.model / rates.core), 1)
