"""The training loop, in plain PyTorch. Ray, torchrun and tests call the same ``train``.

Read from the top: ``train`` (epochs), ``_train_epoch`` (steps), ``_optimizer_step`` (one global
batch), then what ranks decide together, records and checkpoints. ``validation`` has the rest of an epoch.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bigbatch.train_loop.config import TrainConfig
from bigbatch.train_loop.config.own_names import own_words
from bigbatch.train_loop.data.pixels import mixing
from bigbatch.train_loop.data.sets.scan import FolderScan
from bigbatch.train_loop.data.source import Batch, Step
from bigbatch.train_loop.distributed import pick_device
from bigbatch.train_loop.errors import NonFiniteLossError, TrainingStopped
from bigbatch.train_loop.loop.assembly import Run, on_device, seed_batch, set_up
from bigbatch.train_loop.loop.checkpoint import CheckpointFolder, Content, describe_data
from bigbatch.train_loop.loop.metrics import Sums
from bigbatch.train_loop.loop.oom_retry import Halving, retry_with_smaller_micro_batches
from bigbatch.train_loop.loop.replayed_step import replay_steps
from bigbatch.train_loop.loop.validation import prepare_batch_norm, validate, validation_values
from bigbatch.train_loop.loop.worker_use import forget_peak, peak_bytes
from bigbatch.train_loop.model.sharding import is_shared_out, whole_weights
from bigbatch.train_loop.optim.schedules import learning_rate
from bigbatch.train_loop.plugins.nested import Nested, example_count
from bigbatch.train_loop.plugins.registry import whose_error
from bigbatch.train_loop.reporter import EpochRecord, Reporter, best_record

__all__ = ["NonFiniteLossError", "TrainResult", "TrainingStopped", "train"]

MIN_GRADIENT_SCALE = 2.0**-20
"""Below this loss scale, no scale prevents overflow in fp16. 36 skipped steps in a row from the first step reach it."""


@dataclass(frozen=True)
class TrainResult:
    """A run that reached its last epoch."""

    record: EpochRecord
    """The record of the last epoch."""
    best_val_top1: float | None
    """None if the targets are not classes."""
    best_epoch: int
    """1-based: the first epoch with that accuracy, or without accuracies the one with the lowest validation loss."""
    history: tuple[EpochRecord, ...]
    """Records of all epochs, including those before a resume."""


def train(
    config: TrainConfig,
    *,
    reporter: Reporter,
    checkpoint_dir: Path | None = None,
    checkpoint_every_s: float = 60.0,
    device: torch.device | None = None,
    stage_folder: str | None = None,
    scan: FolderScan | None = None,
) -> TrainResult:
    """Train ``config`` to its last epoch, on all ranks of torch.distributed if it is initialised.

    Resumes from ``checkpoint_dir`` if it holds a checkpoint of this configuration. On CPUs and with the same number of
    workers, weights and records are bit for bit those of an uninterrupted run, except the last digits of sums over
    several workers. docs/training.md, "Checkpoints and resuming", lists what else may round differently.

    A checkpoint is written between steps when ``checkpoint_every_s`` have passed since the last one, when the reporter
    asks for one, and after the last epoch. A thread writes it while training goes on; a stop, an error and the last
    epoch's report wait for it. A resumed run repeats and reports again the steps after the last checkpoint.

    Args:
        checkpoint_every_s: 0 means at the end of each epoch, before its report, and not within epochs.
        device: None: the current CUDA device, else the CPU. ``train`` seeds torch's global generators.
        stage_folder: where each node keeps a copy of a packed data set; it changes no result.
        scan: the list of an image folder's images, on rank 0, if it exists already; None: rank 0 makes the list.

    Raises:
        ConfigError: batch, model, data, device or checkpoint do not suit the configuration.
        NonFiniteLossError: on all ranks, when the loss of any becomes NaN or infinite.
        CheckpointError: no checkpoint in the folder can be read.
        DeviceMemoryError: a step does not fit into the device's memory. One worker first tries smaller micro-batches,
            down to one image. With several, the one that failed raises; if ``halved`` is true, start all again.
        NodeMemoryError: the same as DeviceMemoryError, for runs on CPUs.
        OwnCodeError: a user's function raised an exception.
        TrainingStopped: see ``Reporter``.
    """
    checkpoints = CheckpointFolder(checkpoint_dir, checkpoint_every_s)
    device = device or pick_device()

    def begin(halvings: Sequence[Halving]) -> Run:
        return set_up(config, reporter, checkpoints, device, stage_folder, scan, halvings)

    with whose_error(own_words(config)), checkpoints.writing():
        return retry_with_smaller_micro_batches(begin, _train_to_the_end, checkpoint_dir, device)


def _train_to_the_end(run: Run) -> TrainResult:
    """Train the epochs that are left, and report each."""
    reporter = run.reporter
    forget_peak(run.world.device)  # this process may have trained another trial
    if run.resumed_from_epoch is not None and hasattr(reporter, "resumed"):
        reporter.resumed(_history(run))
    replay_steps(run)
    with run.use:
        while run.progress.epoch < run.config.epochs:
            reporter.report(_epoch(run))
    history = _history(run)
    best = best_record(history)
    return TrainResult(history[-1], best.val_top1, best.epoch, history)


def _epoch(run: Run) -> EpochRecord:
    _train_epoch(run)
    if not run.config.validates(run.progress.epoch + 1):
        return _end_epoch(run, None, {"val_loss": None, "val_top1": None})
    with run.average.in_place() if run.average else contextlib.nullcontext(), whole_weights(run.model):
        with run.clock.part("bn_s", synchronize=True):
            prepare_batch_norm(run)
        with run.clock.part("val_s", synchronize=True):
            val_sums, shared = validate(run)
    return _end_epoch(run, val_sums, shared)


def _train_epoch(run: Run) -> None:
    """Train the remaining steps of the epoch."""
    progress = run.progress
    steps = run.source.train_steps(
        run.config.seed,
        progress.epoch,
        run.split,
        run.world.rank,
        start_step=progress.step,
        drop_last=run.config.data.drop_last,
    )
    for step in run.clock.waiting(steps, "data_s"):
        with run.clock.part("step_s"):
            _optimizer_step(run, step)
            progress.step += 1
        last = progress.step == run.steps_per_epoch
        if run.heartbeat.due() or last:
            _meet(run, last)


def _optimizer_step(run: Run, step: Step) -> None:
    """Train one global batch at the schedule's rate."""
    rate = learning_rate(
        run.steps_done,
        total_steps=run.config.epochs * run.steps_per_epoch,
        steps_per_epoch=run.steps_per_epoch,
        peak_lr=run.config.optimizer.peak_lr,
        schedule=run.config.schedule,
    )
    take_step(run, step, rate)


def take_step(run: Run, step: Step | list[Batch], rate: float) -> None:
    """Compute the gradients of the global batch's mean loss over all micro-batches and ranks; then step with ``rate``.

    The wait for a micro-batch counts as ``data_s``, also within another timed part.
    """
    progress, count = run.progress, len(step)
    progress.learning_rate = rate
    batches = on_device(run, run.clock.waiting(step, "data_s"))
    for number in range(count):
        images, labels = next(batches)
        images, targets = _mixed(run, number, images, labels)
        seed_batch(run, progress.step, number)
        if _is_replayed(run, (images, targets, labels), rate):
            return
        loss, logits = run.step.gradients(images, targets, count, last=number + 1 == count)
        if number == 0:
            run.norms.first_micro_batch(run.model.parameters())
        run.sums.add(loss, logits, labels)
        run.watch.add(progress.step, rate, loss)
    whole = example_count(labels) == run.split.micro_size  # a smaller last step does not measure this batch size
    run.norms.step(run.model.parameters(), run.scaler.scale(run.norms.one), whole)
    run.step.update(rate, run.steps_done + 1)


def _is_replayed(run: Run, batch: Sequence[Nested], rate: float) -> bool:
    """Take the step as a replay, if possible. An epoch's last step is none: it may be smaller, and hooks read it."""
    progress = run.progress
    if run.replay is None or progress.step + 1 == run.steps_per_epoch:
        return False
    if (loss := run.replay(batch, rate)) is None:
        return False
    run.watch.add(progress.step, rate, loss)
    if run.average:
        run.average.update(run.steps_done + 1)
    return True


def check_gradient_scale(run: Run) -> None:
    """With fp16, ask the device for the skipped steps; raise NonFiniteLossError, on all ranks, when no scale helps."""
    if not run.scaler.is_enabled():
        return
    run.progress.skipped_steps = int(run.step.skipped)
    scale = run.scaler.get_scale()
    if scale < MIN_GRADIENT_SCALE:
        raise NonFiniteLossError(
            f"gradients overflow at any loss scale (now {scale:.3g}) in epoch {run.progress.epoch + 1} until its step "
            f"{run.progress.step} with learning rate {run.progress.learning_rate:.6g}"
        )


def _mixed(run: Run, number: int, images: Nested, labels: Nested) -> Batch:
    """The batch for the loss. Training accuracy uses the labels that were not mixed."""
    if not mixing.is_mixing_on(run.config.data):
        return images, labels
    micro = number * run.world.workers + run.world.rank
    position = (run.config.seed, run.progress.epoch, run.progress.step, micro)
    return mixing.mix(images, labels, run.source.info.num_classes, run.config.data, position)


def _meet(run: Run, last_of_epoch: bool) -> None:
    """Exchange what all ranks must know or do at the same step: a bad loss, a checkpoint, a stop."""
    with run.clock.part("step_s"):
        bad_step, bad_kind = run.watch.codes()  # waits for the device
    # At the end of an epoch the checkpoint waits for the record, unless it was requested.
    due = not last_of_epoch and run.checkpoints.due(within_epoch=True)
    wanted = run.reporter.checkpoint_requested() or due
    stop = hasattr(run.reporter, "stop_requested") and run.reporter.stop_requested()
    dropped = hasattr(run.reporter, "dropped") and run.reporter.dropped()
    bad_step, bad_kind, write, leave, drop = run.heartbeat.meet(
        [bad_step, bad_kind, float(wanted), float(stop), float(dropped)]
    )
    run.watch.check(bad_step, bad_kind, run.progress.epoch + 1)
    check_gradient_scale(run)
    if hasattr(run.reporter, "steps_done"):  # the device has just been waited for
        run.reporter.steps_done(run.progress.epoch + 1, run.progress.step, run.steps_per_epoch, run.split.global_size)
    if drop:
        raise TrainingStopped(f"dropped in epoch {run.progress.epoch + 1} after step {run.progress.step}")
    if write or leave:
        _write_checkpoint(run)
    if leave:
        run.checkpoints.wait()
        run.world.wait()  # wait for rank 0 to write: a launcher may end all ranks when the first one leaves
        raise TrainingStopped(f"stopped on request in epoch {run.progress.epoch + 1} after step {run.progress.step}")


def _end_epoch(run: Run, val_sums: Sequence[torch.Tensor] | None, shared: dict[str, Any]) -> EpochRecord:
    """Make the epoch's record; add it to the history and, if one is due, write a checkpoint.

    ``val_sums``: None without a validation.
    """
    progress, config = run.progress, run.config
    use = run.use.take()
    rest = run.norms.sums.new_tensor([use.gpu_energy_j])
    parts = (run.sums.values, rest, run.norms.sums, *(val_sums or ()))
    summed = run.world.sum(torch.cat(parts)).split([len(part) for part in parts])
    train_sums, (gpu_j,), norms, *measured = (part.tolist() for part in summed)
    trained = Sums(*train_sums)
    if val_sums is not None:
        shared = {**shared, **validation_values(run, [Sums(*each) for each in measured])}
    due_here = float(run.checkpoints.due(within_epoch=False))
    peak = float(peak_bytes(run.world.device) + run.graph_bytes)
    most_here = (float(run.source.processes), peak, use.idle_part, due_here)
    most = run.world.max([*run.clock.seconds.values(), *most_here, run.checkpoints.write_s])
    *slowest, processes, memory_bytes, idlest, due, write_s = most
    times: dict[str, Any] = dict(zip(run.clock.seconds, slowest, strict=True))
    progress.epoch, progress.step = progress.epoch + 1, 0
    record = EpochRecord(
        epoch=progress.epoch,
        epochs=config.epochs,
        train_loss=trained.mean_loss,
        train_top1=trained.top1,
        learning_rate=progress.learning_rate,
        optimizer_steps=run.steps_done - progress.skipped_steps,
        skipped_steps=progress.skipped_steps,
        images_per_s=trained.images / max(times["data_s"] + times["step_s"], 1e-9),
        train_s=times["data_s"] + times["step_s"],
        noise_scale=run.norms.estimate(norms, run.split.global_size),
        workers=run.world.workers,
        loader_processes=int(processes),
        memory_bytes=int(memory_bytes) or None,
        gpu_energy_j=None if math.isnan(gpu_j) else gpu_j,
        gpu_utilization=None if idlest > 1 else 1.0 - idlest,
        checkpoint_write_s=write_s or None,
        resumed_from_epoch=run.resumed_from_epoch,
        **shared,
        **times,
    )
    progress.history.append(record.to_dict())
    run.sums.values.zero_()
    run.norms.sums.zero_()
    run.clock.reset()
    if due or progress.epoch == config.epochs:
        _write_checkpoint(run)
    return record


def _write_checkpoint(run: Run) -> None:
    """Write a checkpoint. All ranks must call this: it sums the unfinished epoch over the ranks."""
    with run.clock.part("checkpoint_s"):
        run.progress.sums = run.world.sum(run.sums.values.clone()).tolist()
        run.progress.gradient_norms = run.world.sum(run.norms.sums.clone()).tolist()
        here = run.norms.sums.new_tensor([run.use.used().gpu_energy_j])
        (run.progress.gpu_energy_j,) = run.world.sum(here).tolist()
        run.progress.seconds = dict(run.clock.seconds)
        if is_shared_out(run.model):
            run.checkpoints.save_sharded(_content(run), run.world, last=run.progress.epoch == run.config.epochs)
        elif run.world.rank == 0:
            _save(run)
        run.checkpoints.restart_clock()


def _save(run: Run) -> None:
    """Write a checkpoint in a thread while training continues. The last one, the run's result, is written at once.

    Raises DiskFull for the last one only. If the disk has no room for an earlier one, training continues.
    """
    if run.progress.epoch < run.config.epochs:
        run.checkpoints.save_behind(_content(run))
    else:
        run.checkpoints.wait()
        run.checkpoints.save(_content(run))


def _content(run: Run) -> Content:
    return {
        "config": run.config.to_dict(),
        "data": describe_data(run.source.info),
        "model": run.model.state_dict(),
        "optimizer": run.optimizer.state_dict(),
        "scaler": run.scaler.state_dict(),
        "progress": dataclasses.asdict(run.progress),
        "steps_per_epoch": run.steps_per_epoch,
        "micro_size": run.split.micro_size,
        **({"average": run.average.tensors} if run.average else {}),
    }


def _history(run: Run) -> tuple[EpochRecord, ...]:
    return tuple(EpochRecord.from_dict(values) for values in run.progress.history)
