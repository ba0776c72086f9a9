"""LAMB: Adam whose step is scaled layer by layer."""

from __future__ import annotations

import math
from collections.abc import Iterator
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
    buckets,
    check_hyperparameter,
    check_nonnegative,
    learning_rate_of,
    total_norm,
)

_LATE = torch.tensor(math.inf)
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
        capturable: keep step numbers on the device, for CUDA graphs. Otherwise they are on the CPU,
            as in torch.optim.Adam, and the host reads them without waiting for a device.
        trust_ratio: default of the group flag.

    Raises:
        ValueError: a hyperparameter outside its range, a complex parameter, one that is sharded otherwise than by
            ``fully_shard``.
        RuntimeError: from ``step``, on a sparse gradient.
    """

    _scratch: Tensor | None = None
    """Two lists of the largest bucket, on CPUs. A class attribute: torch copies an optimizer without its own ones."""

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
        capturable: bool = False,
        trust_ratio: bool = True,
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "bias_correction": bias_correction,
            "trust_bounds": trust_bounds,
            "capturable": capturable,
            "trust_ratio": trust_ratio,
        }
        self.pre_normalise = pre_normalise
        self._gradient_scale: Tensor | None = None
        super().__init__(params, defaults)

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

    def _buckets(self, group: ParamGroup) -> Iterator[Bucket]:
        """Buckets with one step number each, so that bias corrections are numbers, if the host may read the steps."""
        steps = self._count(group)
        if self._steps_stay_on_device(group):
            return buckets(group)
        numbers = {id(p): step.item() for p, step in steps}
        return buckets(group, lambda p: numbers[id(p)])

    def _update(self, group: ParamGroup, bucket: Bucket) -> None:
        lr, decay = learning_rate_of(group, bucket), group["weight_decay"]
        updates, factor = self._updates(group, bucket, decay)
        if group["trust_ratio"]:
            factor = factor * lamb_trust_ratios(bucket, updates, factor, group["trust_bounds"])
        add_scaled_(bucket.weights, updates, -lr * factor)

    def _updates(self, group: ParamGroup, bucket: Bucket, decay: float) -> tuple[list[Tensor], float | Tensor]:
        """d of each parameter and f with f·d = u, after taking its gradient into the moments.

        With c1 = 1 − β1^t and c2 = √(1 − β2^t): m̂ / (√v̂ + eps) = (c2/c1) · m / (√v + c2·eps), which
        saves two passes over the tensors. f is a number, or [parameters of the bucket].
        """
        beta1, beta2 = group["betas"]
        firsts = self._state_tensors("exp_avg", bucket)
        seconds = self._state_tensors("exp_avg_sq", bucket)
        if in_one_pass(bucket.weights, bucket.grads, firsts, seconds):
            return self._fused_updates(group, bucket, firsts, seconds, decay), 1.0
        grads = bucket.grads
        if self._gradient_scale is not None:
            grads = list(torch._foreach_mul(grads, self._gradient_scale.to(bucket.device, bucket.dtype)))
        torch._foreach_lerp_(firsts, grads, 1 - beta1)
        torch._foreach_mul_(seconds, beta2)
        torch._foreach_addcmul_(seconds, grads, grads, 1 - beta2)
        c1, c2 = self._corrections(group, bucket)
        roots = torch._foreach_sqrt(seconds)
        eps = c2 * group["eps"]
        torch._foreach_add_(roots, list(eps.unbind()) if isinstance(eps, Tensor) else eps)
        updates, factor = list(torch._foreach_div(firsts, roots)), c2 / c1
        if decay > 0:
            add_scaled_(updates, bucket.weights, decay / factor)
        return updates, factor

    def _fused_updates(
        self, group: ParamGroup, bucket: Bucket, firsts: list[Tensor], seconds: list[Tensor], decay: float
    ) -> list[Tensor]:
        """u of each parameter by torch's fused Adam, one pass over memory: a step of −1 from λw."""
        updates = self._scratch_like(bucket.weights, 0)
        for update, w in zip(updates, bucket.weights, strict=True):
            torch.mul(w, decay, out=update)
        grads = bucket.grads
        if self._gradient_scale is not None:
            scale = self._gradient_scale.to(bucket.dtype)
            scaled = self._scratch_like(bucket.weights, 1)
            grads = [torch.mul(g, scale, out=out) for g, out in zip(grads, scaled, strict=True)]
        steps = [self.state[p]["step"] if group["bias_correction"] else _LATE for p in bucket.params]
        beta1, beta2 = group["betas"]
        how: dict[str, Any] = {"beta1": beta1, "beta2": beta2, "eps": group["eps"], "lr": -1.0, "weight_decay": 0.0}
        torch._fused_adam_(updates, grads, firsts, seconds, [], steps, amsgrad=False, maximize=False, **how)
        return updates

    def _scratch_like(self, weights: list[Tensor], row: int) -> list[Tensor]:
        """Tensors that lie as the weights do, in a row of this optimizer's memory: fresh memory costs page faults."""
        sizes = [w.numel() for w in weights]
        if self._scratch is None or self._scratch.dtype != weights[0].dtype or self._scratch.shape[1] < sum(sizes):
            self._scratch = torch.empty(2, sum(sizes), dtype=weights[0].dtype)
        parts = self._scratch[row, : sum(sizes)].split(sizes)
        return [part.as_strided(w.shape, w.stride()) for part, w in zip(parts, weights, strict=True)]

    def _corrections(self, group: ParamGroup, bucket: Bucket) -> tuple[float | Tensor, float | Tensor]:
        """c1 and c2: numbers, or tensors of shape [parameters of the bucket]."""
        if not group["bias_correction"]:
            return 1.0, 1.0
        beta1, beta2 = group["betas"]
        if not self._steps_stay_on_device(group):
            t = self.state[bucket.params[0]]["step"].item()
            return 1 - beta1**t, math.sqrt(1 - beta2**t)
        steps = torch.stack([self.state[p]["step"] for p in bucket.params]).to(bucket.device, bucket.dtype)
        return one_minus_power(beta1, steps), one_minus_power(beta2, steps).sqrt()

    def _steps_stay_on_device(self, group: ParamGroup) -> bool:
        return group["capturable"] or torch.compiler.is_compiling()

    def _count(self, group: ParamGroup) -> list[tuple[Tensor, Tensor]]:
        """Parameters that have a gradient with their step numbers, float32 ``[]``, counted up."""
        params = [p for p in group["params"] if p.grad is not None]
        for p in params:
            if "step" not in self.state[p]:
                device = p.device if group["capturable"] else "cpu"
                self.state[p]["step"] = torch.zeros((), dtype=torch.float32, device=device)
        steps = [self.state[p]["step"] for p in params]
        if steps:
            torch._foreach_add_(steps, 1)
        return list(zip(params, steps, strict=True))


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
