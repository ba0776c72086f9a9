"""On a CPU a recorder of torch's operations stands for a CUDA graph.

It keeps each operation with the tensors that it got, and a replay calls them again on the same memory. Like a graph it
takes nothing from Python a second time, and refuses an operation that reads a number of the device or brings one there.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from bigbatch.train_loop.loop.assembly import Run
from bigbatch.train_loop.loop.replayed_step import CudaGraphs
from helpers.pretended_gpu import HOST_WAITS

HOST = HOST_WAITS | {"lift_fresh", "item"}
"""Operations that a graph refuses: they read a number of the device, or bring one there."""


class Operations(TorchDispatchMode):
    """Keeps the operations in the block."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.name.removeprefix("aten::") in HOST:
            raise RuntimeError(f"operation not permitted when stream is capturing: {func}\nCompile with more flags.")
        result = func(*args, **(kwargs or {}))
        self.made.append((func, args, kwargs or {}, result))
        return result

    def replay(self) -> None:
        """Call them again; what they return lies where it lay before."""
        with torch.no_grad():
            for func, args, kwargs, before in self.made:
                now = func(*args, **kwargs)
                for old, new in zip(tree_leaves(before), tree_leaves(now), strict=True):
                    if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                        old.detach().copy_(new.detach())


class Reads(TorchDispatchMode):
    """Looks for operations in which a host waits."""

    host = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.host |= func._schema.name.removeprefix("aten::") in HOST
        return func(*args, **(kwargs or {}))


class Recorder(CudaGraphs):
    """Stands for ``CudaGraphs``. ``spoil``: around a replay, what makes it a wrong one."""

    def __init__(self, spoil: Callable[[Run], AbstractContextManager[None]] = lambda run: nullcontext()) -> None:
        self.run: Run
        self.replays = 0
        self._spoil = spoil

    def waits(self, step: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, bool]:
        with Reads() as reads:
            loss = step()
        return loss, reads.host

    def lacks_room(self) -> str:
        return ""

    def record(self, step: Callable[[], torch.Tensor]) -> tuple[Callable[[], None], torch.Tensor]:
        kept, scale = [(one, one.clone()) for one in self._changed()], self.run.scaler.state_dict()
        try:
            with Operations() as operations:
                loss = step()
        finally:
            for one, old in kept:  # a graph is recorded without computing anything
                one.copy_(old)
            self.run.scaler.load_state_dict(scale)

        def replay() -> None:
            self.replays += 1
            with self._spoil(self.run):
                operations.replay()

        return replay, loss

    def _changed(self) -> list[torch.Tensor]:
        run = self.run
        state = [one for values in run.optimizer.state.values() for one in values.values() if torch.is_tensor(one)]
        return [
            one.detach()
            for one in (*run.model.parameters(), *run.model.buffers(), *state, run.sums.values, run.step.skipped)
        ]
