"""How good values of a parameter follow the batch: a line through their logarithms, fitted to good runs.

The line is y(B) = a + b·log B with b believed to be normal around 0, and a unknown: Bayesian linear regression in
closed form (Bishop 2006, *Pattern Recognition and Machine Learning*, section 3.3), with a weight for each run.

For a peak learning rate, y is the logarithm of the rate over that of the published rule (``search_spaces/priors.py``).
So with too little data the rate follows the rule, and with more it leaves it as far as they say. LARS's step is
rate × η, and the rule for sgd and lars depends on the momentum: y is free of both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bigbatch.search_spaces.priors import peak_lr_centre, total_steps, trust_coefficient
from bigbatch.search_spaces.workload import Workload
from bigbatch.train_loop.config import ConfigError, TrainConfig


@dataclass(frozen=True)
class Belief:
    """What is assumed about y before the runs are seen."""

    scatter: float
    """One standard deviation of y among good runs of one batch."""
    slope_sd: float
    """One standard deviation of the slope b."""


RATE = Belief(math.log(2), 0.3)
"""Good rates are within a factor of two (published settings, see ``large_batch``). Published exponents of the batch go
from 0.18 to 1; the rule names the most probable one."""
PLACE = Belief(0.2, 0.05)
"""Of other parameters, whose y is the place in their range, from 0 to 1."""


@dataclass(frozen=True)
class BatchLine:
    """A fitted line. ``middle``: the log batch at which its level and its slope are independent."""

    middle: float
    level: float
    slope: float
    level_sd: float
    slope_sd: float

    def at(self, batch: int) -> float:
        """The expected y at a batch."""
        return self.level + self.slope * (math.log(batch) - self.middle)

    def sd_at(self, batch: int) -> float:
        """One standard deviation of that expectation."""
        return math.hypot(self.level_sd, self.slope_sd * (math.log(batch) - self.middle))


def fit_line(batches: Sequence[int], ys: Sequence[float], weights: Sequence[float], belief: Belief) -> BatchLine:
    """The line through the runs.

    Args:
        batches: global batches, of at least one run.
        ys: one for each run.
        weights: 1 for a good run, towards 0 for one that says little. Their sum is above 0.
    """
    x, y, w = np.log(np.array(batches, float)), np.array(ys, float), np.array(weights, float)
    middle = float(w @ x / w.sum())
    level = float(w @ y / w.sum())
    noise = belief.scatter**2
    spread = float(w @ (x - middle) ** 2) + noise / belief.slope_sd**2
    slope = float(w @ ((x - middle) * (y - level))) / spread
    return BatchLine(middle, level, slope, math.sqrt(noise / w.sum()), math.sqrt(noise / spread))


def goodness(batches: Sequence[int], gains: Sequence[float]) -> list[float]:
    """A weight for each run: 1 for the best of its batch, less the further it is behind.

    The scale is half the usual distance from the middle run of a batch to its best. Runs of different batches do not
    compare.
    """
    by_batch: dict[int, list[float]] = {}
    for batch, gain in zip(batches, gains, strict=True):
        by_batch.setdefault(batch, []).append(gain)
    distances = [max(found) - float(np.median(found)) for found in by_batch.values() if len(found) > 1]
    scale = max(float(np.median(distances)) / 2 if distances else 0.0, 1e-12)
    return [math.exp(-(max(by_batch[b]) - gain) / scale) for b, gain in zip(batches, gains, strict=True)]


def rule_for(config: TrainConfig, workload: Workload) -> float:
    """The published peak learning rate for the configuration's optimizer, batch and momentum; for LARS, times η.

    For an optimizer without a rule, the square root of the batch (Malladi et al. 2022, arXiv 2205.10287).
    """
    optimizer, batch = config.optimizer, config.batch.global_size
    steps = total_steps(workload, batch)
    momentum = optimizer.momentum if optimizer.name in ("sgd", "lars") else 0.9
    try:
        centre = peak_lr_centre(optimizer.name, batch, steps, momentum)
    except ConfigError:
        return math.sqrt(batch)
    return centre * (trust_coefficient(steps) if optimizer.name == "lars" else 1.0)


def log_over_rule(config: TrainConfig, workload: Workload) -> float:
    """y of a configuration's rate."""
    return math.log(config.optimizer.peak_lr * _eta(config) / rule_for(config, workload))


def rate_at(config: TrainConfig, workload: Workload, over_rule: float) -> float:
    """The peak learning rate that has this y, with everything else as in the configuration."""
    return math.exp(over_rule) * rule_for(config, workload) / _eta(config)


def _eta(config: TrainConfig) -> float:
    return config.optimizer.trust_coefficient if config.optimizer.name == "lars" else 1.0
