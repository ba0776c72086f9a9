"""Counts what a block asks torch to compute: on a GPU each operation is at least one launch by the host."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode


class _Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[str(function)] += 1
        return function(*args, **(kwargs or {}))


def operations_of(block: Callable[[], object]) -> Counter[str]:
    """How often ``block()`` calls each of torch's operations, views and the backward pass included."""
    with _Recorder() as recorder:
        block()
    return recorder.counts
