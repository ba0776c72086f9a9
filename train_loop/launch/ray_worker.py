"""The training loop under Ray Train.

``train_worker`` is what each ``TorchTrainer`` worker runs, for a trial of a search and for a full
run alike. ``fit`` is the full run: ``python train_loop/run.py --config best.json``.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from bigbatch.cluster.host.allocation import usable_cpus
from bigbatch.cluster.host.atomic_files import write_text
from bigbatch.cluster.host.waits import RUN_SAVE_S
from bigbatch.train_loop.config import ConfigError, TrainConfig
from bigbatch.train_loop.data.loading.cores import WORKER_CORES
from bigbatch.train_loop.errors import (
    CheckpointError,
    ImageError,
    LoaderError,
    NonFiniteLossError,
    RayStartError,
    TrainingStopped,
)
from bigbatch.train_loop.host.disk_full import DiskFull, LogFile
from bigbatch.train_loop.host.signals import SAVING, StopSignals, say_from_handler
from bigbatch.train_loop.launch.local_workers import local_gpu_count, worker_resources
from bigbatch.train_loop.launch.ray_session import LocalRay
from bigbatch.train_loop.launch.record_lines import (
    NOTES,
    RESUMED,
    RecordPrinter,
    read_lines,
    records_of,
)
from bigbatch.train_loop.launch.trial_task import TrialTask, WorkersEnd
from bigbatch.train_loop.progress import ProgressFile, progress_file
from bigbatch.train_loop.reporter import EpochRecord

RECORDS = "records"
"""Metric that holds the epoch records of one report, oldest first (several after a resume)."""
FAILURE = "failure"
"""Metric that holds why a run cannot go on."""
RECORDS_FILE = "records.jsonl"
WORKER_RESTARTS = 3
"""How often a full run starts its workers again after one of them died."""


class RayReporter:
    """Hands epoch records to Ray Train. Every rank calls ``report``: in Ray it is a barrier.

    Args:
        stop_file: once it exists, the run stops after the current step, with a checkpoint.
        records_file: gets a JSON line a record, for a driver that Ray's reports do not reach.
        progress: of rank 0, gets how far the epoch is.
    """

    def __init__(
        self,
        log: logging.Logger,
        stop_file: Path,
        records_file: Path | None = None,
        progress: ProgressFile | None = None,
    ) -> None:
        self._log, self._stop_file, self._records_file = log, stop_file, records_file
        self._progress = progress
        self._preemption_noticed = False

    def steps_done(self, epoch: int, step: int, steps: int, images_per_step: int) -> None:
        if self._progress is not None:
            self._progress.steps_done(epoch, step, steps, images_per_step)

    def report(self, record: EpochRecord) -> None:
        self._send([record])

    def resumed(self, history: Sequence[EpochRecord]) -> None:
        """Send all that is in the checkpoint again: a report may have been lost with the process."""
        if history:
            self._log.info("resumed after epoch %d", history[-1].epoch)
            self._note({RESUMED: len(history)})
            self._send(history)

    def noted(self, texts: Sequence[str]) -> None:
        import ray.train

        for text in texts:
            self._log.warning("%s", text)
        self._note({NOTES: list(texts)})
        ray.train.report({RECORDS: [], NOTES: list(texts)})

    def checkpoint_requested(self) -> bool:
        """True once, when Ray says that a node of this run is about to be taken away."""
        # Ray tells each rank; its public call would be a collective, here the local note is enough.
        from ray.train.v2._internal.execution.context import get_train_context

        noticed = get_train_context().preemption_context.preemption_info is not None
        first, self._preemption_noticed = noticed and not self._preemption_noticed, noticed
        return first

    def stop_requested(self) -> bool:
        return self._stop_file.exists()

    def _send(self, records: Sequence[EpochRecord]) -> None:
        import ray.train

        for record in records:
            self._log.info("%s", record)
            self._note(record.to_dict())
        ray.train.report({RECORDS: [record.to_dict() for record in records]})

    def _note(self, line: Mapping[str, object]) -> None:
        if self._records_file is not None:
            with self._records_file.open("a") as file:
                file.write(json.dumps(line) + "\n")


def train_worker(handed: dict[str, object]) -> WorkersEnd:
    """Train one configuration on this rank.

    Args:
        handed: a ``TrialTask``, as the plain dict that Ray Train carries.

    Returns:
        How the run ended: to its end, on request, or with a reason why this configuration cannot be trained. Reasons
        that all ranks meet are returned, not raised: Ray would start the workers again, to meet the same end. What one
        rank alone may meet is raised, so that the others are not left waiting for it; where that is a bad image, the
        workers that Ray then starts return it.
    """
    import ray.train.torch
    import torch

    from bigbatch.train_loop.distributed import World
    from bigbatch.train_loop.loop.train import train

    task = TrialTask.from_dict(handed)
    context = ray.train.get_context()
    leads = context.get_world_rank() == 0
    log = _trial_log(task.log_file, context.get_world_rank())
    records_file = task.records_file if leads else None
    progress = ProgressFile(progress_file(task.log_file)) if leads else None
    if progress is not None:
        progress.begin()
    _use_cores()
    reporter = RayReporter(log, task.stop_file, records_file, progress)
    device = ray.train.torch.get_device()
    # Asked before data and model are there: a search that has seconds to end must not wait for those of a trial that
    # has only begun. All ranks decide alike.
    world = World.current(device)
    if world.max([float(reporter.stop_requested())])[0]:
        log.info("stopped on request before the first step")
        return WorkersEnd(stopped=True)
    if failure := next(filter(None, world.gather(_read_failure(task))), None):
        return WorkersEnd(failure)
    try:
        train(
            task.config,
            reporter=reporter,
            checkpoint_dir=task.checkpoint_dir,
            checkpoint_every_s=task.checkpoint_every_s,
            device=device,
            stage_folder=task.stage_folder,
        )
    except TrainingStopped as stop:
        log.info("%s", stop)
        return WorkersEnd(stopped=True)
    except Exception as error:
        log.error("%s", traceback.format_exc())
        failure = f"{type(error).__name__}: {(str(error).splitlines() or ['no message'])[0]}"
        met_by_all = isinstance(error, NonFiniteLossError | ConfigError | CheckpointError)
        alone = context.get_world_size() == 1
        if met_by_all or (alone and isinstance(error, torch.OutOfMemoryError | ImageError | DiskFull)):
            return WorkersEnd(failure)
        if isinstance(error, ImageError):  # the others wait for this rank, so Ray must end them; then all return it
            with contextlib.suppress(OSError):
                write_text(task.failure_file, failure)
        raise
    return WorkersEnd()


def _use_cores() -> None:
    """Loader processes by what Ray has assigned; threads as Ray sets them to that too, unless the user has."""
    import ray
    import torch

    cores = ray.get_runtime_context().get_assigned_resources().get("CPU")
    if cores:
        os.environ[WORKER_CORES] = str(max(int(cores), 1))
    threads = os.environ.get("OMP_NUM_THREADS")
    if threads and threads.isdigit():
        torch.set_num_threads(int(threads))


def _read_failure(task: TrialTask) -> str:
    try:
        return task.failure_file.read_text()
    except FileNotFoundError:
        return ""


def fit_full_run(
    config: TrainConfig,
    *,
    workers: int,
    output: Path,
    checkpoint_every_s: float = 60.0,
    stage_folder: str | None = None,
) -> tuple[EpochRecord, ...]:
    """A full run under Ray Train on this machine, a line an epoch. Resumes from ``output``.

    Returns the records of all epochs, also those from before a resume.

    Raises:
        ConfigError: anything that ``train`` refuses.
        NonFiniteLossError, CheckpointError, ImageError, LoaderError: as ``train``.
        TrainingStopped: after Ctrl-C or another of the stop signals, with a checkpoint written.
        RayStartError: Ray did not start.
    """
    cpus, gpus = usable_cpus(), local_gpu_count()
    stop_file = output / ".stop"
    stop_file.unlink(missing_ok=True)
    signals = StopSignals(lambda signum: _ask_to_stop(stop_file))
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
        stop_file=stop_file,
        stage_folder=stage_folder,
        records_file=output / RECORDS_FILE,
    )
    try:
        with signals:
            end = _fit_on_own_ray(task, cpus, gpus, signals)
    except RayStartError:  # Ctrl-C in a terminal reaches Ray's processes too, and may end a start
        if signals.first is None:
            raise
        end = WorkersEnd(stopped=True)
    finally:
        stop_file.unlink(missing_ok=True)
    if end.stopped:
        raise TrainingStopped("stopped on request", signals.first)
    if end.failure:
        raise _as_error(end.failure)
    return tuple(records_of(read_lines(output / RECORDS_FILE)).values())


def _ask_to_stop(stop_file: Path) -> None:
    stop_file.touch()
    say_from_handler(SAVING)


def _fit_on_own_ray(task: TrialTask, cpus: int, gpus: int, signals: StopSignals) -> WorkersEnd:
    """Start Ray, train, end Ray. Returns what ``train_worker`` returned, or that the run was stopped."""
    output = task.log_file.parent
    with LocalRay(cpus, gpus, output / "ray.log") as connection:
        signals.take()  # starting Ray has put its own handler for SIGTERM in place
        (output / RECORDS_FILE).unlink(missing_ok=True)  # what is in the checkpoint is sent again
        storage = Path(connection.token_path or output).parent / "train"
        print(f"Ray dashboard: {connection.dashboard_url} (token in {connection.token_path})", flush=True)
        return _fit_until_stopped(replace(task, ray_storage=storage), signals)


def _fit_until_stopped(task: TrialTask, signals: StopSignals) -> WorkersEnd:
    """Run the trainer in a thread, so that signals stay ours: Ray's handler would end with code 0."""
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    ends: list[WorkersEnd | Exception] = []
    task.failure_file.unlink(missing_ok=True)
    resources = dict(task.worker_resources)
    trainer = TorchTrainer(
        train_worker,
        train_loop_config=task.to_dict(),
        scaling_config=ScalingConfig(
            num_workers=task.workers, use_gpu="GPU" in resources, resources_per_worker=resources
        ),
        run_config=RunConfig(
            name=task.name,
            storage_path=str(task.ray_storage),
            failure_config=FailureConfig(max_failures=task.restarts),
        ),
    )

    def run() -> None:
        try:
            ends.append(trainer.fit().return_value or WorkersEnd())
        except Exception as error:
            ends.append(error)

    thread = threading.Thread(target=run, daemon=True, name="trainer")
    printer = RecordPrinter(task.log_file.with_name(RECORDS_FILE), progress_file(task.log_file))
    thread.start()
    try:
        while thread.is_alive() and signals.waited_s() < RUN_SAVE_S:
            thread.join(0.5)
            printer.print_new()
        printer.print_new()
    finally:
        printer.close()
    end = ends[0] if ends else WorkersEnd()
    if isinstance(end, Exception):
        raise _cause(end)
    if signals.first is not None and thread.is_alive():  # it did not stop in time
        return WorkersEnd(stopped=True)
    return end


def _cause(error: Exception) -> Exception:
    """Of Ray's error, what a worker met itself, where that is one of ours; the others only lost touch with it."""
    failures = (getattr(error, "worker_failures", None) or {}).values()
    return next((met for met in failures if isinstance(met, ImageError | LoaderError | DiskFull)), error)


def _as_error(text: str) -> Exception:
    name, _, message = text.partition(": ")
    known: tuple[type[Exception], ...] = (NonFiniteLossError, CheckpointError, ConfigError, ImageError, DiskFull)
    kinds = {kind.__name__: kind for kind in known}
    return kinds.get(name, RuntimeError)(message or text)


def _trial_log(path: Path, rank: int) -> logging.Logger:
    """A log of the trial's own in the study's folder; other ranks than 0 only log errors there."""
    log = logging.getLogger(f"bigbatch.{path.parent.parent.name}.{path.stem}.{rank}")
    if not log.handlers:
        path.parent.mkdir(parents=True, exist_ok=True)
        handler = LogFile(path, delay=True, encoding="utf-8")
        handler.setFormatter(logging.Formatter(f"%(asctime)s rank {rank} %(levelname)s %(message)s"))
        log.addHandler(handler)
        log.setLevel(logging.INFO if rank == 0 else logging.ERROR)
        log.propagate = False
    # The package's own words, of any rank: which images were bad. A process of Ray's may serve several trials.
    package = logging.getLogger("bigbatch.train_loop")
    package.handlers[:], package.propagate = log.handlers, False
    package.setLevel(logging.WARNING)
    return log
