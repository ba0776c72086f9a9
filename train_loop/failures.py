"""The kinds of failures of a run. They travel as data, so that nobody reads them out of a message. No torch here.

Only a diverged run says something about its hyperparameters. What else ends a run, such as a lost process or too little
memory, does not: samplers must not learn from it.
"""

from __future__ import annotations

from enum import StrEnum

from bigbatch.train_loop.config import ConfigError
from bigbatch.train_loop.errors import (
    CheckpointError,
    DeviceMemoryError,
    ImageError,
    LoaderError,
    NodeMemoryError,
    NonFiniteLossError,
)
from bigbatch.train_loop.host.disk_full import full_errno
from bigbatch.train_loop.host.node_memory import is_node_memory_full


class FailureKind(StrEnum):
    """What ended a run that could not go on."""

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
    PROCESS = "process"
    """A process died, or failed in a way that is none of the others."""


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
    ):
        if isinstance(error, kinds):
            return kind
    if full_errno(error) is not None:
        return FailureKind.DISK
    return FailureKind.NODE_MEMORY if is_node_memory_full(error) else FailureKind.PROCESS


def read_kind(value: object) -> FailureKind | None:
    """The kind that a report or a study holds; None if it holds none, or one of a later version."""
    return next((kind for kind in FailureKind if kind == value), None)
