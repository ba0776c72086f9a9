"""``model.pretrained``: weights to begin with, from a file or from the cache of the Hugging Face hub. No download."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, cast

from bigbatch.train_loop.config import ConfigError

if TYPE_CHECKING:
    import torch
    from torch import nn

ENDINGS = (".pth", ".pt", ".safetensors", ".bin")
FILES_OF_THE_HUB = ("model.safetensors", "pytorch_model.bin")


def check_pretrained(name: str) -> Path:
    """The file that ``name`` means. Raises ConfigError if there is none, or its kind is not known."""
    path = Path(name).expanduser()
    if path.suffix in ENDINGS or path.is_file():
        if not path.is_file():
            raise ConfigError(f"model.pretrained must name a file that is there; got {name!r}. Check the path.")
        if path.suffix not in ENDINGS:
            raise ConfigError(f"model.pretrained reads {', '.join(ENDINGS)}; got {name!r}. Write one of these.")
        return path
    if name.count("/") == 1 and find_spec("huggingface_hub") is not None:
        from huggingface_hub import try_to_load_from_cache

        for file in FILES_OF_THE_HUB:
            if isinstance(found := try_to_load_from_cache(name, file), str):
                return Path(found)
        raise ConfigError(
            f"model.pretrained must be in the Hugging Face cache, for nothing is downloaded; got {name!r}. "
            f"Where there is a network, run: hf download {name} {FILES_OF_THE_HUB[0]}"
        )
    raise ConfigError(
        f"model.pretrained must be a file ({', '.join(ENDINGS)}) or a repository in the Hugging Face cache; got "
        f"{name!r}. Write e.g. model.pretrained=weights.pth."
    )


def load_pretrained(model: nn.Module, name: str, num_classes: int) -> None:
    """Copy the weights into the model. A last layer for other classes keeps its fresh weights.

    Raises ConfigError if a tensor is missing, unknown, or of another shape, but for tensors whose first dimension is
    ``num_classes`` here: those of the last layer.
    """
    import torch

    path = check_pretrained(name)
    values = _tensors(path)
    with torch.no_grad():
        state = model.state_dict()
        for key in list(values):
            ours = state.get(key)
            if ours is not None and ours.shape != values[key].shape and _is_last(ours, values[key], num_classes):
                del state[key], values[key]
        unlike = [
            f"{key} {list(values[key].shape)} (here {list(state[key].shape)})"
            for key in values
            if key in state and state[key].shape != values[key].shape
        ]
        wrong = unlike or [f"{key}, which is not there" for key in state if key not in values]
        wrong = wrong or [f"{key}, which the network lacks" for key in values if key not in state]
        if wrong:
            more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
            raise ConfigError(
                f"model.pretrained must hold the network's tensors; got {str(path)!r} with {wrong[0]}{more}. "
                "Use the weights of this network at this image size."
            )
        model.load_state_dict({**model.state_dict(), **values})


def _is_last(ours: torch.Tensor, theirs: torch.Tensor, num_classes: int) -> bool:
    return ours.ndim == theirs.ndim > 0 and ours.shape[0] == num_classes and ours.shape[1:] == theirs.shape[1:]


def _tensors(path: Path) -> dict[str, torch.Tensor]:
    """The state dict in the file, also of a checkpoint that holds it as ``state_dict`` or ``model``."""
    import torch

    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        # A pickle from elsewhere could run code.
        found: object = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(
            f"model.pretrained must be a readable state dict; got {str(path)!r} ({type(error).__name__}: {reason}). "
            "Save model.state_dict() with torch.save."
        ) from None
    for key in ("state_dict", "model"):
        if isinstance(found, Mapping) and isinstance(found.get(key), Mapping):
            found = found[key]
    if not isinstance(found, Mapping) or not all(isinstance(value, torch.Tensor) for value in found.values()):
        raise ConfigError(f"model.pretrained must hold tensors by name; got {str(path)!r} without. Write a state dict.")
    # State dicts of a network within DDP have this prefix.
    return {key.removeprefix("module."): value for key, value in cast("Mapping[str, torch.Tensor]", found).items()}
