"""The spread of the trust ratios of LARS and LAMB over the layers, for reporters that want it."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from bigbatch.train_loop.optim.layerwise import LayerwiseOptimizer
from bigbatch.train_loop.reporter import Reporter

QUANTILES = (0.0, 0.25, 0.5, 0.75, 1.0)


def keep_trust_ratios(optimizer: torch.optim.Optimizer, reporter: Reporter) -> None:
    """Let the optimizer keep its trust ratios, if it has some and the reporter has ``trust_ratios``."""
    if isinstance(optimizer, LayerwiseOptimizer) and hasattr(reporter, "trust_ratios"):
        optimizer.keep_trust_ratios()


def report_trust_ratios(optimizer: torch.optim.Optimizer, reporter: Reporter) -> None:
    """Hand the quantiles of the last step's trust ratios to such a reporter."""
    if isinstance(optimizer, LayerwiseOptimizer) and hasattr(reporter, "trust_ratios"):
        quantiles = quantiles_of(optimizer.trust_ratios())
        if quantiles:
            reporter.trust_ratios(quantiles)


def quantiles_of(ratios: torch.Tensor) -> Mapping[float, float]:
    """Quantile → value, for ``ratios`` of shape ``[tensors]``; empty without any. Waits for the device."""
    if not ratios.numel():
        return {}
    values = torch.quantile(ratios, torch.tensor(QUANTILES, device=ratios.device))
    return dict(zip(QUANTILES, values.tolist(), strict=True))
