"""Batches of any structure: tensors within tuples, lists and dicts, as a user's own components make them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

Nested = Any
"""A tensor, or tuples, lists and dicts of such values. Anything else within them is passed on as it is."""


def map_tensors(function: Callable[[torch.Tensor], torch.Tensor], value: Nested) -> Nested:
    """A copy of ``value`` in which ``function(tensor)`` replaces each tensor."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, dict):
        changed = copy.copy(value)  # a class of the user's stays what it is
        for name, part in value.items():
            changed[name] = map_tensors(function, part)
        return changed
    if isinstance(value, Mapping):
        return {name: map_tensors(function, part) for name, part in value.items()}
    # A named tuple takes its parts one by one, not as a list.
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_tensors(function, part) for part in value))
    if isinstance(value, (list, tuple)):
        return type(value)(map_tensors(function, part) for part in value)
    return value


def tensors_of(value: Nested) -> Iterator[torch.Tensor]:
    """The tensors in ``value``, in its order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from tensors_of(part)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from tensors_of(part)


def example_count(targets: Nested) -> int:
    """Examples of a batch: the first dimension of the first tensor of its targets."""
    return int(targets.shape[0]) if isinstance(targets, torch.Tensor) else int(next(tensors_of(targets)).shape[0])
