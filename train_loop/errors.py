"""Errors that end a run early, and the kinds of failures. No torch here."""

from __future__ import annotations

from enum import StrEnum


class NonFiniteLossError(RuntimeError):
    """The loss became NaN or infinite. The message names epoch, step, learning rate and value."""


class CheckpointError(RuntimeError):
    """A checkpoint cannot be read, or the ranks see different ones."""


class RayStartError(RuntimeError):
    """Ray did not start. The message names its logs."""


class TrainingStopped(RuntimeError):
    """The reporter asked the run to stop. If the run has a folder, a checkpoint is written.

    ``signum``: the signal that caused it; None if it was no signal.
    """

    def __init__(self, message: str, signum: int | None = None) -> None:
        super().__init__(message)
        self.signum = signum


class ImageError(RuntimeError):
    """An image cannot be read or decoded. The message names the file."""


class LoaderError(RuntimeError):
    """A loader process ended or failed. The message names it.

    ``killed``: whether a signal killed it. The usual reason is that the node's memory was full.
    """

    def __init__(self, message: str, *, killed: bool = False) -> None:
        super().__init__(message)
        self.killed = killed


class DeviceMemoryError(RuntimeError):
    """A training step did not fit into a device's memory. The message says what was tried.

    ``halved``: whether a smaller micro-batch is noted beside the checkpoints, so that the next start may fit.
    """

    def __init__(self, message: str, *, halved: bool = False) -> None:
        super().__init__(message)
        self.halved = halved


class NodeMemoryError(RuntimeError):
    """The memory of a node was full. The message says what would help."""


class OwnCodeError(RuntimeError):
    """A function of the user's raised an exception. The message has the traceback's part in the user's files."""


class UnusedParameterError(OwnCodeError):
    """A network gave a parameter no gradient on this rank, so that the ranks cannot sum it. The message names it.

    Other ranks wait for the sum. Only this one knows why it does not come.
    """


class LostPeerError(RuntimeError):
    """Another rank has ended. That rank has the cause."""


_RAYS_LOSSES = frozenset(
    ("RayActorError", "NodeDiedError", "WorkerCrashedError", "LocalRayletDiedError", "OwnerDiedError", "RpcError",
     "ObjectLostError", "ActorPlacementGroupRemoved", "TaskPlacementGroupRemoved", "SynchronizationBarrierResetError")
)  # fmt: skip
"""Class names of Ray's errors if the process or node that the caller asks has ended."""
_TORCHS_LOSSES = frozenset(("DistNetworkError", "DistStoreError"))
"""Class names of torch.distributed's errors if its store has ended, together with rank 0."""
_GLOOS_WORDS = ("Connection closed by peer", "Connection reset by peer", "Broken pipe")
_NCCLS_WORDS = ("ncclRemoteError", "NCCL communicator was aborted")


def is_lost_peer(error: BaseException) -> bool:
    """Whether the caller met the end of another process or node: a rank, or an actor of Ray's. The cause is there.

    Also if other code, such as a library around a report, raised its own error because of that.
    """
    asked: set[int] = set()
    reason: BaseException | None = error
    while reason is not None and id(reason) not in asked:  # `raise error from error` makes an error its own cause
        if _is_loss(reason):
            return True
        asked.add(id(reason))
        reason = reason.__cause__ or reason.__context__
    return False


def _is_loss(error: BaseException) -> bool:
    # By name: these classes are not to be imported here, Ray takes seconds.
    kinds = [(kind.__module__.partition(".")[0], kind.__name__) for kind in type(error).__mro__]
    if any(
        (library == "ray" and name in _RAYS_LOSSES) or (library == "torch" and name in _TORCHS_LOSSES)
        for library, name in kinds
    ):
        return True
    if not isinstance(error, RuntimeError):  # a user's may have no text: a __str__ that raises
        return False
    text = str(error)
    of_gloo = "gloo" in text and any(words in text for words in _GLOOS_WORDS)
    return of_gloo or any(words in text for words in _NCCLS_WORDS)


def in_one_line(text: str) -> str:
    """A reason for tables and logs. From a traceback it takes the error and its place."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    if len(lines) < 2:
        return text.strip()
    where = [line.removeprefix("File ").partition(", in ")[0] for line in lines if line.startswith('File "')]
    begin = lines[0].partition(" raised ")[0]
    return f"{begin}: {lines[-1]}" + (f" ({where[-1]})" if where else "")


class ReportError(ValueError):
    """A whole training function reported something impossible. The message says the rule, the value and a fix."""


class FailureKind(StrEnum):
    """Why a run could not continue. It is passed on as data, so that nobody has to parse a message.

    Only a diverged run tells something about its hyperparameters: samplers must not learn from the others.
    """

    DIVERGED = "diverged"
    """A loss or a validation was not finite. The hyperparameters are the reason."""
    DEVICE_MEMORY = "device memory"
    """The device's memory is too small, also for micro-batches of one image."""
    NODE_MEMORY = "node memory"
    """The node's memory was full: an allocation failed, or Ray, Slurm or the kernel ended a process."""
    CONFIGURATION = "configuration"
    CHECKPOINT = "checkpoint"
    IMAGES = "images"
    DISK = "disk"
    OWN_CODE = "own code"
    """A function of the user's raised an exception, or returned before its last epoch."""
    PROCESS = "process"
    """A process died, or failed in a way that is none of the others."""


def read_kind(value: object) -> FailureKind | None:
    """The kind that a report or a study holds; None if it holds none, or one of a later version."""
    return next((kind for kind in FailureKind if kind == value), None)
