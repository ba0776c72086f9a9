"""LARS: SGD with momentum whose step is scaled layer by layer."""

from __future__ import annotations

from dataclasses import replace
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
    scale_,
)

CONVENTIONS = ("in", "out")
LARC = ("off", "clip", "trust")


class LARS(LayerwiseOptimizer):
    r"""Layer-wise adaptive rate scaling, You, Gitman & Ginsburg 2017 (arXiv 1708.03888), Alg. 1.

    For each parameter tensor w with gradient g, weight decay λ and trust coefficient η::

        r = η‖w‖ / (‖g‖ + λ‖w‖ + eps)      1 where ‖w‖ = 0 or ‖g‖ = 0, or in groups with trust_ratio=False
        r ← min(r / lr, 1)                  with larc="clip": the step's rate lr·r is at most lr
        d = r · (g + λw)                    the decay is coupled (L2) and scaled along

    ``momentum_convention`` decides where the learning rate enters; m is the momentum::

        "in"   (the paper, MLPerf)          "out"  (NVIDIA, timm, torch.optim.SGD)
        b ← m·b + lr·d                      b ← m·b + d
        w ← w − b                           w ← w − lr·b
        Nesterov: w ← w − (lr·d + m·b)      Nesterov: w ← w − lr·(d + m·b)

    ``larc`` is LARC as NVIDIA's apex has it around SGD (apex/parallel/LARC.py, removed in 2025): with momentum "out",
    trust_coefficient=0.02 and eps=1e-8 the steps are the same. "clip": the ratio is the layer's own learning rate and
    lr is its upper bound. "trust" (apex: clip=False): both are multiplied, as in LARS. Where ‖w‖ = 0 the rate is lr;
    where ‖g‖ = 0 the decay is left out too.

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
        larc: ``"off"``, ``"clip"`` or ``"trust"``.
        trust_ratio: default of the group flag.

    Raises:
        ValueError: a hyperparameter outside its range, a complex parameter, one that is sharded otherwise than by
            ``fully_shard``.
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
        larc: str = "off",
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
            "larc": larc,
            "trust_ratio": trust_ratio,
        }
        super().__init__(params, defaults)

    def _check(self, group: ParamGroup) -> None:
        check_nonnegative(group, "lr", "weight_decay", "trust_coefficient", "eps")
        check_hyperparameter(
            group["trust_coefficient"] > 0, "trust_coefficient must be above 0", group["trust_coefficient"]
        )
        check_hyperparameter(0 <= group["momentum"] < 1, "momentum must be at least 0 and below 1", group["momentum"])
        convention = group["momentum_convention"]
        check_hyperparameter(convention in CONVENTIONS, "momentum_convention must be 'in' or 'out'", convention)
        check_hyperparameter(group["larc"] in LARC, "larc must be 'off', 'clip' or 'trust'", group["larc"])

    def _update(self, group: ParamGroup, bucket: Bucket) -> None:
        lr = learning_rate_of(group, bucket)
        inside = group["momentum_convention"] == "in"
        factor: float | Tensor = lr if inside else 1.0  # of g + λw, so that it becomes d, or lr·d
        if group["trust_ratio"]:
            factor = factor * lars_trust_ratios(group, bucket, lr)
        rate = 1.0 if inside else lr
        buffers = self._state_tensors("momentum_buffer", bucket) if group["momentum"] > 0 else []
        if in_one_pass(bucket.weights, buffers or bucket.weights):
            bucket = replace(bucket, grads=[*map(laid_out, bucket.grads, bucket.weights)])
            if not _dampened_steps(group, bucket, buffers, factor, rate):
                _scaled_steps(group, bucket, buffers, factor, rate, self.found_inf)
        else:
            steps, factor = _accumulate(group, bucket, buffers, factor)
            add_scaled_(bucket.weights, steps, -rate * factor)


def _accumulate(
    group: ParamGroup, bucket: Bucket, buffers: list[Tensor], factor: float | Tensor
) -> tuple[list[Tensor], float | Tensor]:
    """Take factor·(g + λw) into the momentum; returns what to step along, and its factor."""
    directions = list(torch._foreach_add(bucket.grads, bucket.weights, alpha=group["weight_decay"]))
    if not buffers:
        return directions, factor
    torch._foreach_mul_(buffers, group["momentum"])
    add_scaled_(buffers, directions, factor)
    if not group["nesterov"]:
        return buffers, 1.0
    scale_(directions, factor)
    torch._foreach_add_(directions, buffers, alpha=group["momentum"])
    return directions, 1.0


_SGD: dict[str, Any] = {
    "weight_decay": 0.0, "momentum": 0.0, "dampening": 0.0, "nesterov": False, "maximize": False, "is_first_step": False
}  # fmt: skip
"""What torch's fused SGD must be told."""


def _scaled_steps(
    group: ParamGroup,
    bucket: Bucket,
    buffers: list[Tensor],
    factor: float | Tensor,
    rate: float | Tensor,
    found_inf: Tensor | None,
) -> None:
    """The same step by torch's fused SGD along factor·(g + λw). With ``found_inf`` above 0 GPUs change nothing."""
    directions = list(torch._foreach_add(bucket.grads, bucket.weights, alpha=group["weight_decay"]))
    scale_(directions, factor)
    how = _SGD | {"lr": rate, "momentum": group["momentum"], "nesterov": group["nesterov"] and bool(buffers)}
    torch._fused_sgd_(bucket.weights, directions, buffers, found_inf=found_inf, **how)


def _dampened_steps(
    group: ParamGroup, bucket: Bucket, buffers: list[Tensor], factor: float | Tensor, rate: float | Tensor
) -> bool:
    """The same step by torch's fused SGD, ``b ← m·b + (1 − dampening)·(g + λw)``, ``w ← w − lr·b``, with dampening
    1 − factor: one pass over memory where multi-tensor ones are four. The host reads the factors: only on CPUs.

    Nesterov's w ← w − rate·(factor·(g + λw) + m·b) leaves w as it is at first, and takes the two terms one by one.

    Returns whether it was possible.
    """
    if not buffers or bucket.device.type != "cpu":
        return False
    factors = factor.tolist() if isinstance(factor, Tensor) and factor.ndim else [float(factor)]
    if not _can_dampen(factors, torch.finfo(bucket.dtype).eps):
        return False
    tensors, momentum, nesterov = (bucket.weights, bucket.grads, buffers), group["momentum"], group["nesterov"]
    parts = [tensors] if len(factors) == 1 else [([w], [g], [b]) for w, g, b in zip(*tensors, strict=True)]
    how, rate = _SGD | {"weight_decay": group["weight_decay"]}, float(rate)
    for (w, g, b), one in zip(parts, factors, strict=True):
        first = {"lr": 0.0 if nesterov else rate, "momentum": momentum, "dampening": 1.0 - one}
        torch._fused_sgd_(w, g, b, **(how | first))
        if nesterov:
            torch._fused_sgd_(w, g, [], **(how | {"lr": rate * one}))
            torch._foreach_add_(w, b, alpha=-rate * momentum)
    return True


def _can_dampen(factors: list[float], eps: float) -> bool:
    """Whether 1 − dampening has all digits of each factor; of a factor below 1e-9 it has not."""
    return all(abs(1.0 - (1.0 - factor) - factor) <= eps * factor for factor in factors)


def lars_trust_ratios(group: ParamGroup, bucket: Bucket, lr: float | Tensor) -> Tensor:
    """r of each parameter, shape [parameters of the bucket] (You et al. 2017, Alg. 1, with eps)."""
    w, g = bucket.norms(bucket.weights, bucket.grads)
    ratios = group["trust_coefficient"] * w / (g + group["weight_decay"] * w + group["eps"])
    if group["larc"] == "clip":
        ratios = torch.clamp(ratios / lr, max=1.0)  # at lr = 0 the infinite ratio becomes 1
    if group["larc"] != "off":
        return torch.where(g > 0, torch.where(w > 0, ratios, 1.0), 0.0)
    return torch.where((w > 0) & (g > 0), ratios, 1.0)
