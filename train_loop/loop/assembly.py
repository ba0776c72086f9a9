"""Assemble a run: data, model, optimizer and scaler, new or from a checkpoint; then its batches on the device."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.nn.parallel import DistributedDataParallel

from bigbatch.train_loop.config import BatchSplit, ConfigError, TrainConfig
from bigbatch.train_loop.data.catalogue import list_folder, open_data
from bigbatch.train_loop.data.loading.upload import Uploader
from bigbatch.train_loop.data.sampling import micro_sizes
from bigbatch.train_loop.data.sets.scan import FolderScan
from bigbatch.train_loop.data.source import Batch, DataSource
from bigbatch.train_loop.distributed import RankMeetings, World
from bigbatch.train_loop.errors import OwnCodeError
from bigbatch.train_loop.host.device_use import UseMeter
from bigbatch.train_loop.loop.checkpoint import CheckpointFolder, Content, RunState, check_same_run
from bigbatch.train_loop.loop.chronometer import Chronometer
from bigbatch.train_loop.loop.metrics import LossWatch, MetricSums, ValidationMetric, build_metrics
from bigbatch.train_loop.loop.oom_retry import Halving, halved_split
from bigbatch.train_loop.loop.sharded_state import SHARDS, read_shards
from bigbatch.train_loop.loop.step import TrainStep, placed
from bigbatch.train_loop.loop.worker_use import open_use_meter
from bigbatch.train_loop.model.networks import build_model
from bigbatch.train_loop.model.sharding import is_shared_out, shard
from bigbatch.train_loop.model.weight_average import WeightAverage
from bigbatch.train_loop.optim import build_optimizer
from bigbatch.train_loop.optim.noise_scale import GradientNorms
from bigbatch.train_loop.plugins.nested import Nested
from bigbatch.train_loop.reporter import Reporter, report_notes


@dataclass
class Run:
    """All parts of a running run."""

    config: TrainConfig
    world: World
    reporter: Reporter
    split: BatchSplit
    source: DataSource
    upload: Uploader
    steps_per_epoch: int
    step: TrainStep
    checkpoints: CheckpointFolder
    progress: RunState
    resumed_from_epoch: int | None
    sums: MetricSums
    norms: GradientNorms
    watch: LossWatch
    clock: Chronometer
    heartbeat: RankMeetings
    use: UseMeter
    metrics: dict[str, ValidationMetric]
    """The further metrics, beside loss and top-1."""
    replay: Callable[[Sequence[Nested], float], torch.Tensor | None] | None = None
    """``ReplayedStep.take``, if steps may be replays."""
    graph_bytes: int = 0
    """The device's memory that a recorded step keeps. torch counts it as tensors only while it is recorded."""

    @property
    def model(self) -> nn.Module:
        """The model without DDP, as it is validated and saved."""
        return self.step.model

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimizer with its state, as checkpoints hold it."""
        return self.step.optimizer

    @property
    def average(self) -> WeightAverage | None:
        """The moving average of the weights; None without ``ema_decay``."""
        return self.step.average

    @property
    def steps_done(self) -> int:
        """Steps since the run began, with skipped ones: the schedule's position."""
        return self.progress.epoch * self.steps_per_epoch + self.progress.step

    @property
    def scaler(self) -> GradScaler:
        """The scaler of fp16 gradients; switched off in other precisions."""
        return self.step.scaler


def set_up(
    config: TrainConfig,
    reporter: Reporter,
    checkpoints: CheckpointFolder,
    device: torch.device,
    stage_folder: str | None = None,
    scan: FolderScan | None = None,
    halvings: Sequence[Halving] = (),
) -> Run:
    """Set up data, model, optimizer and scaler, new or from the checkpoint.

    ``halvings``: the halvings of the micro-batch that this rank knows. All ranks use the longest of their lists.

    Raises:
        ConfigError: the configuration suits neither the data nor the device, or the checkpoint is of another run.
        CheckpointError: no checkpoint in the folder can be read.
    """
    world = World.current(_made_ready(device))
    source = _open(config, stage_folder, world, reporter, scan)
    halvings = max(world.gather(tuple(halvings)), key=len)  # a file system may show another node's file late
    split = halved_split(config.batch.split(world.workers), halvings)
    source.info.steps_per_epoch(split.global_size)  # raises ConfigError if there is none
    run = _fresh(config, reporter, checkpoints, world, source, split)
    content = _load(run, halved=bool(halvings))
    if halvings and hasattr(reporter, "halved"):
        reporter.halved(halvings)
    if content:
        _check_steps(content["steps_per_epoch"], run.steps_per_epoch)
        if checkpoints.folder and (SHARDS in content or is_shared_out(run.model)):
            average = run.average.tensors if run.average else []
            content = read_shards(content, checkpoints.folder, run.model, run.optimizer, average)
        _resume(run, content)
    called = _compiled(run.model) if config.model.compile == "on" else run.model
    # After reading the weights: it copies rank 0's to all ranks.
    parallel = _parallel(called, world, config.model.find_unused_parameters, is_shared_out(run.model))
    run.step = dataclasses.replace(run.step, parallel=parallel)
    run.step.skipped.fill_(run.progress.skipped_steps)
    run.norms.watch(parallel, config.bf16_gradients)
    return run


def _made_ready(device: torch.device) -> torch.device:
    """The device with its number. It becomes the current one before any computation."""
    if device.type != "cuda":
        return device
    if device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    torch.cuda.set_device(device)
    torch.backends.cudnn.benchmark = True  # shapes repeat
    return device


def _fresh(
    config: TrainConfig,
    reporter: Reporter,
    checkpoints: CheckpointFolder,
    world: World,
    source: DataSource,
    split: BatchSplit,
) -> Run:
    """A run before its first step, with the same weights on all ranks; its step calls the bare model."""
    device, clock = world.device, Chronometer(world.device)
    step = dataclasses.replace(_fresh_step(config, source, world), phase=clock.phase)
    measures = config.noise_scale and not is_shared_out(step.model)
    norms = GradientNorms(device, split.accumulation_steps, world.workers, measures)
    return Run(
        config=config,
        world=world,
        reporter=reporter,
        split=split,
        source=source,
        upload=Uploader(device, config.data.loader),
        steps_per_epoch=len(micro_sizes(source.info.train_size, split, config.data.drop_last)),
        step=step,
        checkpoints=checkpoints,
        progress=RunState(),
        resumed_from_epoch=None,
        sums=MetricSums(device),
        norms=norms,
        watch=LossWatch(),
        clock=clock,
        heartbeat=RankMeetings(world),
        use=open_use_meter(world),
        metrics=build_metrics(config.metrics, source.info, world),
    )


def _fresh_step(config: TrainConfig, source: DataSource, world: World) -> TrainStep:
    """The network and everything that changes its weights. Raises ConfigError for SyncBatchNorm on a CPU."""
    device = world.device
    if config.model.sync_bn and device.type == "cpu":
        raise ConfigError("SyncBatchNorm needs GPUs; got model.sync_bn=true on CPUs. Write model.sync_bn=false.")
    torch.manual_seed(config.seed)
    model = build_model(config.model, source.info)
    if config.model.parallel == "fsdp2" and world.workers > 1:
        model = shard(model, world, bf16_gradients=config.bf16_gradients)
    else:
        model = placed(model, config, device)
    precision = max(world.gather(choose_precision(config.precision, device)))  # beside an older kind of GPU: fp16
    return TrainStep(
        config=config,
        device=device,
        normalise=source.finish,
        model=model.train(),
        parallel=model,
        optimizer=build_optimizer(model, config.optimizer, precision == "fp16"),
        scaler=GradScaler(device.type, enabled=precision == "fp16"),
        average=WeightAverage(model, config.ema_decay) if config.ema_decay > 0 else None,
        precision=precision,
    )


def _resume(run: Run, content: Mapping[str, Any]) -> None:
    """Take over the content of a checkpoint."""
    progress = run.progress = RunState(**content["progress"])
    run.resumed_from_epoch = progress.epoch
    run.model.load_state_dict(content["model"])
    run.optimizer.load_state_dict(content["optimizer"])
    if content["scaler"]:  # empty if the run began on a device without scaling
        run.scaler.load_state_dict(content["scaler"])
    if run.average:
        run.average.load(content["average"])
    run.clock.seconds |= progress.seconds
    if run.world.rank == 0:  # it continues the sums over all ranks; the other ranks begin at 0
        run.sums.values.copy_(torch.tensor(progress.sums, dtype=torch.float64))
        run.use.resume(progress.gpu_energy_j)
        if content["micro_size"] == run.split.micro_size:  # else they are not comparable
            run.norms.sums.copy_(torch.tensor(progress.gradient_norms, dtype=torch.float64))


def _open(
    config: TrainConfig, stage_folder: str | None, world: World, reporter: Reporter, scan: FolderScan | None
) -> DataSource:
    """Open the data set. If one rank finds an error, all ranks raise it, because nodes differ in what they can stage.

    Only rank 0 lists an image folder, unless ``scan`` is its list already. All ranks use this list.
    """
    source: DataSource | None = None
    error: Exception | None = None
    notes: list[str] = []
    try:
        scan = list_folder(config.data, scan) if world.rank == 0 else None
    except (ConfigError, OwnCodeError) as found:
        error = found
    scan, error = world.of_first((scan, error))
    try:
        if error is None:
            source = open_data(config.data, stage_folder, notes.append, scan, world.device)
    except (ConfigError, OwnCodeError) as found:
        error = found
    views = world.gather((error, platform.node(), notes))
    for other, _, _ in views:
        if other is not None:
            raise other
    report_notes([(node, text) for _, node, texts in views for text in texts], reporter, world.rank)
    assert source is not None
    return source


GRAPHS = 8
"""Graphs of one function: torch's default limit."""


def _compiled(model: nn.Module) -> nn.Module:
    """The compiled model for training. Validation does not use it: its batches have other sizes, and the hooks of
    precise BatchNorm must see each layer.

    A smaller last step gets its own graph. Otherwise torch would make one graph for any size at the second size, which
    is slower. After 8 graphs of a function, counted over all runs of a process, torch stops compiling and only logs it.
    So this run's graphs are counted separately.
    """
    limits: dict[str, Any] = {"recompile_limit": GRAPHS, "isolate_recompiles": True}  # torch's type hints have neither
    if not limits.keys() <= inspect.signature(torch.compile).parameters.keys():  # older torch: for the whole process
        torch._dynamo.config.recompile_limit += GRAPHS
        torch._dynamo.config.accumulated_recompile_limit += GRAPHS
        limits = {}
    return cast(nn.Module, torch.compile(model, dynamic=False, **limits))


def _parallel(model: nn.Module, world: World, find_unused: bool, sharded: bool) -> nn.Module:
    """The model in DDP. A model of one worker, or a sharded one, is returned as it is."""
    if world.workers == 1 or sharded:
        return model
    # BatchNorm's running averages matter only in validation, and are shared before it, not in each step. Another layer
    # may use its buffers in training, e.g. a codebook. Then all ranks take rank 0's in each step: torch's default.
    new_name = "forward_sync_buffers" in inspect.signature(DistributedDataParallel.__init__).parameters
    how: dict[str, Any] = {"forward_sync_buffers" if new_name else "broadcast_buffers": _keeps_numbers(model)}
    how |= {"gradient_as_bucket_view": True, "find_unused_parameters": find_unused}
    devices = [world.device.index] if world.device.type == "cuda" else None
    return DistributedDataParallel(model, device_ids=devices, **how)


def _keeps_numbers(model: nn.Module) -> bool:
    """Whether a layer other than BatchNorm has a buffer of floating-point numbers that checkpoints hold."""
    return any(
        buffer.is_floating_point() and name not in module._non_persistent_buffers_set
        for module in model.modules() if not isinstance(module, nn.modules.batchnorm._BatchNorm)
        for name, buffer in module.named_buffers(recurse=False)
    )  # fmt: skip


def choose_precision(choice: str, device: torch.device) -> str:
    """The precision for ``auto`` on a device: bf16 if the GPU supports it, fp16 on older GPUs, off on CPUs."""
    if choice != "auto":
        return choice
    if device.type != "cuda":
        return "off"
    return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"


def _load(run: Run, *, halved: bool) -> Content | None:
    """The checkpoint to resume from, which rank 0 reads for all ranks. If one rank finds an error, all raise it.

    ``halved``: whether the micro-batch may differ, because a larger one did not fit.
    """
    checkpoints, error = run.checkpoints, None
    content = checkpoints.load(run.world)
    if content and checkpoints.folder:
        try:
            check_same_run(content, run.config, run.source.info, checkpoints.folder, halved=halved)
        except ConfigError as found:
            error = found
    for other in run.world.gather(error):
        if other is not None:
            raise other
    return content


def _check_steps(before: int, now: int) -> None:
    """Raise ConfigError if a resumed run has another number of steps per epoch: the schedule counts them."""
    if before != now:
        raise ConfigError(
            f"a resumed run must have as many steps per epoch as before, {before}; got {now}: with "
            "data.drop_last=false the last images make a step only if each micro-batch gets at least 2. Use as many "
            "workers as before, and micro-batches of the same size."
        )


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
