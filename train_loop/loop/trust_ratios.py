"""The spread of the trust ratios of LARS and LAMB over the layers, for the record of an epoch."""

from __future__ import annotations

import torch

from bigbatch.train_loop.optim.layerwise import LayerwiseOptimizer

QUANTILES = (0.0, 0.25, 0.5, 0.75, 1.0)


def keep_trust_ratios(optimizer: torch.optim.Optimizer) -> None:
    """Let the optimizer keep the trust ratios of each step, if it has some."""
    if isinstance(optimizer, LayerwiseOptimizer):
        optimizer.keep_trust_ratios()


def trust_ratios_of(optimizer: torch.optim.Optimizer) -> dict[str, float] | None:
    """Quantile (``0.25``) → value, of the last step; None for other optimizers, and before a step."""
    return quantiles_of(optimizer.trust_ratios()) if isinstance(optimizer, LayerwiseOptimizer) else None


def quantiles_of(ratios: torch.Tensor) -> dict[str, float] | None:
    """Quantile → value, for ``ratios`` of shape ``[tensors]``; None without a finite one. Waits for the device."""
    ratios = ratios[torch.isfinite(ratios)]  # fp16 skips a step whose gradients are not
    if not ratios.numel():
        return None
    values = torch.quantile(ratios, torch.tensor(QUANTILES, device=ratios.device))
    return {f"{quantile:g}": value for quantile, value in zip(QUANTILES, values.tolist(), strict=True)}
