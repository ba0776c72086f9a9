"""Find out why the workers of a Ray Train run failed, and whether starting them again would help."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from bigbatch.train_loop.config import ConfigError
from bigbatch.train_loop.errors import (
    CheckpointError,
    DeviceMemoryError,
    FailureKind,
    ImageError,
    LoaderError,
    NodeMemoryError,
    NonFiniteLossError,
    OwnCodeError,
)
from bigbatch.train_loop.host.disk_space import DiskFull, full_errno
from bigbatch.train_loop.host.node_memory import NODE_MEMORY_FIX, count_memory_kills, is_node_memory_full
from bigbatch.train_loop.launch.trial_task import WorkersEnd
from bigbatch.train_loop.loop.oom_retry import read_halvings

MAX_STARTS = 16
"""More halvings than from the largest micro-batch to one image, so that no mistake starts workers for ever."""
_TELLING = (ImageError, LoaderError, OwnCodeError, DiskFull, DeviceMemoryError, NodeMemoryError, MemoryError)
"""Errors of ours that name the cause. Workers that waited for the failed one only lost their connection."""


def kind_of(error: BaseException) -> FailureKind:
    """The kind of a worker's error."""
    if isinstance(error, LoaderError):
        return FailureKind.NODE_MEMORY if error.killed else FailureKind.PROCESS
    for kinds, kind in (
        (NonFiniteLossError, FailureKind.DIVERGED),
        (DeviceMemoryError, FailureKind.DEVICE_MEMORY),
        (NodeMemoryError, FailureKind.NODE_MEMORY),
        (ConfigError, FailureKind.CONFIGURATION),
        (CheckpointError, FailureKind.CHECKPOINT),
        (ImageError, FailureKind.IMAGES),
        (OwnCodeError, FailureKind.OWN_CODE),
    ):
        if isinstance(error, kinds):
            return kind
    if full_errno(error) is not None:
        return FailureKind.DISK
    return FailureKind.NODE_MEMORY if is_node_memory_full(error) else FailureKind.PROCESS


def fit_until_it_fits(fit: Callable[[], WorkersEnd], checkpoints: Path, stopped: Callable[[], bool]) -> WorkersEnd:
    """Call ``fit`` again while each call halves the micro-batch, because a device's memory was full.

    Ray counts such a failure as any other, and has a few restarts only; a run from 256 images down to one needs eight.

    Args:
        checkpoints: the run's folder of checkpoints, where halvings are noted.
        stopped: whether the run was asked to end.

    Raises what ``fit`` raises.
    """
    for _ in range(MAX_STARTS):
        before = len(read_halvings(checkpoints))
        try:
            return fit()
        except Exception as error:
            healed = any(isinstance(met, DeviceMemoryError) and met.healed for _, met in _worker_errors(error))
            # Ray may name a worker that only lost its connection: then the note beside the checkpoints tells.
            if stopped() or not (healed or len(read_halvings(checkpoints)) > before):
                raise
    return fit()


def failed_end(error: Exception, kills_before: int = 0) -> WorkersEnd:
    """The reason in one line, and its kind. Ray wraps a worker's error in its own.

    ``kills_before``: ``count_memory_kills`` when the run began.
    """
    rank, cause = telling_error(error)
    where = "" if rank is None else f"worker {rank}: "
    kind = kind_of(cause)
    if is_memory_kill(cause):
        text = f"{where}the node's memory was nearly used up, and Ray ended this process. {NODE_MEMORY_FIX}"
        return WorkersEnd(text, FailureKind.NODE_MEMORY)
    if kind == FailureKind.PROCESS and count_memory_kills() > kills_before:
        text = f"{where}the node's memory was full, and the kernel ended a process of this job. {NODE_MEMORY_FIX}"
        return WorkersEnd(text, FailureKind.NODE_MEMORY)
    if kind == FailureKind.NODE_MEMORY and not isinstance(cause, NodeMemoryError | LoaderError):
        return WorkersEnd(f"{where}{_last_line(cause)}: the node's memory is full. {NODE_MEMORY_FIX}", kind)
    return WorkersEnd(f"{where}{_last_line(cause)}", kind)


def telling_error(error: Exception) -> tuple[int | None, BaseException]:
    """The error that names the cause, and its rank; the error itself if no worker met one."""
    met = sorted(_worker_errors(error), key=lambda item: not (isinstance(item[1], _TELLING) or is_memory_kill(item[1])))
    return met[0] if met else (None, error)


def is_memory_kill(error: BaseException) -> bool:
    """Whether Ray ended the process because its node ran out of memory."""
    from ray.exceptions import OutOfMemoryError

    inner = getattr(error, "health_check_failure", None)
    return any(isinstance(each, OutOfMemoryError) for each in (error, inner, error.__cause__))


def _worker_errors(error: Exception) -> Iterator[tuple[int, BaseException]]:
    yield from (getattr(error, "worker_failures", None) or {}).items()


def _last_line(error: BaseException) -> str:
    if isinstance(error, OwnCodeError):
        return f"OwnCodeError: {error}"  # with the traceback in the user's files
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[-1] if lines else "no message"
    name = type(error).__name__
    return text if text.startswith(name) or ": " in text else f"{name}: {text}"
