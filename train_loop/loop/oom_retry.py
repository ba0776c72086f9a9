"""Too little device memory: halve the micro-batch and double the accumulation steps, at the same global batch.

A run notes each halving in the file ``micro_batch.json`` beside its checkpoints, then continues from its last
checkpoint with the smaller micro-batch. One worker does so at once. Of several workers, the others wait in a collective
for the one that failed. So that one raises ``DeviceMemoryError``, its launcher starts all workers again, and all read
the file. The order of images and the schedule do not change, because both count global batches. Loads no torch.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bigbatch.base import json_values
from bigbatch.base.atomic_files import write_json
from bigbatch.train_loop.config import BatchConfig, BatchSplit, ConfigError, TrainConfig
from bigbatch.train_loop.errors import DeviceMemoryError, NodeMemoryError
from bigbatch.train_loop.host.node_memory import NODE_MEMORY_FIX, is_node_memory_full
from bigbatch.train_loop.reporter import Reporter

if TYPE_CHECKING:
    import torch

HEALED_FILE = "micro_batch.json"
_FULL = re.compile(
    r"""(CUDA|HIP)(\ driver)?(\ error:)?\ out\ of\ memory
    | CUDA\ ran\ out\ of\ memory                             # torch, on cuDNN's engines for new shapes
    | Triton\ Error\ \[\w+\]:\ out\ of\ memory
    | (Cuda|HIP)\ failure\ (\d+\ )?'out\ of\ memory'         # NCCL and RCCL, after their first line
    | _ALLOC(ATION)?_FAILED                                   # cuBLAS, cuDNN, cuFFT, cuSOLVER, cuSPARSE
    | (BLAS|CUDNN|SOLVER|SPARSE)_STATUS_NOT_INITIALIZED       # no memory for the library's handle
    | [Uu]nable\ to\ find\ (an\ engine|a\ valid\ cuDNN\ algorithm)  # no engine's workspace fits
    """,
    re.VERBOSE,
)
"""How libraries below torch say that the device's memory is full. Its own allocator has a class of errors for it.

The last two may have another reason. It shows at the smallest micro-batch, whose error has the text.
"""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Halving:
    """One halving of the micro-batch."""

    micro_size_before: int
    micro_size: int
    accumulation_steps: int
    """Of each worker, from then on."""
    epoch: int
    """1-based: the epoch that was being trained."""
    step: int
    """0-based: the epoch's step that did not fit."""
    rank: int
    at: str
    """UTC, ISO 8601."""
    reason: str
    """The first line of the error."""

    def to_dict(self) -> dict[str, object]:
        """Its fields as plain values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> Halving:
        """Inverse of ``to_dict``. Raises TypeError for missing or unknown keys."""
        return cls(**values)  # type: ignore[arg-type]

    def __str__(self) -> str:
        return (
            f"a device's memory was too small for micro-batches of {self.micro_size_before} images "
            f"(epoch {self.epoch}, step {self.step + 1}, rank {self.rank}). The micro-batch is now {self.micro_size}, "
            f"with {self.accumulation_steps} accumulation steps; the global batch is the same"
        )


def read_halvings(folder: Path | None) -> tuple[Halving, ...]:
    """The halvings of the run whose checkpoints are in ``folder``, the first one first; none if it was never halved."""
    if folder is None:
        return ()
    try:
        values = json.loads((folder / HEALED_FILE).read_text())
        return tuple(Halving.from_dict(each) for each in json_values.objects(values, "halvings"))
    except (OSError, ValueError, TypeError, AttributeError):  # missing, or of another version
        return ()


def halved(split: BatchSplit) -> BatchSplit | None:
    """The same global batch with at most half the micro-batch: the largest divisor of a worker's share. None if the
    micro-batch is one image."""
    return _at_most(split, split.micro_size // 2) if split.micro_size > 1 else None


def healed_split(split: BatchSplit, halvings: Sequence[Halving]) -> BatchSplit:
    """The division of the batch after the halvings."""
    bound = min((one.micro_size for one in halvings), default=split.micro_size)
    return _at_most(split, bound) if bound < split.micro_size else split


def config_after_oom(config: TrainConfig, halvings: Sequence[Halving]) -> TrainConfig:
    """The configuration whose micro-batch is the one that fitted. A fixed ``micro_size`` is replaced, else the bound of
    the automatic one: it still divides over any number of workers."""
    if not halvings:
        return config
    size = min(one.micro_size for one in halvings)
    key = "batch.micro_size" if config.batch.micro_size else "batch.max_micro_size"
    return config.replace_keys({key: size})


def same_but_micro_batch(batch: BatchConfig, other: Mapping[str, object]) -> dict[str, object]:
    """The section ``batch`` in ``other``, a configuration's dict, with the micro-batch of ``batch``."""
    return {**other, "micro_size": batch.micro_size, "max_micro_size": batch.max_micro_size}


def is_device_memory_full(error: BaseException, device: torch.device) -> bool:
    """Whether the error says that the device has no memory left. A CPU's memory is the node's."""
    import torch

    if isinstance(error, torch.OutOfMemoryError):
        return True
    if device.type == "cpu":
        return is_node_memory_full(error) and isinstance(error, RuntimeError)
    return isinstance(error, RuntimeError) and bool(_FULL.search(str(error)))


def needs_more_images(error: BaseException) -> bool:
    """Whether the error is that of BatchNorm in training with one value of each channel: one image with a 1×1 map."""
    return "Expected more than 1 value per channel when training" in str(error)


class Healing:
    """The halvings of a run, in its checkpoints' folder. Without a folder they are only in this object."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self.halvings = read_halvings(folder)

    def meet(
        self, error: BaseException, split: BatchSplit, position: tuple[int, int], rank: int
    ) -> DeviceMemoryError | NodeMemoryError:
        """Note a smaller micro-batch because a step of ``split`` did not fit. Returns the error for the launcher.

        Args:
            position: finished epochs, and finished steps of the unfinished one.
        """
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        smaller = halved(split)
        if smaller is None and is_node_memory_full(error):  # the run is on CPUs
            return NodeMemoryError(
                f"the node's memory is full, also with micro-batches of one image. {NODE_MEMORY_FIX}"
            )
        if smaller is None:
            return DeviceMemoryError(f"the device's memory is too small for micro-batches of one image ({reason})")
        others = read_halvings(self._folder) or self.halvings
        if not others or others[-1].micro_size >= split.micro_size:  # no other rank was faster
            now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            sizes = (split.micro_size, smaller.micro_size, smaller.accumulation_steps)
            others = (*others, Halving(*sizes, position[0] + 1, position[1], rank, now, reason))
            self._write(others)
        self.halvings = others
        return DeviceMemoryError(f"{others[-1]} ({reason})", healed=True)

    def refuse_single_images(self, config: TrainConfig) -> DeviceMemoryError | ConfigError:
        """The error for a network that ``needs_more_images`` in micro-batches of one image."""
        what = f"BatchNorm of model.name={config.model.name} cannot train with micro-batches of one image"
        if self.halvings:
            return DeviceMemoryError(f"the device's memory is too small for micro-batches of two images, and {what}")
        return ConfigError(
            f"{what}, which leave it one value of each channel; got batch.micro_size={config.batch.micro_size} and "
            f"batch.max_micro_size={config.batch.max_micro_size}. Use 2 or more."
        )

    def _write(self, halvings: Sequence[Halving]) -> None:
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            write_json(self._folder / HEALED_FILE, {"halvings": [one.to_dict() for one in halvings]}, indent=1)


def report_halvings(halvings: Sequence[Halving], reporter: Reporter, rank: int) -> None:
    """Tell the reporter what was halved before this start. All ranks call this."""
    if not halvings:
        return
    if hasattr(reporter, "healed"):
        reporter.healed(halvings)
    elif rank == 0:
        _log.warning("%s", halvings[-1])


def _at_most(split: BatchSplit, bound: int) -> BatchSplit:
    share = split.micro_size * split.accumulation_steps
    size = next(size for size in range(bound, 0, -1) if share % size == 0)
    return BatchSplit(split.workers, share // size, size)
