"""What LARS and LAMB share: multi-tensor buckets, float32 arithmetic, checks and loading.

Both scale each parameter tensor's step by a ratio of norms, so both need whole tensors: under DDP
that holds, on flattened or sharded parameters the norms would be those of the shards.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Bucket:
    """Parameters of one group that share device and dtype, with their gradients.

    ``weights`` and ``grads`` are in the arithmetic's dtype, float32 or wider; where the parameters
    have it already, they *are* the parameters and their ``.grad``. Updates write to ``weights``;
    ``grads`` are read only.
    """

    params: list[Tensor]
    weights: list[Tensor]
    grads: list[Tensor]
    device: torch.device
    dtype: torch.dtype

    def store(self) -> None:
        """Round the new weights back into parameters of a narrower type (bf16, fp16)."""
        if self.params[0].dtype != self.dtype:
            torch._foreach_copy_(self.params, self.weights)


def buckets(group: dict[str, Any]) -> Iterator[Bucket]:
    """The group's parameters that have a gradient, a bucket a device and dtype, in stable order."""
    found: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for p in group["params"]:
        if p.grad is not None:
            found.setdefault((p.device, p.dtype), []).append(p)
    for (device, narrow), params in found.items():
        dtype = torch.promote_types(narrow, torch.float32)
        grads = [p.grad.to(dtype) for p in params if p.grad is not None]  # .to() copies only to widen
        if group["maximize"]:
            grads = list(torch._foreach_neg(grads))
        yield Bucket(params, [p.to(dtype) for p in params], grads, device, dtype)


def norms(tensors: list[Tensor]) -> Tensor:
    """L2 norms, shape [len(tensors)], on the tensors' device: nothing is read by the host.

    In the tensors' dtype: on CPUs torch's float32 sum is off by up to 2e-3 of the norm for millions
    of equal elements (4e-5 for random ones); a float64 sum costs 20 to 300 times as much.
    """
    return torch.stack(torch._foreach_norm(tensors))


def scale_each_(tensors: list[Tensor], factors: Tensor) -> None:
    """Multiply tensor i by ``factors[i]`` in place; ``factors`` has shape [len(tensors)]."""
    torch._foreach_mul_(tensors, list(factors.unbind()))


def rate(group: dict[str, Any], bucket: Bucket) -> Any:
    """The group's learning rate: its float, or its tensor as a 0-dim one beside the bucket."""
    lr = group["lr"]
    if isinstance(lr, Tensor):
        return lr.reshape(()).to(bucket.device, bucket.dtype, non_blocking=True)
    return lr


def require(ok: bool, rule: str, value: object) -> None:
    """Raise ValueError with the rule and the value that breaks it."""
    if not ok:
        raise ValueError(f"{rule}; got {value!r}")


def require_nonnegative(group: dict[str, Any], *names: str) -> None:
    """Raise ValueError unless each named hyperparameter is finite and at least 0."""
    for name in names:
        value = group[name]
        if isinstance(value, Tensor):
            require(value.numel() == 1, f"{name} as a tensor must have one element", tuple(value.shape))
        require(math.isfinite(value) and value >= 0, f"{name} must be finite and at least 0", value)


class LayerwiseOptimizer(torch.optim.Optimizer, ABC):
    """Base of LARS and LAMB: a subclass checks its hyperparameters and updates one bucket."""

    @abstractmethod
    def _check(self, group: dict[str, Any]) -> None:
        """Raise ValueError for a hyperparameter outside its range."""

    @abstractmethod
    def _update(self, group: dict[str, Any], bucket: Bucket) -> None:
        """Write the step to ``bucket.weights`` and the state."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; raises ValueError for a bad hyperparameter or a complex parameter."""
        self._check({**self.defaults, **param_group})
        super().add_param_group(param_group)
        for p in self.param_groups[-1]["params"]:
            if p.is_complex():
                self.param_groups.pop()
                raise ValueError(f"{type(self).__name__} takes real parameters; got one of {p.dtype}")

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update of every parameter that has a gradient; returns the closure's loss, if any.

        Raises RuntimeError for a sparse gradient, before any parameter is changed.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._refuse_sparse()
        for group in self.param_groups:
            for bucket in buckets(group):
                self._update(group, bucket)
                bucket.store()
        return loss

    def _refuse_sparse(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None and p.grad.layout != torch.strided:
                    raise RuntimeError(
                        f"{type(self).__name__} takes dense gradients; got one of layout {p.grad.layout}, "
                        f"shape {tuple(p.grad.shape)}. Build the embedding with sparse=False."
                    )

    def _state_tensors(self, name: str, bucket: Bucket) -> list[Tensor]:
        """Each parameter's state tensor ``name``, zeros at first, in the arithmetic's dtype."""
        for p in bucket.params:
            if name not in self.state[p]:
                self.state[p][name] = torch.zeros_like(p, dtype=bucket.dtype, memory_format=torch.preserve_format)
        return [self.state[p][name] for p in bucket.params]

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a ``state_dict`` exactly: float32 state of bf16 parameters stays float32.

        torch's own loader casts state to the parameter's dtype and may share memory with
        ``state_dict``; here every state tensor is a copy of the saved one on the parameter's device.
        """
        loaded: dict[str, Any] = {}
        # Registered last, so it sees what the user's own hooks made of the state.
        handle = self.register_load_state_dict_pre_hook(lambda _, values: loaded.update(values))
        try:
            super().load_state_dict(state_dict)
        finally:
            handle.remove()
        saved_ids = [i for group in loaded["param_groups"] for i in group["params"]]
        params = [p for group in self.param_groups for p in group["params"]]
        for saved_id, p in zip(saved_ids, params, strict=True):
            for name, value in loaded["state"].get(saved_id, {}).items():
                self.state[p][name] = value.to(p.device, copy=True) if isinstance(value, Tensor) else value
