"""Errors that end a run early. No torch here."""

from __future__ import annotations


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
    """A loader process ended or failed. The message names it."""
