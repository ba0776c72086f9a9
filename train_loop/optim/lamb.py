"""LAMB: Adam whose step is scaled layer by layer."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from train_loop.optim.layerwise import (
    Bucket,
    LayerwiseOptimizer,
    norms,
    rate,
    require,
    require_nonnegative,
    scale_each_,
)


class LAMB(LayerwiseOptimizer):
    r"""Layer-wise adaptive moments, You et al. 2020 (arXiv 1904.00962), Alg. 2, with φ(z) = z.

    For each parameter tensor w with gradient g, weight decay λ, at its step number t (from 1)::

        m ← β1·m + (1 − β1)·g               v ← β2·v + (1 − β2)·g²
        m̂ = m / (1 − β1^t)                  v̂ = v / (1 − β2^t)      (m and v without bias_correction)
        u = m̂ / (√v̂ + eps) + λw             decoupled decay, inside the ratio's norm
        r = ‖w‖ / ‖u‖                       1 where ‖w‖ = 0 or ‖u‖ = 0, or in groups with trust_ratio=False
        w ← w − lr·r·u

    The group flag ``trust_ratio`` alone decides whether the ratio is used: with weight_decay=0 and
    the flag set it is, as in the paper. apex's FusedLAMB differs: it drops the ratio wherever the
    decay is 0, unless use_nvlamb. With ``trust_ratio=False`` the step is AdamW's. The papers clip
    the global gradient norm to 1 beforehand; that is the caller's (``clip_grad_norm_``).

    A parameter group may set any hyperparameter. bf16 and fp16 parameters have float32 moments and
    arithmetic, and are rounded once a step. Gradients are left unchanged; those of a GradScaler
    must be unscaled first (``scaler.step`` does that).

    Args:
        params: parameters or groups of them; real, with dense gradients.
        lr: learning rate, a float or a tensor of one element.
        betas: (β1, β2), each at least 0 and below 1.
        eps: added to the root of the second moment.
        weight_decay: λ.
        bias_correction: divide the moments as above.
        maximize: ascend instead of descend.
        trust_ratio: default of the group flag.

    Raises:
        ValueError: a hyperparameter outside its range, a complex parameter.
        RuntimeError: from ``step``, on a sparse gradient.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        bias_correction: bool = True,
        *,
        maximize: bool = False,
        trust_ratio: bool = True,
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "bias_correction": bias_correction,
            "maximize": maximize,
            "trust_ratio": trust_ratio,
        }
        super().__init__(params, defaults)

    def _check(self, group: dict[str, Any]) -> None:
        require_nonnegative(group, "lr", "eps", "weight_decay")
        betas = group["betas"]
        ok = len(betas) == 2 and all(0 <= beta < 1 for beta in betas)
        require(ok, "betas must be two numbers, each at least 0 and below 1", betas)

    def _update(self, group: dict[str, Any], bucket: Bucket) -> None:
        lr = rate(group, bucket)
        updates = self._adam_directions(group, bucket)
        torch._foreach_add_(updates, bucket.weights, alpha=group["weight_decay"])
        if group["trust_ratio"]:
            scale_each_(updates, trust_ratios(bucket.weights, updates) * lr)
        else:
            torch._foreach_mul_(updates, lr)
        torch._foreach_sub_(bucket.weights, updates)

    def _adam_directions(self, group: dict[str, Any], bucket: Bucket) -> list[Tensor]:
        """m̂ / (√v̂ + eps) of each parameter, after taking its gradient into the moments."""
        beta1, beta2 = group["betas"]
        firsts = self._state_tensors("exp_avg", bucket)
        seconds = self._state_tensors("exp_avg_sq", bucket)
        steps = self._count(bucket)
        torch._foreach_lerp_(firsts, bucket.grads, 1 - beta1)
        torch._foreach_mul_(seconds, beta2)
        torch._foreach_addcmul_(seconds, bucket.grads, bucket.grads, 1 - beta2)
        roots = torch._foreach_sqrt(seconds)
        if group["bias_correction"]:
            torch._foreach_div_(roots, [math.sqrt(1 - beta2**t) for t in steps])
        torch._foreach_add_(roots, group["eps"])
        directions = list(torch._foreach_div(firsts, roots))
        if group["bias_correction"]:
            torch._foreach_div_(directions, [1 - beta1**t for t in steps])
        return directions

    def _count(self, bucket: Bucket) -> list[int]:
        """Step number of each parameter: host integers, so bias correction needs no device read."""
        for p in bucket.params:
            self.state[p]["step"] = self.state[p].get("step", 0) + 1
        return [self.state[p]["step"] for p in bucket.params]


def trust_ratios(weights: list[Tensor], updates: list[Tensor]) -> Tensor:
    """r of each parameter, shape [len(weights)] (You et al. 2020, Alg. 2)."""
    w, u = norms(weights), norms(updates)
    return torch.where((w > 0) & (u > 0), w / u, 1.0)
