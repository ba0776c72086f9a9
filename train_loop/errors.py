"""Ways in which a run ends early. No torch here."""

from __future__ import annotations


class NonFiniteLossError(RuntimeError):
    """The loss became NaN or infinite; the message says epoch, step, learning rate and value."""


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be read, or that ranks see differently."""


class RayStartError(RuntimeError):
    """Ray did not start; the message names its logs."""


class TrainingStopped(RuntimeError):
    """The reporter asked the run to stop; a checkpoint is written where there is a folder.

    ``signum`` is the signal behind it, None where it was no signal.
    """

    def __init__(self, message: str, signum: int | None = None) -> None:
        super().__init__(message)
        self.signum = signum


class ImageError(RuntimeError):
    """An image that cannot be read or decoded; the message names the file."""


class LoaderError(RuntimeError):
    """A loader process that ended or failed; the message names it."""
