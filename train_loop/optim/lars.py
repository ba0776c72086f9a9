"""LARS: SGD with momentum whose step is scaled layer by layer."""

from __future__ import annotations

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

CONVENTIONS = ("in", "out")


class LARS(LayerwiseOptimizer):
    r"""Layer-wise adaptive rate scaling, You, Gitman & Ginsburg 2017 (arXiv 1708.03888), Alg. 1.

    For each parameter tensor w with gradient g, weight decay λ and trust coefficient η::

        r = η‖w‖ / (‖g‖ + λ‖w‖ + eps)      1 where ‖w‖ = 0 or ‖g‖ = 0, or in groups with trust_ratio=False
        d = r · (g + λw)                    the decay is coupled (L2) and scaled along

    ``momentum_convention`` says where the learning rate sits; m is the momentum::

        "in"   (the paper, MLPerf)          "out"  (NVIDIA, timm, torch.optim.SGD)
        b ← m·b + lr·d                      b ← m·b + d
        w ← w − b                           w ← w − lr·b
        Nesterov: w ← w − (lr·d + m·b)      Nesterov: w ← w − lr·(d + m·b)

    At a constant learning rate both take the same steps. While it changes they differ: "in" keeps
    old steps at the rate they were made with, "out" rescales the whole buffer at once. b starts at
    zero. The paper has no Nesterov form: this is that of torch.optim.SGD, with the new b.
    With m = 0 there is no buffer and Nesterov changes nothing.

    A parameter group may set any hyperparameter, and ``trust_ratio=False`` for plain SGD with
    momentum (BatchNorm parameters and biases, see ``parameter_groups``). bf16 and fp16 parameters
    have float32 buffers and arithmetic, and are rounded once a step. Gradients are left unchanged;
    those of a GradScaler must be unscaled first (``scaler.step`` does that).

    Args:
        params: parameters or groups of them; real, with dense gradients.
        lr: learning rate, a float or a tensor of one element.
        momentum: m, at least 0 and below 1.
        weight_decay: λ.
        trust_coefficient: η, above 0.
        nesterov: look ahead along the momentum.
        momentum_convention: ``"in"`` or ``"out"``.
        eps: added to the ratio's denominator; 0 in the paper.
        maximize: ascend instead of descend.
        trust_ratio: default of the group flag.

    Raises:
        ValueError: a hyperparameter outside its range, a complex parameter.
        RuntimeError: from ``step``, on a sparse gradient.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust_coefficient: float = 0.001,
        nesterov: bool = False,
        momentum_convention: str = "in",
        eps: float = 0.0,
        *,
        maximize: bool = False,
        trust_ratio: bool = True,
    ) -> None:
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "trust_coefficient": trust_coefficient,
            "nesterov": nesterov,
            "momentum_convention": momentum_convention,
            "eps": eps,
            "maximize": maximize,
            "trust_ratio": trust_ratio,
        }
        super().__init__(params, defaults)

    def _check(self, group: dict[str, Any]) -> None:
        require_nonnegative(group, "lr", "weight_decay", "trust_coefficient", "eps")
        require(group["trust_coefficient"] > 0, "trust_coefficient must be above 0", group["trust_coefficient"])
        require(0 <= group["momentum"] < 1, "momentum must be at least 0 and below 1", group["momentum"])
        convention = group["momentum_convention"]
        require(convention in CONVENTIONS, "momentum_convention must be 'in' or 'out'", convention)

    def _update(self, group: dict[str, Any], bucket: Bucket) -> None:
        lr = rate(group, bucket)
        inside = group["momentum_convention"] == "in"
        directions = list(torch._foreach_add(bucket.grads, bucket.weights, alpha=group["weight_decay"]))
        if group["trust_ratio"]:
            ratios = trust_ratios(group, bucket)
            scale_each_(directions, ratios * lr if inside else ratios)
        elif inside:
            torch._foreach_mul_(directions, lr)
        steps = self._accumulate(group, bucket, directions)
        torch._foreach_sub_(bucket.weights, steps if inside else torch._foreach_mul(steps, lr))

    def _accumulate(self, group: dict[str, Any], bucket: Bucket, directions: list[Tensor]) -> list[Tensor]:
        """Take ``directions`` into the momentum; returns what to step along."""
        momentum = group["momentum"]
        if momentum == 0:
            return directions
        buffers = self._state_tensors("momentum_buffer", bucket)
        torch._foreach_mul_(buffers, momentum)
        torch._foreach_add_(buffers, directions)
        if not group["nesterov"]:
            return buffers
        torch._foreach_add_(directions, buffers, alpha=momentum)
        return directions


def trust_ratios(group: dict[str, Any], bucket: Bucket) -> Tensor:
    """r of each parameter, shape [parameters of the bucket] (You et al. 2017, Alg. 1, with eps)."""
    w, g = norms(bucket.weights), norms(bucket.grads)
    ratios = group["trust_coefficient"] * w / (g + group["weight_decay"] * w + group["eps"])
    return torch.where((w > 0) & (g > 0), ratios, 1.0)
