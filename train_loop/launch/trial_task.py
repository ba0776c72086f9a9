"""The processes of a trial or full run: their input, their result at the end, and why workers failed.

Ray Tune and Ray Train carry dicts between processes. Only ``TrialTask.to_dict`` and ``from_dict`` convert them; code on
both sides uses the frozen record. This file also decides whether starting again would help after a failure.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bigbatch.train_loop.config import ConfigError, TrainConfig
from bigbatch.train_loop.data.sets.scan import FolderScan
from bigbatch.train_loop.errors import (
    CheckpointError,
    DeviceMemoryError,
    FailureKind,
    ImageError,
    LoaderError,
    NodeMemoryError,
    NonFiniteLossError,
    OwnCodeError,
    is_lost_peer,
)
from bigbatch.train_loop.host.disk_space import DiskFull, full_errno
from bigbatch.train_loop.host.node_memory import NODE_MEMORY_FIX, count_memory_kills, is_node_memory_full
from bigbatch.train_loop.loop.oom_retry import read_halvings

IMAGES_FILE = "images.npz"


def leave_images(scan: FolderScan | None, ray_storage: Path) -> None:
    """Write the list of a folder's images for the workers of all trials. Without it they list the folder themselves."""
    ray_storage.mkdir(parents=True, exist_ok=True)
    file = ray_storage / IMAGES_FILE
    file.unlink(missing_ok=True)  # a killed driver may have left it: the folder may have changed since
    if scan is not None:
        with contextlib.suppress(OSError):
            scan.write(file)


@dataclass(frozen=True)
class TrialTask:
    """Everything that the workers of one trial need: what to train, with how much, and which files are theirs."""

    name: str
    """Name of the Train run; the same after a restart."""
    config: TrainConfig
    workers: int
    worker_resources: Mapping[str, float]
    """Resources that Ray reserves for each worker, such as ``{"CPU": 4.0, "GPU": 1.0}``."""
    restarts: int
    """How often Ray starts the workers again after one of them died."""
    ray_storage: Path
    """A folder for Ray's own files. Every node sees it."""
    checkpoint_dir: Path
    checkpoint_every_s: float
    log_file: Path
    """The log file, written by rank 0."""
    stop_file: Path
    """When this file exists, the workers stop after their current step, with a checkpoint."""
    stage_folder: str | None = None
    """Where nodes keep a copy of the data; None for no copy."""
    records_file: Path | None = None
    """In a full run, rank 0 writes a JSON line to this file for each epoch."""
    reported: tuple[str, ...] = ()
    """What each report of a whole training function must have, the objective first (``launch/own_report.py``)."""
    content: str = ""
    """What the packed set of the plan holds (``DataInfo.content``); empty: not known."""
    avoided: tuple[str, ...] = ()
    """Ray's ids of the nodes on which the workers must not be."""

    @property
    def pause_file(self) -> Path:
        """When this file exists, this run alone stops after its current step, with a checkpoint."""
        return self.log_file.with_suffix(".pause")

    @property
    def images_file(self) -> Path:
        """The driver's list of the images in an image folder, so that no trial lists the folder again."""
        return self.ray_storage / IMAGES_FILE

    def to_dict(self) -> dict[str, object]:
        """A dict for Ray: all fields, with the configuration as a dict too."""
        return {**vars(self), "config": self.config.to_dict()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TrialTask:
        """Inverse of ``to_dict``. Raises TypeError for missing or unknown keys; ConfigError of the configuration."""
        return cls(**{**values, "config": TrainConfig.from_dict(values["config"])})


@dataclass(frozen=True)
class WorkersEnd:
    """How the workers of a trial or full run ended, if no process died."""

    failure: str | None = None
    """Why the run cannot continue."""
    kind: FailureKind | None = None
    """The kind of the failure."""
    rank: int | None = None
    """The worker that met it, if it is known."""
    stopped: bool = False
    """Whether it ended early on request, with a checkpoint."""


_TELLING = (ImageError, LoaderError, OwnCodeError, DiskFull, DeviceMemoryError, NodeMemoryError, MemoryError)
"""Our errors that name the cause. Workers that waited for the failed one report only a lost connection."""


ERRORS: Mapping[FailureKind, type[Exception]] = {
    FailureKind.DIVERGED: NonFiniteLossError,
    FailureKind.DEVICE_MEMORY: DeviceMemoryError,
    FailureKind.NODE_MEMORY: NodeMemoryError,
    FailureKind.CONFIGURATION: ConfigError,
    FailureKind.CHECKPOINT: CheckpointError,
    FailureKind.IMAGES: ImageError,
    FailureKind.OWN_CODE: OwnCodeError,
    FailureKind.DISK: DiskFull,
}
"""The error of each kind that the driver raises, too."""


def failure_kind_of(error: BaseException) -> FailureKind:
    """The kind of a worker's error."""
    if isinstance(error, LoaderError):
        return FailureKind.NODE_MEMORY if error.killed else FailureKind.PROCESS
    for kind, ours in ERRORS.items():
        if isinstance(error, ours):
            return kind
    if full_errno(error) is not None:
        return FailureKind.DISK
    return FailureKind.NODE_MEMORY if is_node_memory_full(error) else FailureKind.PROCESS


class StartsAgain:
    """Decides from an error whether a run's workers start again: True while the run halves its micro-batch because a
    device's memory was full; False if all workers would fail in the same way; None: as often as Ray's limit allows.

    Ray allows only a few restarts; a run from 256 images down to one needs eight.

    Args:
        checkpoints: the run's folder of checkpoints, where halvings are noted.
    """

    def __init__(self, checkpoints: Path) -> None:
        self._checkpoints, self._halvings = checkpoints, len(read_halvings(checkpoints))

    def __call__(self, error: Exception) -> bool | None:
        before, self._halvings = self._halvings, len(read_halvings(self._checkpoints))
        met = telling_error(error)[1]
        # Ray may name a worker that only lost its connection. The file beside the checkpoints still shows the halving.
        if self._halvings > before or (isinstance(met, DeviceMemoryError) and met.halved):
            return True
        same = failure_kind_of(met) in (FailureKind.IMAGES, FailureKind.OWN_CODE, FailureKind.DEVICE_MEMORY)
        return False if same else None


def failed_end(error: Exception, kills_before: int = 0) -> WorkersEnd:
    """The reason in one line, and its kind. Ray wraps a worker's error in its own.

    ``kills_before``: ``count_memory_kills`` when the run began.
    """
    rank, cause = telling_error(error)
    where = "" if rank is None else f"worker {rank}: "
    kind = failure_kind_of(cause)
    if is_memory_kill(cause):
        text = f"{where}the node's memory was nearly used up, and Ray ended this process. {NODE_MEMORY_FIX}"
        return WorkersEnd(text, FailureKind.NODE_MEMORY, rank)
    if kind == FailureKind.PROCESS and count_memory_kills() > kills_before:
        text = f"{where}the node's memory was full, and the kernel ended a process of this job. {NODE_MEMORY_FIX}"
        return WorkersEnd(text, FailureKind.NODE_MEMORY, rank)
    if kind == FailureKind.NODE_MEMORY and not isinstance(cause, NodeMemoryError | LoaderError):
        return WorkersEnd(f"{where}{_last_line(cause)}: the node's memory is full. {NODE_MEMORY_FIX}", kind, rank)
    return WorkersEnd(f"{where}{_last_line(cause)}", kind, rank)


class Restarts:
    """Says why Ray restarts a run's workers, at most ``most`` times. ``kills``: ``kills_before`` of ``failed_end``."""

    def __init__(self, most: int, kills: int) -> None:
        self.most, self.number, self._kills = most, 0, kills

    def why(self, met: dict[int, Exception]) -> str | None:
        """The reason, from the workers' errors by their ranks; None if the run ends with them."""
        from ray.train import WorkerGroupError

        self.number += 1
        end = failed_end(WorkerGroupError("", met), self._kills)
        goes_on = self.number <= self.most and end.kind in (FailureKind.PROCESS, FailureKind.NODE_MEMORY)
        return end.failure if goes_on else None


def telling_error(error: Exception) -> tuple[int | None, BaseException]:
    """The rank and the error of the worker that names the cause, else of one that died; else None and ``error``."""

    def least(item: tuple[int, BaseException]) -> tuple[bool, bool, bool]:
        met = item[1]
        tells = isinstance(met, _TELLING) or is_memory_kill(met) or full_errno(met) is not None
        has_died = hasattr(met, "health_check_failure")
        return not tells, not has_died, is_lost_peer(met)

    failures: Mapping[int, BaseException] = getattr(error, "worker_failures", None) or {}
    return min(failures.items(), key=least, default=(None, error))


def is_memory_kill(error: BaseException) -> bool:
    """Whether Ray ended the process because its node ran out of memory."""
    from ray.exceptions import OutOfMemoryError

    inner = getattr(error, "health_check_failure", None)
    return any(isinstance(each, OutOfMemoryError) for each in (error, inner, error.__cause__))


def _last_line(error: BaseException) -> str:
    if isinstance(error, OwnCodeError):
        return f"OwnCodeError: {error}"  # with the traceback in the user's files
    message = re.split(r"\n\s*At:\n|\nException raised from ", str(error))[0]  # without torch's frames
    if hung := re.match(r"A worker health check has been hanging for (\d+)", message):
        return f"its process has not answered for {hung[1]} s: it, its node or a file system hangs"
    if "worker group startup timed out" in message:
        return "Ray found no room for its workers, a minute at a time"
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    text = lines[-1].partition(" Some common causes include")[0] if lines else "no message"  # Ray adds it to any death
    name = type(error).__name__
    if "connection error code 2. End of file" in text:  # Ray says so of a process that was killed
        return "its process died without a word: a signal or a crash ended it"
    return text if text.startswith(name) or ": " in text else f"{name}: {text}"
