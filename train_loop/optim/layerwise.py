"""The common part of LARS and LAMB: multi-tensor buckets, float32 arithmetic, checks and loading.

Both scale each parameter tensor's step by a ratio of norms, so both need whole tensors. DDP keeps tensors whole.
The norms of flattened or sharded parameters would be those of shards, so such parameters are refused when a group
is added.

The arithmetic uses passes over lists of tensors (``torch._foreach_*``). On accelerators a pass takes a few kernels,
except if every tensor has its own factor on the device: no multi-tensor kernel does that. It happens only once in
each step, and only in groups with a trust ratio.
"""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import StateDict

ParamGroup = dict[str, Any]
"""A parameter group as torch has it: ``params``, and hyperparameters of several types by name."""


@dataclass(frozen=True)
class Bucket:
    """Parameters of one group that share device and dtype, with their gradients.

    ``weights`` and ``grads`` have the arithmetic's dtype, float32 or wider. If the parameters already have it, they
    *are* the parameters and their ``.grad``. Updates write to ``weights``; ``grads`` are read only.
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


CPU_BUCKET_ELEMENTS = 1 << 19
"""On CPUs a bucket ends here, so that one pass finds in the cache what the one before has written.
2 MB of float32 a list. On two cores with 32 MB of L3, ResNet-50's multi-tensor step was as fast from 2^15 to
2^19 and 5 to 8 times as slow in one bucket."""


def buckets(
    group: ParamGroup, key: Callable[[Tensor], object] = lambda p: None, scale: Tensor | None = None
) -> Iterator[Bucket]:
    """The group's parameters that have a gradient, a bucket a device, dtype and ``key``, in stable order.

    Args:
        key: further hashable value that a bucket's parameters must share.
        scale: 0-dim factor of all gradients.
    """
    found: dict[tuple[torch.device, torch.dtype, object], list[Tensor]] = {}
    for p in group["params"]:
        if p.grad is not None:
            found.setdefault((p.device, p.dtype, key(p)), []).append(p)
    for (device, narrow, _), params in found.items():
        for part in _in_cache(params) if device.type == "cpu" else [params]:
            yield _bucket(part, device, torch.promote_types(narrow, torch.float32), group["maximize"], scale)


def _in_cache(params: list[Tensor]) -> Iterator[list[Tensor]]:
    """Cut where more than ``CPU_BUCKET_ELEMENTS`` would come together; a larger tensor stays alone."""
    part: list[Tensor] = []
    elements = 0
    for p in params:
        elements += p.numel()
        if part and elements > CPU_BUCKET_ELEMENTS:
            yield part
            part, elements = [], p.numel()
        part.append(p)
    yield part


def _bucket(
    params: list[Tensor], device: torch.device, dtype: torch.dtype, maximize: bool, scale: Tensor | None
) -> Bucket:
    weights, grads = params, [p.grad for p in params if p.grad is not None]
    if params[0].dtype != dtype:
        weights, grads = [p.to(dtype) for p in params], [g.to(dtype) for g in grads]
    if maximize:
        grads = list(torch._foreach_neg(grads))
    if scale is not None:
        grads = list(torch._foreach_mul(grads, scale.to(device, dtype)))
    return Bucket(params, weights, grads, device, dtype)


def norms(tensors: list[Tensor]) -> Tensor:
    """L2 norms, shape [len(tensors)], on the tensors' device: nothing is read by the host.

    In the tensors' dtype: on CPUs torch's float32 sum is off by up to 2e-3 of the norm for millions
    of equal elements (4e-5 for random ones); a float64 sum costs 20 to 300 times as much.
    """
    return torch.stack(torch._foreach_norm(tensors))


def add_scaled_(tensors: list[Tensor], others: list[Tensor], factor: float | Tensor) -> None:
    """``tensors += factor · others`` in place.

    ``factor``: a number, a 0-dim tensor for all, or one of shape [len(tensors)] with a factor each.
    """
    if not isinstance(factor, Tensor):
        torch._foreach_add_(tensors, others, alpha=factor)
    else:
        torch._foreach_addcmul_(tensors, others, list(factor.expand(len(tensors)).unbind()))


def scale_(tensors: list[Tensor], factor: float | Tensor) -> None:
    """``tensors *= factor`` in place, with ``factor`` as in ``add_scaled_``."""
    if isinstance(factor, Tensor) and factor.ndim:
        torch._foreach_mul_(tensors, list(factor.unbind()))
    else:
        torch._foreach_mul_(tensors, factor)


def learning_rate_of(group: ParamGroup, bucket: Bucket) -> float | Tensor:
    """The group's learning rate: its float, or its tensor as a 0-dim one beside the bucket."""
    lr: float | Tensor = group["lr"]
    if isinstance(lr, Tensor):
        return lr.reshape(()).to(bucket.device, bucket.dtype, non_blocking=True)
    return lr


def check_hyperparameter(ok: bool, rule: str, value: object) -> None:
    """Raise ValueError with the rule and the value that breaks it."""
    if not ok:
        raise ValueError(f"{rule}; got {value!r}")


def check_nonnegative(group: ParamGroup, *names: str) -> None:
    """Raise ValueError unless each named hyperparameter is finite and at least 0."""
    for name in names:
        value = group[name]
        if isinstance(value, Tensor):
            check_hyperparameter(value.numel() == 1, f"{name} as a tensor must have one element", tuple(value.shape))
        check_hyperparameter(math.isfinite(value) and value >= 0, f"{name} must be finite and at least 0", value)


def is_sharded(p: Tensor) -> bool:
    """Whether ``p`` is a DTensor or FSDP's flat parameter, found without importing their modules."""
    distributed = sys.modules.get("torch.distributed.tensor")
    return (distributed is not None and isinstance(p, distributed.DTensor)) or getattr(p, "_is_flat_param", False)


class LayerwiseOptimizer(torch.optim.Optimizer, ABC):
    """Base of LARS and LAMB: a subclass checks its hyperparameters and updates one bucket."""

    _ratios: list[Tensor] | None = None
    """The trust ratios of the last step, a tensor for each bucket, if somebody wants them. Of the class, because torch
    copies an optimizer without its attributes."""

    @abstractmethod
    def _check(self, group: ParamGroup) -> None:
        """Raise ValueError for a hyperparameter outside its range."""

    @abstractmethod
    def _update(self, group: ParamGroup, bucket: Bucket) -> None:
        """Write the step to ``bucket.weights`` and the state."""

    def add_param_group(self, param_group: ParamGroup) -> None:
        """Add a group; raises ValueError for a bad hyperparameter, a complex or a sharded parameter."""
        self._check({**self.defaults, **param_group})
        super().add_param_group(param_group)
        try:
            for p in self.param_groups[-1]["params"]:
                self._check_parameter(p)
        except ValueError:
            self.param_groups.pop()
            raise

    def _check_parameter(self, p: Tensor) -> None:
        name = type(self).__name__
        if p.is_complex():
            raise ValueError(f"{name} takes real parameters; got one of {p.dtype}")
        if is_sharded(p):
            raise ValueError(
                f"{name} takes whole parameters, for its norms are those of a layer; got a sharded "
                f"{type(p).__name__} of shape {tuple(p.shape)}. Use DistributedDataParallel in place of FSDP."
            )

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
        if self._ratios is not None:
            self._ratios = []
        self._before_update()
        for group in self.param_groups:
            for bucket in self._buckets(group):
                self._update(group, bucket)
                bucket.store()
        return loss

    def keep_trust_ratios(self) -> None:
        """Keep the trust ratios of each step from now on. It costs no pass over memory and no wait for the device."""
        self._ratios = []

    def trust_ratios(self) -> Tensor:
        """The trust ratios of the last step, one for each parameter tensor that has one, float32 ``[tensors]``.

        Empty before the first step, and without ``keep_trust_ratios``.
        """
        return torch.cat([ratios.float() for ratios in self._ratios]) if self._ratios else torch.empty(0)

    def _keep(self, ratios: Tensor) -> Tensor:
        """``ratios``, which are kept if somebody wants them."""
        if self._ratios is not None:
            self._ratios.append(ratios)
        return ratios

    def _before_update(self) -> None:
        """A hook for work that needs all gradients at once."""

    def _buckets(self, group: ParamGroup) -> Iterator[Bucket]:
        return buckets(group)

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

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Load a ``state_dict`` exactly: float32 state of bf16 parameters stays float32.

        torch's own loader casts state to the parameter's dtype and may share memory with
        ``state_dict``; here every state tensor is a copy of the saved one on the parameter's device.
        """
        loaded: StateDict = {}
        # Registered last, so that it sees the state after the user's own hooks.
        handle = self.register_load_state_dict_pre_hook(lambda _, values: loaded.update(values))
        try:
            super().load_state_dict(state_dict)
        finally:
            handle.remove()
        saved_ids = [i for group in loaded["param_groups"] for i in group["params"]]
        params = [p for group in self.param_groups for p in group["params"]]
        for saved_id, p in zip(saved_ids, params, strict=True):
            for name, value in loaded["state"].get(saved_id, {}).items():
                if isinstance(value, Tensor):  # numbers that torch left on the CPU, as capturable says, stay there
                    value = value.to(self.state[p][name].device, copy=True)
                self.state[p][name] = value
