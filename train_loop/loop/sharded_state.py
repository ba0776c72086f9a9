"""The sharded part of a checkpoint: a folder ``shards-*`` beside ``latest.pt``, which names it.

Each worker writes its own parts there by ``torch.distributed.checkpoint``. Then rank 0 replaces ``latest.pt``, which
holds all that is not sharded. So a run that is killed between the two still has its previous checkpoint, complete. The
next checkpoint removes folders that no checkpoint names. Any number of workers can read a checkpoint, even one.
"""

from __future__ import annotations

import pickle
import secrets
import shutil
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from bigbatch.train_loop.errors import CheckpointError
from bigbatch.train_loop.host.disk_space import NO_ROOM, DiskFull, describe_full_disk, full_errno
from bigbatch.train_loop.optim.layerwise import is_dtensor

if TYPE_CHECKING:
    from bigbatch.train_loop.distributed import World

SHARDS = "shards"
"""Key of a checkpoint: its folder, and the names of the tensors in it."""
PARTS = ("model", "optimizer", "average")
"""Keys of a checkpoint whose values may hold sharded tensors."""


def write_shards(content: dict[str, Any], folder: Path, world: World, *, whole: bool) -> dict[str, Any]:
    """Write the sharded tensors of ``content``; returns what is left for rank 0 to write. All ranks call this.

    ``whole``: rank 0's result also holds the weights and their average, not sharded: other programs can read them.

    Raises DiskFull or CheckpointError on all ranks; nothing is left behind then.
    """
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.api import CheckpointException

    shards: dict[str, torch.Tensor] = {}

    def taken(path: str, tensor: torch.Tensor) -> torch.Tensor:
        if not is_dtensor(tensor):
            return tensor
        if whole and not path.startswith("optimizer."):
            gathered: torch.Tensor = tensor.full_tensor()  # type: ignore[attr-defined]
            if world.rank == 0:
                return gathered.cpu()
        else:
            shards[path] = tensor.detach()
        return torch.empty(0, dtype=tensor.dtype)

    left = {key: _mapped(taken, part, key) if key in PARTS else part for key, part in content.items()}
    name = world.of_first(f"shards-{secrets.token_hex(4)}")
    if not shards:
        return left
    try:
        folder.mkdir(parents=True, exist_ok=True)
        dcp.save(shards, checkpoint_id=folder / name)
    except CheckpointException as failed:
        if world.rank == 0:
            shutil.rmtree(folder / name, ignore_errors=True)
        raise _named(failed, folder) from None
    return left | {SHARDS: {"folder": name, "names": sorted(shards)}}


def _named(failed: Any, folder: Path) -> Exception:
    """The error that all ranks raise when writing or reading failed on some."""
    errors = [error for error, _ in failed.failures.values()]
    for error in errors:
        if (number := full_errno(error, folder)) is not None:
            return DiskFull(f"{NO_ROOM}: {describe_full_disk(number, folder)}")
    return CheckpointError(f"a checkpoint in {folder} failed: {type(errors[0]).__name__}: {errors[0]}")


def read_shards(
    content: dict[str, Any], folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, average: list[Any]
) -> dict[str, Any]:
    """``content`` with its sharded tensors, each sharded like the tensor of this run that it will be copied to. If this
    run shards and the run that wrote them did not, whole tensors are sharded. All ranks call this.

    Raises CheckpointError if the folder cannot be read.
    """
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.api import CheckpointException

    likes = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    likes |= {f"average.{number}": tensor for number, tensor in enumerate(average)}
    params = [p for group in optimizer.param_groups for p in group["params"]]
    states = content["optimizer"]["state"]
    likes |= {f"optimizer.state.{i}.{name}": params[i] for i, state in states.items() for name in state}
    shards, found = content.get(SHARDS) or {"names": ()}, dict[str, torch.Tensor]()
    names = set(shards["names"])

    def placed(path: str, tensor: torch.Tensor) -> torch.Tensor:
        like = likes.get(path)
        if like is None:
            return tensor
        if path in names:
            found[path] = torch.zeros_like(like, dtype=tensor.dtype, requires_grad=False)
            return found[path]
        return _shared_out(tensor, like) if is_dtensor(like) and tensor.shape == like.shape else tensor

    whole = {key: _mapped(placed, part, key) if key in PARTS else part for key, part in content.items()}
    if found:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # one worker
            try:
                dcp.load(found, checkpoint_id=folder / shards["folder"])
            except CheckpointException as failed:
                raise _named(failed, folder) from None
    return whole


def _shared_out(tensor: torch.Tensor, like: Any) -> torch.Tensor:
    """This rank's part of a tensor that all ranks have."""
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(tensor.to(like.device), like.device_mesh, like.placements, src_data_rank=None)


def check_shards(content: dict[str, Any], folder: Path) -> None:
    """Raise CheckpointError if a checkpoint's folder of shards is missing, a file in it is too short, or its index
    names an object that may run code."""
    if SHARDS not in content:
        return
    there = folder / content[SHARDS]["folder"]
    try:
        with (there / ".metadata").open("rb") as index:
            places = _Index(index).load().storage_data.values()
        for place in places:
            file = there / place.relative_path
            if file.stat().st_size < place.offset + place.length:
                raise CheckpointError(f"{file} is cut off")
    except OSError as error:
        raise CheckpointError(str(error)) from None


class _Index(pickle.Unpickler):
    """Reads torch's index of a folder. It is a pickle that may name only torch's types, its checkpoints' and paths."""

    def find_class(self, module: str, name: str) -> Any:
        """The class, if the index may name it; else raises CheckpointError."""
        known = module == "torch" or module.startswith(("torch.distributed.checkpoint.", "pathlib"))
        if known and "." not in name and isinstance(found := super().find_class(module, name), (type, torch.dtype)):
            return found
        if (module, name) == ("torch.serialization", "_get_layout"):
            return super().find_class(module, name)
        raise CheckpointError(f"an index of shards names {module}.{name}")


def remove_unnamed(folder: Path, checkpoints: Iterable[Path]) -> None:
    """Remove the folders of shards that none of these checkpoints names."""
    folders = set(folder.glob("shards-*"))
    if not folders:
        return
    for path in checkpoints:
        if path.exists():
            try:
                content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
            except Exception:  # damaged: what it names is not known
                return
            folders -= {folder / content[SHARDS]["folder"]} if SHARDS in content else set()
    for unnamed in folders:
        shutil.rmtree(unnamed, ignore_errors=True)


def _mapped(function: Callable[[str, torch.Tensor], torch.Tensor], value: Any, path: str) -> Any:
    """A copy of ``value`` in which ``function(path, tensor)`` replaces each tensor."""
    if isinstance(value, torch.Tensor):
        return function(path, value)
    if isinstance(value, dict):
        return {name: _mapped(function, part, f"{path}.{name}") for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_mapped(function, part, f"{path}.{number}") for number, part in enumerate(value))
    return value
