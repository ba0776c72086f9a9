"""The training loop under Ray Train: the function of each ``TorchTrainer`` worker, in searches and in full runs."""

from __future__ import annotations

import contextlib
import functools
import gc
import logging
import os
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from bigbatch.train_loop.config import ConfigError
from bigbatch.train_loop.data.loading.counts import WORKER_CORES, cores_per_rank
from bigbatch.train_loop.data.sets.scan import FolderScan
from bigbatch.train_loop.errors import (
    CheckpointError,
    DeviceMemoryError,
    FailureKind,
    ImageError,
    NodeMemoryError,
    NonFiniteLossError,
    OwnCodeError,
    TrainingStopped,
)
from bigbatch.train_loop.host.disk_space import DiskFull, LogFile
from bigbatch.train_loop.host.node_memory import is_node_memory_full
from bigbatch.train_loop.host.ranks import SHARED_BY, memory_part, sharing_of, stay_near, trials_on_gpu
from bigbatch.train_loop.launch.own_training import train_own
from bigbatch.train_loop.launch.ray_internals import is_preempted
from bigbatch.train_loop.launch.trial_task import TrialTask, WorkersEnd, failure_kind_of
from bigbatch.train_loop.launch.worker_lines import NOTES, RESUMED, append_line
from bigbatch.train_loop.progress import ProgressFile, progress_file
from bigbatch.train_loop.reporter import EpochRecord

if TYPE_CHECKING:
    import torch

    from bigbatch.train_loop.distributed import World
    from bigbatch.train_loop.loop.oom_retry import Halving

T = TypeVar("T")
RECORDS = "records"
"""The metric with the epoch records of one report, oldest first (several after a resume)."""
FAILURE = "failure"
"""The metric with the reason why a run cannot continue."""
FAILURE_KIND = "failure_kind"
"""The metric with the ``FailureKind`` of that reason."""
NODES = "nodes"
"""The metric with Ray's id and host of each node of a run. After a failure: of the node that failed, if it is known."""
HALVINGS = "halvings"
"""The metric with the halvings of the micro-batch (``loop/oom_retry.py``), all since the run began."""
RESTARTED = "restarted"
"""The metric with the reason why a run's workers are started again."""


class RayReporter:
    """Hands epoch records to Ray Train. Every rank calls ``report``: in Ray it is a barrier.

    Args:
        stop_files: once one of them exists, the run stops after the current step, with a checkpoint.
        records_file: gets a JSON line for each record, for a driver that Ray's reports do not reach.
        progress: rank 0's file for the progress within an epoch.
    """

    def __init__(
        self,
        log: logging.Logger,
        stop_files: Sequence[Path],
        records_file: Path | None = None,
        progress: ProgressFile | None = None,
    ) -> None:
        self._log, self._stop_files, self._records_file = log, stop_files, records_file
        self._progress = progress
        self._preemption_noticed = False

    def steps_done(self, epoch: int, step: int, steps: int, images_per_step: int) -> None:
        """Write the progress within the epoch, for the displays."""
        if self._progress is not None:
            self._progress.steps_done(epoch, step, steps, images_per_step)

    def report(self, record: EpochRecord) -> None:
        """Send the record of a finished epoch to Ray Train."""
        self.send([record.to_dict()])

    def resumed(self, history: Sequence[EpochRecord]) -> None:
        """Send the checkpoint's records again: a report may have been lost with the process."""
        if history:
            self._log.info("resumed after epoch %d", history[-1].epoch)
            self._note({RESUMED: len(history)})
            self.send([record.to_dict() for record in history])

    def noted(self, texts: Sequence[str]) -> None:
        """Send warnings that the driver should show to the user."""
        import ray.train

        for text in texts:
            self._log.warning("%s", text)
        self._note({NOTES: list(texts)})
        ray.train.report({RECORDS: [], NOTES: list(texts)})

    def halved(self, halvings: Sequence[Halving]) -> None:
        """Send the halvings of the micro-batch, for the study; and the last one as a line for the user."""
        import ray.train

        self._log.warning("%s", halvings[-1])
        self._note({NOTES: [str(one) for one in halvings]})
        ray.train.report({RECORDS: [], HALVINGS: [asdict(one) for one in halvings]})

    def checkpoint_requested(self) -> bool:
        """True once, when Ray announces that a node of this run will be removed."""
        noticed = is_preempted()
        first, self._preemption_noticed = noticed and not self._preemption_noticed, noticed
        return first

    def stop_requested(self) -> bool:
        """Whether a stop file exists."""
        return any(file.exists() for file in self._stop_files)

    def dropped(self) -> bool:
        """Whether Tune has ended this trial."""
        return _dropped.is_set()

    def send(self, records: Sequence[Mapping[str, object]]) -> None:
        """Send records to Ray Train, as studies store them. Every rank calls it."""
        import ray.train

        for record in records:
            self._log.info(
                "%s", " ".join(f"{name}={value}" for name, value in record.items() if value not in (None, {}))
            )
            self._note(record)
        ray.train.report({RECORDS: list(records)})

    def _note(self, line: Mapping[str, object]) -> None:
        if self._records_file is not None:
            append_line(self._records_file, line)


def train_worker(handed: dict[str, object]) -> WorkersEnd:
    """Train one configuration on this rank.

    Args:
        handed: a ``TrialTask``, as the dict that Ray Train carries.

    Returns:
        How the run ended: complete, on request, or with a reason why this configuration cannot be trained. A reason
        that all ranks meet is returned, not raised: Ray would start the workers again, with the same result. An
        error that one rank alone may meet is raised, so that the others do not wait for it (``StartsAgain``).
    """
    return in_training_thread(lambda: _train_here(TrialTask.from_dict(handed)))


def in_training_thread(function: Callable[[], T]) -> T:
    """Call it in the thread that trains each trial of this process. Ray starts another thread for each trial, and what
    cuDNN has measured of its kernels belongs to a thread: it would be lost, and stay in memory (torch's Conv_v8.cpp).
    """
    done: Future[T] = Future()
    _training_thread().put((function, done))
    return done.result()


@functools.cache
def _training_thread() -> queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]]:
    calls = queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]]()

    def serve() -> None:
        while True:
            function, done = calls.get()
            try:
                done.set_result(function())
            except BaseException as error:
                done.set_exception(error)
            del function, done  # an error would keep the trial's tensors until the next one

    # A daemon, as Ray's: an executor's thread would be waited for when the process must end.
    threading.Thread(target=serve, name="training", daemon=True).start()
    return calls


def _train_here(task: TrialTask) -> WorkersEnd:
    import ray.train.torch
    import torch

    from bigbatch.train_loop.distributed import World

    context = ray.train.get_context()
    log = _trial_log(task.log_file, context.get_world_rank())
    reporter = _make_reporter(task, context.get_world_rank(), log)
    use_assigned_cores()
    _let_children_end()
    device = ray.train.torch.get_device()
    if device.type == "cuda":
        torch.cuda.set_device(device)  # Ray has done so in a thread of its own
    _share_gpu(task.worker_resources.get("GPU", 1.0))
    _stay_near(device)
    # Check before loading data and model: a search that must end within seconds cannot wait for a trial that has only
    # begun. All ranks decide alike.
    world = World.current(device)
    if world.max([float(reporter.stop_requested())])[0]:
        log.info("stopped on request before the first step")
        return WorkersEnd(stopped=True)
    global _leftovers
    _leftovers = bool(task.config.trainable.name)  # a function of the user's may leave anything in its process
    try:
        if task.config.trainable.name:
            train_own(task, reporter, world, log)
        else:
            _train(task, reporter, world)
    except TrainingStopped as stop:
        log.info("%s", stop)
        return WorkersEnd(stopped=True)
    except Exception as error:
        log.error("%s", error if isinstance(error, OwnCodeError) else traceback.format_exc())
        end = _end_of_all_ranks(error, context.get_world_size())
        if end is not None:
            return end
        if isinstance(error, OwnCodeError) and (full := _full_memory(error.__cause__)):
            raise (NodeMemoryError if full is FailureKind.NODE_MEMORY else DeviceMemoryError)(str(error)) from None
        raise
    finally:
        _close(log)
    return WorkersEnd()


_leftovers = False
"""Whether this process has run code that may have changed it for good."""
_dropped = threading.Event()
"""Set while this process must leave its trial."""
_trials, _first_bytes = 0, 0
"""How many trials this process has trained; its resident memory after the first one."""
MOST_TRIALS = 100
"""After so many trials a new process takes over. This bounds what may leak unnoticed."""
GROWTH_BYTES = 1 << 30
"""A process that uses this much more memory than after its first trial is ended: something leaks. On a GPU, which a
trial leaves empty, one that keeps as much; of a shared GPU, its part of it."""


def may_serve_again(end: object) -> bool:
    """Whether a process whose ``train_worker`` returned ``end`` may train another trial: also after a diverged loss."""
    return isinstance(end, WorkersEnd) and (end.failure is None or end.kind is FailureKind.DIVERGED)


def drop_trial() -> bool:
    """Make this process leave its trial at the next step. Returns whether it may train another one then."""
    _dropped.set()
    return not _leftovers


def between_trials() -> bool:
    """Free what a trial left behind in this process. Returns whether it may train another one."""
    return in_training_thread(_tidy)  # whose GPU is the trial's


def _tidy() -> bool:
    global _trials, _first_bytes
    import torch

    from bigbatch.train_loop.loop.worker_use import give_back_memory, resident_bytes

    _dropped.clear()
    on_gpu = torch.cuda.is_initialized()
    if torch.distributed.is_initialized():  # Ray leaves the group of a single worker
        torch.distributed.destroy_process_group()
    if "torch._dynamo" in sys.modules:  # it counts the shapes that it compiled, and stops compiling after eight
        torch.compiler.reset()
    gc.collect()
    if on_gpu:
        torch._C._cuda_clearCublasWorkspaces()  # a replayed step's lie within its graph's memory, and keep that
        torch.cuda.empty_cache()
    give_back_memory()
    _trials += 1
    resident = resident_bytes()
    _first_bytes = _first_bytes or resident
    # torch keeps the memory of a recording that failed until the process ends (pytorch#190348).
    leaks = on_gpu and torch.cuda.memory_reserved() > GROWTH_BYTES * memory_part(trials_on_gpu())
    leaks = leaks or resident > _first_bytes + GROWTH_BYTES
    return not _leftovers and not leaks and _trials < MOST_TRIALS


def _make_reporter(task: TrialTask, rank: int, log: logging.Logger) -> RayReporter:
    """The reporter of this rank. Rank 0's also writes the files that others read during an epoch."""
    stop_files = (task.stop_file, task.pause_file)
    if rank != 0:
        return RayReporter(log, stop_files)
    progress = ProgressFile(progress_file(task.log_file))
    progress.begin()
    return RayReporter(log, stop_files, task.records_file, progress)


def _train(task: TrialTask, reporter: RayReporter, world: World) -> None:
    from bigbatch.train_loop.loop.train import train

    if task.content:
        _check_packed_set(task, world)
    train(
        task.config,
        reporter=reporter,
        checkpoint_dir=task.checkpoint_dir,
        checkpoint_every_s=task.checkpoint_every_s,
        device=world.device,
        stage_folder=task.stage_folder,
        scan=FolderScan.read(task.images_file) if world.rank == 0 else None,
    )


def _check_packed_set(task: TrialTask, world: World) -> None:
    """Raise ConfigError on all ranks if the set holds other images now: the search's trials would not be comparable.

    If the set cannot be read, ``train`` reports it.
    """
    from bigbatch.train_loop.data.catalogue import describe_data_set

    found = task.content
    if world.rank == 0:
        with contextlib.suppress(ConfigError):
            found = describe_data_set(task.config.data).content
    if world.of_first(found) != task.content:
        raise ConfigError(
            "all trials of a search train on the same images; got another packed set in "
            f"{task.config.data.name!r} than when the search began. Restore it, then --resume with --retry-failed."
        )


def _end_of_all_ranks(error: Exception, workers: int) -> WorkersEnd | None:
    """The end that every rank returns because of ``error``.

    None if this rank must raise it, so that Ray ends the others, which wait for it.
    """
    text = str(error) if isinstance(error, OwnCodeError) else (str(error).splitlines() or ["no message"])[0]
    text = text.encode(errors="backslashreplace").decode()  # Ray and Parquet carry no name of a file that is not UTF-8
    end = WorkersEnd(f"{type(error).__name__}: {text}", failure_kind_of(error))
    if isinstance(error, OwnCodeError):
        end = replace(end, kind=_full_memory(error.__cause__) or end.kind)
    if isinstance(error, NonFiniteLossError | ConfigError | CheckpointError):  # all ranks meet it
        return end
    alone = workers == 1 and isinstance(error, DeviceMemoryError | ImageError | DiskFull | OwnCodeError)
    return end if alone else None


def _full_memory(cause: BaseException | None) -> FailureKind | None:
    """The kind of failure, if an error in a user's code says that a memory is full: the code may not be at fault."""
    import torch

    from bigbatch.train_loop.loop.oom_retry import is_device_memory_full

    if cause is None:
        return None
    if is_node_memory_full(cause):
        return FailureKind.NODE_MEMORY
    return FailureKind.DEVICE_MEMORY if is_device_memory_full(cause, torch.device("cuda")) else None


def _share_gpu(gpus: float) -> None:
    """Use no more of a GPU's memory than this worker's part, so that its neighbours keep theirs."""
    import torch

    trials = sharing_of(gpus)
    os.environ[SHARED_BY] = str(trials)
    if trials > 1 and torch.cuda.is_available():  # a process never changes to another number: `_KeepsWorkers`
        torch.cuda.set_per_process_memory_fraction(memory_part(trials))


def use_assigned_cores() -> None:
    """Let loader processes and threads use the cores that Ray has assigned, unless the user has set the threads."""
    import ray
    import torch
    from threadpoolctl import threadpool_limits

    cores = ray.get_runtime_context().get_assigned_resources().get("CPU")
    if cores:
        os.environ[WORKER_CORES] = str(max(int(cores), 1))
        # Ray sets it only within its own calls. An empty variable (`export OMP_NUM_THREADS=$UNSET`) counts as not set.
        os.environ["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS") or os.environ[WORKER_CORES]
    threads = os.environ.get("OMP_NUM_THREADS")
    if threads and threads.isdigit():
        torch.set_num_threads(int(threads))
        # NumPy's libraries read the number when they are loaded: in a fork, before this call (base/fork_server.py).
        threadpool_limits(int(threads), user_api="blas")


@functools.cache
def _let_children_end() -> None:
    """Let SIGTERM end a process that a user's code forks, even right after the fork. With a handler in Python, such as
    Ray's, an early SIGTERM is lost. ``multiprocessing.Pool`` ends its processes with it, and would wait for ever."""
    masks = threading.local()

    def before() -> None:
        masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])

    def after() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, masks.before)

    def in_child() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        after()

    os.register_at_fork(before=before, after_in_parent=after, after_in_child=in_child)


def _stay_near(device: torch.device) -> None:
    """Keep this trial's threads and loader processes on the cores beside its GPU: a launcher would bind ranks, but no
    launcher knows Ray's workers."""
    import torch

    facts: Any = torch.cuda.get_device_properties(device) if device.type == "cuda" else None
    if hasattr(facts, "pci_domain_id"):  # older torch does not say it
        address = f"{facts.pci_domain_id:04x}:{facts.pci_bus_id:02x}:{facts.pci_device_id:02x}.0"
        stay_near(address, cores_per_rank())


def _trial_log(path: Path, rank: int) -> logging.Logger:
    """The trial's log in the study's folder. Ranks other than 0 only log errors there."""
    log = logging.getLogger(f"bigbatch.{path.parent.parent.name}.{path.stem}.{rank}")
    if not log.handlers:
        path.parent.mkdir(parents=True, exist_ok=True)
        handler = LogFile(path, delay=True, encoding="utf-8", errors="backslashreplace")
        handler.setFormatter(logging.Formatter(f"%(asctime)s rank {rank} %(levelname)s %(message)s"))
        log.addHandler(handler)
        log.setLevel(logging.INFO if rank == 0 else logging.ERROR)
        log.propagate = False
    # The package's own messages on any rank: which images were bad. One Ray process may serve several trials.
    package = logging.getLogger("bigbatch.train_loop")
    package.handlers[:], package.propagate = log.handlers, False
    package.setLevel(logging.WARNING)
    return log


def _close(log: logging.Logger) -> None:
    """Close the trial's log: this process may train further ones."""
    for handler in list(log.handlers):
        log.removeHandler(handler)
        handler.close()
    logging.getLogger("bigbatch.train_loop").handlers[:] = []
