"""LAMB: Adam whose step is scaled layer by layer."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from bigbatch.train_loop.optim.fused import in_one_pass
from bigbatch.train_loop.optim.layerwise import (
    Bucket,
    LayerwiseOptimizer,
    ParamGroup,
    add_scaled_,
    check_hyperparameter,
    check_nonnegative,
    laid_out,
    learning_rate_of,
    total_norm,
)

_LATE = math.inf
"""A step number after which nothing is left of the bias."""


class LAMB(LayerwiseOptimizer):
    r"""Layer-wise adaptive moments, You et al. 2020 (arXiv 1904.00962), Alg. 2, with φ(z) = z.

    For each parameter tensor w with gradient g, weight decay λ, at its step number t (from 1)::

        g ← g / ‖G‖                         with pre_normalise (NVIDIA's NVLAMB); G is all parameters' gradient
        m ← β1·m + (1 − β1)·g               v ← β2·v + (1 − β2)·g²
        m̂ = m / (1 − β1^t)                  v̂ = v / (1 − β2^t)      (m and v without bias_correction)
        u = m̂ / (√v̂ + eps) + λw             decoupled decay, inside the ratio's norm
        r = clamp(‖w‖ / ‖u‖, trust_bounds)  1 where ‖w‖ = 0 or ‖u‖ = 0, or in groups with trust_ratio=False
        w ← w − lr·r·u

    The group flag ``trust_ratio`` alone decides whether the ratio is used: with weight_decay=0 and
    the flag set it is, as in the paper and in NVIDIA's NVLAMB. ``trust_bounds=(0.01, 10)`` is DeepSpeed's,
    ``(0, 1)`` timm's trust_clip (LAMBC, Fong et al. 2020, arXiv 2011.13584). With
    ``trust_ratio=False`` the step is AdamW's. apex and timm clip the global gradient norm to 1;
    here ``clip_grad_norm_`` does.

    A parameter group may set any hyperparameter but pre_normalise. bf16 and fp16 parameters have
    float32 moments and arithmetic, and are rounded once a step. Gradients are left unchanged; those
    of a GradScaler must be unscaled first (``scaler.step`` does that).

    Args:
        params: parameters or groups of them; real, with dense gradients.
        lr: learning rate, a float or a tensor of one element.
        betas: (β1, β2), each at least 0 and below 1.
        eps: added to the root of the second moment.
        weight_decay: λ.
        bias_correction: divide the moments as above.
        pre_normalise: divide all groups' gradient by its norm.
        trust_bounds: (lowest, highest) ratio.
        trust_ratio: default of the group flag.

    Raises:
        ValueError: a hyperparameter outside its range, a complex parameter, one that is sharded otherwise than by
            ``fully_shard``.
        RuntimeError: from ``step``, on a sparse gradient.
    """

    _gradient_scale: Tensor | None = None
    _scratch: Tensor | None = None
    """Two lists of the largest bucket, on CPUs."""

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        bias_correction: bool = True,
        *,
        pre_normalise: bool = False,
        trust_bounds: tuple[float, float] = (0.0, math.inf),
        trust_ratio: bool = True,
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "bias_correction": bias_correction,
            "trust_bounds": trust_bounds,
            "trust_ratio": trust_ratio,
        }
        self.pre_normalise = pre_normalise
        super().__init__(params, defaults)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "pre_normalise": self.pre_normalise}  # torch copies none but its own

    def _check(self, group: ParamGroup) -> None:
        check_nonnegative(group, "lr", "eps", "weight_decay")
        betas, bounds = group["betas"], group["trust_bounds"]
        ok = len(betas) == 2 and all(0 <= beta < 1 for beta in betas)
        check_hyperparameter(ok, "betas must be two numbers, each at least 0 and below 1", betas)
        ok = len(bounds) == 2 and 0 <= bounds[0] <= bounds[1] and bounds[1] > 0
        check_hyperparameter(ok, "trust_bounds must be two rising numbers of at least 0", bounds)

    def _before_update(self) -> None:
        self._gradient_scale = None
        grads = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
        if grads and self.pre_normalise:
            norm = total_norm([g.float() if g.dtype.itemsize < 4 else g for g in grads])
            self._gradient_scale = torch.where(norm > 0, 1.0 / norm, 1.0)
        for group in self.param_groups:
            self._count([p for p in group["params"] if p.grad is not None])

    def _count(self, params: list[Tensor]) -> None:
        """Count the step numbers up, float32 ``[]`` on the device: a CUDA graph, torch's fused Adam and a GradScaler
        find them there."""
        for p in params:
            if "step" not in self.state[p]:
                self.state[p]["step"] = torch.zeros((), dtype=torch.float32, device=p.device)
        if steps := [self.state[p]["step"] for p in params]:
            torch._foreach_add_(steps, 1)
            if self.found_inf is not None:
                torch._foreach_sub_(steps, [self.found_inf] * len(steps))

    def _update(self, group: ParamGroup, bucket: Bucket) -> None:
        lr, decay = learning_rate_of(group, bucket), group["weight_decay"]
        updates, factor = self._updates(group, bucket, decay)
        if group["trust_ratio"]:
            factor = factor * lamb_trust_ratios(bucket, updates, factor, group["trust_bounds"])
        if self.found_inf is not None:
            factor = torch.where(self.found_inf > 0, 0.0, factor)
        add_scaled_(bucket.weights, updates, -lr * factor)

    def _updates(self, group: ParamGroup, bucket: Bucket, decay: float) -> tuple[list[Tensor], float | Tensor]:
        """d of each parameter and f with f·d = u, after taking its gradient into the moments.

        With c1 = 1 − β1^t and c2 = √(1 − β2^t): m̂ / (√v̂ + eps) = (c2/c1) · m / (√v + c2·eps), which
        saves two passes over the tensors. f is 1, or [parameters of the bucket].
        """
        beta1, beta2 = group["betas"]
        firsts, seconds = self._state_tensors("exp_avg", bucket), self._state_tensors("exp_avg_sq", bucket)
        if in_one_pass(bucket.weights, firsts, seconds):
            return self._fused_updates(group, bucket, firsts, seconds, decay), 1.0
        grads = bucket.grads
        if self._gradient_scale is not None:
            grads = list(torch._foreach_mul(grads, self._gradient_scale.to(bucket.device, bucket.dtype)))
        torch._foreach_lerp_(firsts, grads, 1 - beta1)
        torch._foreach_mul_(seconds, beta2)
        torch._foreach_addcmul_(seconds, grads, grads, 1 - beta2)
        c1, c2 = self._corrections(group, bucket)
        roots = torch._foreach_sqrt(seconds)
        torch._foreach_add_(roots, list((c2 * group["eps"]).unbind()))
        updates, factor = list(torch._foreach_div(firsts, roots)), c2 / c1
        if decay > 0:
            add_scaled_(updates, bucket.weights, decay / factor)
        return updates, factor

    def _fused_updates(
        self, group: ParamGroup, bucket: Bucket, firsts: list[Tensor], seconds: list[Tensor], decay: float
    ) -> list[Tensor]:
        """u of each parameter by torch's fused Adam, one pass over memory: a step of −1 from λw."""
        updates, grads = self._scaled(bucket.weights, decay, 0), [*map(laid_out, bucket.grads, bucket.weights)]
        if self._gradient_scale is not None:
            grads = self._scaled(grads, self._gradient_scale.to(bucket.device, bucket.dtype), 1)
        beta1, beta2 = group["betas"]
        how: dict[str, Any] = {"beta1": beta1, "beta2": beta2, "eps": group["eps"], "lr": -1.0, "weight_decay": 0.0}
        how |= {"amsgrad": False, "maximize": False, "found_inf": self.found_inf}
        torch._fused_adam_(updates, grads, firsts, seconds, [], self._steps(group, bucket), **how)
        return updates

    def _scaled(self, tensors: list[Tensor], factor: float | Tensor, row: int) -> list[Tensor]:
        """factor · tensors. On CPUs in a row of this optimizer's memory, because new memory costs page faults."""
        if tensors[0].device.type != "cpu":
            return list(torch._foreach_mul(tensors, factor))
        sizes = [one.numel() for one in tensors]
        if self._scratch is None or self._scratch.dtype != tensors[0].dtype or self._scratch.shape[1] < sum(sizes):
            self._scratch = torch.empty(2, sum(sizes), dtype=tensors[0].dtype)
        parts = self._scratch[row, : sum(sizes)].split(sizes)
        scaled = [part.as_strided(one.shape, one.stride()) for part, one in zip(parts, tensors, strict=True)]
        return [torch.mul(one, factor, out=out) for one, out in zip(tensors, scaled, strict=True)]

    def _corrections(self, group: ParamGroup, bucket: Bucket) -> tuple[Tensor, Tensor]:
        """c1 and c2 of each parameter, ``[parameters of the bucket]``."""
        steps = torch.stack(self._steps(group, bucket)).to(bucket.dtype)
        beta1, beta2 = group["betas"]
        return one_minus_power(beta1, steps), one_minus_power(beta2, steps).sqrt()

    def _steps(self, group: ParamGroup, bucket: Bucket) -> list[Tensor]:
        steps = [self.state[p]["step"] for p in bucket.params]
        return steps if group["bias_correction"] else [torch.full_like(steps[0], _LATE)] * len(steps)


def one_minus_power(beta: float, steps: Tensor) -> Tensor:
    """1 − β^t to all of float32's digits: 1 − 0.999 by subtraction has only three and a half of seven."""
    return -torch.expm1(steps * math.log(beta)) if beta > 0 else torch.ones_like(steps)


def lamb_trust_ratios(
    bucket: Bucket, updates: list[Tensor], factor: float | Tensor, bounds: tuple[float, float]
) -> Tensor:
    """r of each parameter, shape [parameters of the bucket], for u = factor · updates (You et al. 2020, Alg. 2)."""
    w, u = bucket.norms(bucket.weights, updates)
    u = u * factor
    ratios = w / u
    if bounds != (0.0, math.inf):
        ratios = ratios.clamp(*bounds)
    return torch.where((w > 0) & (u > 0), ratios, 1.0)
