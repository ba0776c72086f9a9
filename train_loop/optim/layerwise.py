"""The common part of LARS and LAMB: multi-tensor buckets, float32 arithmetic, checks and loading.

Both scale each parameter tensor's step by a ratio of norms, which are norms of whole tensors. DDP keeps tensors whole.
If ``fully_shard`` has sharded them, a rank steps with its own parts, and one sum over the ranks gives the norms of a
bucket. Tensors that are flattened, or sharded in another way, are refused when a group is added.

The arithmetic uses passes over lists of tensors (``torch._foreach_*``). On accelerators a pass takes a few kernels,
except if every tensor has its own factor on the device: no multi-tensor kernel does that. It happens only once in
each step, and only in groups with a trust ratio.
"""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim.optimizer import StateDict

from bigbatch.train_loop.config import ConfigError

ParamGroup = dict[str, Any]
"""A parameter group as torch has it: ``params``, and hyperparameters of several types by name."""


@dataclass(frozen=True)
class Bucket:
    """Parameters of one group that share device and dtype, with their gradients.

    ``weights`` and ``grads`` have the arithmetic's dtype, float32 or wider. If the parameters already have it, they
    *are* the parameters and their ``.grad``; of sharded ones, this rank's part. Updates write to ``weights``; ``grads``
    are read only.
    """

    params: list[Tensor]
    weights: list[Tensor]
    grads: list[Tensor]
    device: torch.device
    dtype: torch.dtype
    ranks: dist.ProcessGroup | None
    """The ranks that hold the other parts of the same tensors; None: the tensors are whole."""

    def store(self) -> None:
        """Round the new weights back into parameters of a narrower type (bf16, fp16)."""
        if self.params[0].dtype != self.dtype:
            torch._foreach_copy_([local(p) for p in self.params], self.weights)

    def norms(self, *lists: list[Tensor]) -> Tensor:
        """L2 norms of the whole tensors of lists like ``weights``, ``[lists, tensors]``; one sum over ``ranks``."""
        found = torch.stack([norms(tensors) for tensors in lists])
        if self.ranks is None:
            return found
        squares = found.square()
        dist.all_reduce(squares, group=self.ranks)
        return squares.sqrt()


CPU_BUCKET_ELEMENTS = 1 << 19
"""On CPUs a bucket ends at this size, so that a pass finds in the cache what the previous pass has written.
2 MB of float32 a list. On two cores with 32 MB of L3, ResNet-50's multi-tensor step was as fast from 2^15 to
2^19 and 5 to 8 times as slow in one bucket."""


def buckets(group: ParamGroup) -> Iterator[Bucket]:
    """The group's parameters that have a gradient, one bucket for each device and dtype, in stable order."""
    found: dict[tuple[torch.device, torch.dtype, dist.ProcessGroup | None], list[Tensor]] = {}
    for p in group["params"]:
        if p.grad is not None:
            found.setdefault((p.device, p.dtype, ranks_of(p)), []).append(p)
    for (device, narrow, ranks), params in found.items():
        for part in _in_cache(params) if device.type == "cpu" else [params]:
            yield _bucket(part, device, torch.promote_types(narrow, torch.float32), ranks)


def _in_cache(params: list[Tensor]) -> Iterator[list[Tensor]]:
    """Cut where more than ``CPU_BUCKET_ELEMENTS`` would come together; a larger tensor stays alone. A sharded tensor
    counts as a whole: all ranks cut at the same place."""
    part: list[Tensor] = []
    elements = 0
    for p in params:
        elements += p.numel()
        if part and elements > CPU_BUCKET_ELEMENTS:
            yield part
            part, elements = [], p.numel()
        part.append(p)
    yield part


def _bucket(params: list[Tensor], device: torch.device, dtype: torch.dtype, ranks: dist.ProcessGroup | None) -> Bucket:
    weights, grads = params, [p.grad for p in params if p.grad is not None]
    if ranks is not None:
        weights, grads = [local(w) for w in weights], [local(g) for g in grads]
    if params[0].dtype != dtype:
        weights, grads = [w.to(dtype) for w in weights], [g.to(dtype) for g in grads]
    return Bucket(params, weights, grads, device, dtype, ranks)


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


def total_norm(tensors: Iterable[Tensor]) -> Tensor:
    """L2 norm of all ``tensors`` together, 0-dim: of at least one. One sum over the ranks that hold parts of them."""
    found: dict[dist.ProcessGroup | None, list[Tensor]] = {}
    for tensor in tensors:
        found.setdefault(ranks_of(tensor), []).append(local(tensor))
    parts = []
    for ranks, mine in found.items():
        norm = torch.nn.utils.get_total_norm(mine)
        if ranks is not None:
            square = norm.square()
            dist.all_reduce(square, group=ranks)
            norm = square.sqrt()
        parts.append(norm)
    return parts[0] if len(parts) == 1 else torch.nn.utils.get_total_norm(parts)


def is_dtensor(tensor: object) -> bool:
    """Whether it is a DTensor, found without importing their module."""
    distributed = sys.modules.get("torch.distributed.tensor")
    return distributed is not None and isinstance(tensor, distributed.DTensor)


def is_sharded(p: Tensor) -> bool:
    """Whether ``p`` is a DTensor or the flat parameter of the older FSDP."""
    return is_dtensor(p) or getattr(p, "_is_flat_param", False)


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a DTensor, in the same memory; any other tensor unchanged."""
    if not is_dtensor(tensor):
        return tensor
    with torch.no_grad():  # here, because it costs more than the rest, and a step asks for each tensor several times
        part: Tensor = tensor.to_local()  # type: ignore[attr-defined]
    return part


def ranks_of(tensor: Tensor) -> dist.ProcessGroup | None:
    """The ranks that a DTensor is sharded over; None: the tensor is whole here."""
    if not is_dtensor(tensor):
        return None
    ranks: dist.ProcessGroup = tensor.device_mesh.get_group()  # type: ignore[attr-defined]
    return ranks


def alike(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors of one shape have the same memory layout. The stride of a dimension of size 1 is ignored."""
    one, other = a.stride(), b.stride()
    return one == other or all(s == t for s, t, size in zip(one, other, b.shape, strict=True) if size > 1)


def laid_out(value: Tensor, p: Tensor) -> Tensor:
    """The value of a parameter's gradient or state, copied if it does not lie in memory as the parameter does."""
    return value if alike(value, p) else torch.empty_like(p, dtype=value.dtype).copy_(value)


def _sharded_once(p: Tensor) -> bool:
    """Whether it is sharded as ``fully_shard`` does it over one dimension of ranks: each has other elements."""
    return is_dtensor(p) and p.device_mesh.ndim == 1 and p.placements[0].is_shard()  # type: ignore[attr-defined]


class LayerwiseOptimizer(torch.optim.Optimizer, ABC):
    """Base of LARS and LAMB: a subclass checks its hyperparameters and updates one bucket."""

    _step_supports_amp_scaling = False
    """torch's name. True: a GradScaler does not ask before a step whether it is to be left out. ``build_optimizer``
    sets it where the step can do so on the device."""
    found_inf: Tensor | None = None
    """The GradScaler's answer in such a step, ``[]`` on the device: above 0 it is to be left out."""

    @abstractmethod
    def _check(self, group: ParamGroup) -> None:
        """Raise ValueError for a hyperparameter outside its range."""

    @abstractmethod
    def _update(self, group: ParamGroup, bucket: Bucket) -> None:
        """Write the step to ``bucket.weights`` and the state."""

    def add_param_group(self, param_group: ParamGroup) -> None:
        """Add a group; raises ValueError for a bad hyperparameter, a complex parameter, or one that is flattened or
        sharded in another way than ``fully_shard``'s."""
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
            raise ConfigError(f"{name} takes real parameters; got one of {p.dtype}. Use sgd or adamw.")
        if is_sharded(p) and not _sharded_once(p):
            raise ValueError(
                f"{name} takes parameters that are whole, or that fully_shard has sharded over one dimension of ranks, "
                f"for its norms are those of a layer; got a {type(p).__name__} of shape {tuple(p.shape)}. "
                "Use fully_shard (FSDP2), or DistributedDataParallel."
            )

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update of every parameter that has a gradient; returns the closure's loss, if any.

        Raises RuntimeError for a sparse gradient, or one that a GradScaler has not unscaled, before any parameter is
        changed.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._refuse_sparse()
        if getattr(self, "grad_scale", None) is not None:  # which a GradScaler sets then
            raise RuntimeError(
                "gradients must be unscaled. Call scaler.unscale_(optimizer) before scaler.step(optimizer)."
            )
        self._before_update()
        for group in self.param_groups:
            for bucket in buckets(group):
                self._update(group, bucket)
                bucket.store()
        return loss

    def _before_update(self) -> None:
        """A hook for work that needs all gradients at once."""

    def _refuse_sparse(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None and p.grad.layout != torch.strided:
                    raise RuntimeError(
                        f"{type(self).__name__} takes dense gradients; got one of layout {p.grad.layout}, "
                        f"shape {tuple(p.grad.shape)}. Build the embedding with sparse=False."
                    )

    def _state_tensors(self, name: str, bucket: Bucket) -> list[Tensor]:
        """Each parameter's state tensor ``name``, zeros at first, in the arithmetic's dtype. Of sharded ones, parts."""
        for p in bucket.params:
            if name not in self.state[p]:
                self.state[p][name] = torch.zeros_like(p, dtype=bucket.dtype, memory_format=torch.preserve_format)
        tensors = [self.state[p][name] for p in bucket.params]
        return tensors if bucket.ranks is None else [local(tensor) for tensor in tensors]

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Load a ``state_dict`` exactly: float32 state of bf16 parameters stays float32.

        torch's own loader casts state to the parameter's dtype and may share memory with
        ``state_dict``; here every state tensor is a copy of the saved one on the parameter's device.
        """
        super().load_state_dict(state_dict)
        saved_ids = [i for group in state_dict["param_groups"] for i in group["params"]]
        params = [p for group in self.param_groups for p in group["params"]]
        for saved_id, p in zip(saved_ids, params, strict=True):
            for name, value in state_dict["state"].get(saved_id, {}).items():
                if isinstance(value, Tensor):
                    value = value.to(p.device, copy=True)
                    value = laid_out(value, p) if value.shape == p.shape else value
                self.state[p][name] = value
