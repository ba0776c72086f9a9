"""A full run under Ray Train on this machine. It starts its own Ray and ends it."""

from __future__ import annotations

import re
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path

from bigbatch.base.waits import RUN_SAVE_S
from bigbatch.cluster.host.allocation import usable_cpus
from bigbatch.train_loop.config import TrainConfig
from bigbatch.train_loop.data.sets.scan import FolderScan
from bigbatch.train_loop.errors import LostPeerError, RayStartError, TrainingStopped
from bigbatch.train_loop.host.node_memory import count_memory_kills
from bigbatch.train_loop.host.signals import SAVING, StopSignals, say_from_handler
from bigbatch.train_loop.launch.local_workers import local_gpu_count, worker_resources
from bigbatch.train_loop.launch.ray_session import LocalRay
from bigbatch.train_loop.launch.trainer import fit_from_driver
from bigbatch.train_loop.launch.trial_task import ERRORS, TrialTask, WorkersEnd, failed_end, leave_images
from bigbatch.train_loop.launch.worker_lines import RecordPrinter, read_lines, records_of
from bigbatch.train_loop.progress import progress_file
from bigbatch.train_loop.reporter import EpochRecord, Tracker

LEAVE_S = 5.0
"""Seconds that this process waits for its calls of Ray Train to end before it shuts Ray down."""
RECORDS_FILE = "records.jsonl"
WORKER_RESTARTS = 3
"""How often a full run starts its workers again after one of them died."""


def fit_full_run(
    config: TrainConfig,
    *,
    workers: int,
    output: Path,
    checkpoint_every_s: float = 60.0,
    stage_folder: str | None = None,
    scan: FolderScan | None = None,
    tracker: Tracker | None = None,
) -> tuple[EpochRecord, ...]:
    """A full run under Ray Train on this machine. Prints a line for each epoch. Resumes from ``output``.

    Returns the records of all epochs, including those before a resume. ``scan``: as for ``train``. ``tracker`` gets
    each epoch's record.

    Raises:
        ConfigError: anything that ``train`` refuses.
        NonFiniteLossError, CheckpointError, ImageError, DiskFull, …: as ``train``.
        TrainingStopped: after Ctrl-C or another of the stop signals, with a checkpoint written.
        RayStartError: Ray did not start.
        LostPeerError: a worker's process died more than ``WORKER_RESTARTS`` times, or met another error.
    """
    cpus, gpus = usable_cpus(), local_gpu_count()
    task = TrialTask(
        name="run",
        config=config,
        workers=workers,
        worker_resources=worker_resources(workers, cpus, gpus),
        restarts=WORKER_RESTARTS,
        ray_storage=output,  # beside Ray's sockets, once Ray runs
        checkpoint_dir=output / "checkpoints",
        checkpoint_every_s=checkpoint_every_s,
        log_file=output / "train.log",
        stop_file=output / ".stop",
        stage_folder=stage_folder,
        records_file=output / RECORDS_FILE,
    )
    task.stop_file.unlink(missing_ok=True)
    signals = StopSignals(lambda signum: _ask_to_stop(task.stop_file))
    try:
        with signals, LocalRay(cpus, gpus, output / "ray.log") as connection:
            signals.take()  # starting Ray may have replaced the handler for SIGTERM
            (output / RECORDS_FILE).unlink(missing_ok=True)  # a resumed run sends the checkpoint's records again
            storage = Path(connection.token_path or output).parent / "train"
            connection.tell_dashboard(partial(print, flush=True))
            leave_images(scan, storage)
            end = _fit_until_stopped(replace(task, ray_storage=storage), signals, tracker)
    except RayStartError:  # Ctrl-C in a terminal also reaches Ray's processes, and may end their start
        if signals.first is None:
            raise
        end = WorkersEnd(stopped=True)
    finally:
        task.stop_file.unlink(missing_ok=True)
    if end.stopped:
        raise TrainingStopped("stopped on request", signals.first)
    if end.failure:
        raise _error_of(end)
    return tuple(records_of(read_lines(output / RECORDS_FILE)).values())


def _ask_to_stop(stop_file: Path) -> None:
    stop_file.touch()
    say_from_handler(SAVING)


def _fit_until_stopped(task: TrialTask, signals: StopSignals, tracker: Tracker | None) -> WorkersEnd:
    """Run the trainer in a thread, so that signals reach us: Ray's handler would exit with code 0."""
    ends: list[WorkersEnd | Exception] = []
    # In Python 3.11 a thread counts as ended after a signal interrupted its join(). So an event says when it ends.
    leaving, ended = threading.Event(), threading.Event()
    kills = count_memory_kills()

    def run() -> None:
        try:
            ends.append(fit_from_driver(task, leaving))
        except Exception as error:
            ends.append(error)
        finally:
            ended.set()

    printer = RecordPrinter(task.log_file.with_name(RECORDS_FILE), progress_file(task.log_file), tracker)
    threading.Thread(target=run, daemon=True, name="trainer").start()
    try:
        while not ended.wait(0.5) and signals.waited_s() < RUN_SAVE_S:
            printer.print_new()
        printer.print_new()
    finally:
        printer.close()
        leaving.set()
        ended.wait(LEAVE_S)  # before Ray is shut down
    end = ends[0] if ends else WorkersEnd(stopped=True)  # it did not even leave in time
    return failed_end(end, kills) if isinstance(end, Exception) else end


def _error_of(end: WorkersEnd) -> Exception:
    """The error that the command prints for a failed run. Its message lacks worker and class, if the class is ours."""
    failure = end.failure or ""
    if end.kind is None or end.kind not in ERRORS:
        return LostPeerError(f"{failure.rstrip('.')}. A checkpoint is kept; repeat the command to resume")
    return ERRORS[end.kind](re.sub(r"^(worker \d+: )?([A-Z]\w+: )?", "", failure))
