"""Too little device memory: halve the micro-batch and double the accumulation steps, at the same global batch.

A run notes each halving in the file ``micro_batch.json`` beside its checkpoints, then continues from its last
checkpoint with the smaller micro-batch. One worker does so at once. Of several workers, the others wait in a collective
for the one that failed. So that one raises ``DeviceMemoryError``, its launcher starts all workers again, and all read
the file. The order of images and the schedule do not change, because both count global batches. Loads no torch.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from bigbatch.base import json_values
from bigbatch.base.atomic_files import write_json
from bigbatch.train_loop.config import BatchSplit, TrainConfig
from bigbatch.train_loop.errors import DeviceMemoryError, NodeMemoryError
from bigbatch.train_loop.host.node_memory import NODE_MEMORY_FIX, is_node_memory_full
from bigbatch.train_loop.host.ranks import trials_on_gpu

if TYPE_CHECKING:
    import torch

HALVINGS_FILE = "micro_batch.json"
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

The last two patterns may have another cause. Then halving ends at the smallest micro-batch, and its error quotes this
text.
"""

T = TypeVar("T")


@dataclass(frozen=True)
class Halving:
    """One halving of the micro-batch."""

    micro_size_before: int
    micro_size: int
    accumulation_steps: int
    """Accumulation steps of each worker after this halving."""
    epoch: int
    """1-based: the epoch that was being trained."""
    step: int
    """0-based: the epoch's step that did not fit."""
    rank: int

    def __str__(self) -> str:
        return (
            f"a device's memory was too small for micro-batches of {self.micro_size_before} images "
            f"(epoch {self.epoch}, step {self.step + 1}, rank {self.rank}). The micro-batch is now {self.micro_size}, "
            f"with {self.accumulation_steps} accumulation steps; the global batch is the same"
        )


def read_halvings(folder: Path | None) -> tuple[Halving, ...]:
    """The halvings of the run whose checkpoints are in ``folder``, oldest first; empty if there were none."""
    if folder is None:
        return ()
    try:
        values = json.loads((folder / HALVINGS_FILE).read_text())
        return tuple(Halving(**each) for each in json_values.objects(values, "halvings"))  # type: ignore[arg-type]
    except (OSError, ValueError, TypeError, AttributeError):  # missing, or of another version
        return ()


def at_most(split: BatchSplit, bound: int) -> BatchSplit:
    """The same global batch. Its micro-batch is the largest divisor of a worker's share up to ``bound``, from 1."""
    share = split.micro_size * split.accumulation_steps
    size = next(size for size in range(min(bound, split.micro_size), 0, -1) if share % size == 0)
    return BatchSplit(split.workers, share // size, size)


def halved_split(split: BatchSplit, halvings: Sequence[Halving]) -> BatchSplit:
    """The division of the batch after the halvings."""
    return at_most(split, min((one.micro_size for one in halvings), default=split.micro_size))


def config_after_oom(config: TrainConfig, halvings: Sequence[Halving]) -> TrainConfig:
    """The configuration with the micro-batch that fitted. It replaces a fixed ``micro_size``. An automatic one is only
    bounded by it, so that the batch still divides over any number of workers."""
    if not halvings:
        return config
    size = min(one.micro_size for one in halvings)
    key = "batch.micro_size" if config.batch.micro_size else "batch.max_micro_size"
    return config.replace_keys({key: size})


def is_device_memory_full(error: BaseException, device: torch.device) -> bool:
    """Whether the error says that the device has no memory left. A CPU's memory is the node's."""
    import torch

    if isinstance(error, torch.OutOfMemoryError):
        return True
    if device.type == "cpu":
        return is_node_memory_full(error) and isinstance(error, RuntimeError)
    return isinstance(error, RuntimeError) and bool(_FULL.search(str(error)))


def retry_with_smaller_micro_batches(
    begin: Callable[[Sequence[Halving]], Any], go_on: Callable[[Any], T], folder: Path | None, device: torch.device
) -> T:
    """Set up a run with ``begin`` and return ``go_on`` of it. Repeat with smaller micro-batches until they fit.

    Args:
        begin: sets up a ``Run`` after these halvings, from its checkpoint if it has one.
        folder: the folder of the checkpoints. None: the halvings are not noted in a file.

    Raises:
        DeviceMemoryError: nothing fits; or the other workers must start again, too (``halved``); or other trials share
            the GPU: then no smaller micro-batch is tried.
        NodeMemoryError: nothing fits into the memory of CPUs.
    """
    import torch

    halvings = read_halvings(folder)
    while True:
        run: Any = None
        try:
            run = begin(halvings)
            gc.collect()  # otherwise garbage would be frozen, too
            gc.freeze()  # the collector can skip objects that stay until the run's end
            return go_on(run)
        except Exception as error:
            # BatchNorm refuses a single value per channel with a ValueError.
            is_single = bool(halvings) and isinstance(error, ValueError) and run and run.split.micro_size == 1
            if not is_single and not is_device_memory_full(error, device):
                raise
            halvings = _halved(run, error, halvings, folder)
            if run.world.workers > 1:
                raise DeviceMemoryError(f"{halvings[-1]} ({_first_line(error)})", halved=True) from error
        finally:
            # Frozen objects are never collected, even when this run no longer uses them.
            gc.unfreeze()
            if run is not None:
                run.source.close()
        # Free the run's tensors. Its hooks and graphs refer to each other, so the collector must run.
        del run
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def _halved(run: Any, error: Exception, halvings: tuple[Halving, ...], folder: Path | None) -> tuple[Halving, ...]:
    """Add a halving, note it in the file, and return all. If halving cannot help, raise the error for the launcher."""
    full = "the device's memory is too small for"
    if run is None:
        raise DeviceMemoryError(
            f"{full} the network and its optimizer, without any images ({_first_line(error)})"
        ) from error
    if (trials := trials_on_gpu()) > 1:  # beside fewer trials this micro-batch may fit: the search repeats it
        raise DeviceMemoryError(f"{full} the {trials} trials that share a GPU ({_first_line(error)})") from error
    split, progress = run.split, run.progress
    if split.micro_size == 1 and is_node_memory_full(error):  # the run is on CPUs
        raise NodeMemoryError(
            f"the node's memory is full, also with micro-batches of one image. {NODE_MEMORY_FIX}"
        ) from error
    if split.micro_size == 1:
        raise DeviceMemoryError(f"{full} micro-batches of one image ({_first_line(error)})") from error
    known = read_halvings(folder) or halvings
    if known and known[-1].micro_size < split.micro_size:  # another rank was faster
        return known
    new = at_most(split, split.micro_size // 2)
    sizes = (split.micro_size, new.micro_size, new.accumulation_steps)
    known = (*known, Halving(*sizes, progress.epoch + 1, progress.step, run.world.rank))
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / HALVINGS_FILE, {"halvings": [dataclasses.asdict(one) for one in known]}, indent=1)
    return known


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
