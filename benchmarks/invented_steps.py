"""Invented learning curves with rates that drop in steps: the family ``steps`` of invented_curves.py.

The error relaxes towards a level that belongs to the rate that is on, the faster the higher the rate, and falls
suddenly where the rate drops. So what leads before the drop need not lead after it. Divergence is a hazard in every
epoch before the drop, not a cliff in the warmup. Decay and rate form a narrow diagonal valley; other parameters cost
their distance, not its square. None of this is in the other families: what was chosen there is checked here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from optuna.distributions import CategoricalDistribution, FloatDistribution
from replay.curves import CurveTable, RecordedCurve

from bigbatch.base import json_values
from bigbatch.tune.models.protocol import Dimension
from bigbatch.tune.models.unit_space import value_at

WARMUP_SHARE = 0.05
KINDS = ("nesterov", "heavy_ball", "none")
SPACE = (
    Dimension("peak_lr", FloatDistribution(1e-3, 10, log=True)),
    Dimension("drop_at", FloatDistribution(0.3, 0.9)),
    Dimension("drop_factor", FloatDistribution(0.01, 0.5, log=True)),
    Dimension("weight_decay", FloatDistribution(1e-6, 1e-2, log=True)),
    Dimension("dropout", FloatDistribution(0.0, 0.6)),
    Dimension("global_batch_size", CategoricalDistribution([256, 1024, 4096])),
    Dimension("momentum", CategoricalDistribution(list(KINDS))),
    Dimension("one_minus_momentum", FloatDistribution(0.02, 0.5, log=True), {"momentum": KINDS[:2]}),
)


@dataclass(frozen=True)
class _Ground:
    """The constants of one table."""

    epochs: int
    best_rate: float
    """log10 of the best peak rate, at batch 1,024 and momentum 0.9."""
    batch_slope: float
    relaxation: float
    """Part of the way to its level that the error goes in one epoch of the best rate."""
    noise: float
    noise_power: float
    hazard_at: float
    """Decades above the best rate at which a run of average length diverges in every second case."""
    hazard_width: float
    valley: float
    valley_at: float
    costs: Mapping[str, tuple[float, float]]
    """Parameter → error of a whole range's distance, and the best place."""
    kinds: Mapping[str, float]
    evaluation_noise: float
    ceiling: float
    chance: float
    epoch_s: float


def _ground(rng: np.random.Generator) -> _Ground:
    u = rng.uniform
    return _Ground(
        epochs=int(rng.choice([20, 40, 80])),
        best_rate=u(-1.5, 0.2),
        batch_slope=u(0.2, 1.0),
        relaxation=u(0.05, 0.2),
        noise=u(0.1, 0.35),
        noise_power=u(0.25, 0.5),
        hazard_at=u(0.5, 1.2),
        hazard_width=u(0.1, 0.3),
        valley=u(0.02, 0.06),
        valley_at=u(-0.6, 0.6),
        costs={"dropout": (u(0.01, 0.06), u(0, 0.7)), "one_minus_momentum": (u(0, 0.04), u(0.2, 0.8))},
        kinds={kind: u(0, 0.02) for kind in KINDS},
        evaluation_noise=10 ** u(-3, -2.2),
        ceiling=u(0.55, 0.98),
        chance=float(rng.choice([0.001, 0.01, 0.1])),
        epoch_s=u(60, 900),
    )


def random_params(
    dimensions: Iterable[Dimension], rng: np.random.Generator
) -> tuple[dict[str, object], dict[str, float]]:
    """Random parameters of a space, and each one's place in its range, 0 to 1."""
    params: dict[str, object] = {}
    places: dict[str, float] = {}
    for dimension in dimensions:
        if dimension.is_active(params):
            places[dimension.name] = float(rng.random())
            params[dimension.name] = value_at(places[dimension.name], dimension.distribution)
    return params, places


def steps_table(seed: int, rows: int) -> CurveTable:
    """The table number ``seed`` of ``steps``."""
    rng = np.random.default_rng([seed, 77])
    ground = _ground(rng)
    return CurveTable(f"steps{seed}", tuple(_run(ground, rng) for _ in range(rows)), SPACE)


def _run(ground: _Ground, rng: np.random.Generator) -> RecordedCurve:
    params, at = random_params(SPACE, rng)
    epochs = ground.epochs
    drop = max(1, round(json_values.number(params, "drop_at") * epochs))
    epoch = np.arange(1, epochs + 1)
    factor = np.minimum(1, epoch / max(1.0, WARMUP_SHARE * epochs))
    factor = np.where(epoch > drop, json_values.number(params, "drop_factor"), factor)
    z = _decades_off(ground, params)
    error = _relaxed(ground, z, factor) + _costs(ground, params, at, z)
    noise = rng.normal(0, ground.evaluation_noise, epochs) * np.sqrt(0.1 + factor)
    values = np.clip(ground.ceiling * (1 - error) + noise, ground.chance, 1)
    seconds = ground.epoch_s * (1.2 - 0.4 * at["global_batch_size"]) * epoch
    hazard = -math.log(0.5) / (0.6 * epochs) * 10 ** min((z - ground.hazard_at) / ground.hazard_width, 6)
    lives = int(rng.exponential(1 / max(hazard, 1e-12)))
    diverged = lives < drop
    if diverged:
        values, seconds = values[:lives], seconds[: lives + 1]
    return RecordedCurve(
        params, tuple(values.tolist()), tuple(seconds.tolist()), epochs, diverged, WARMUP_SHARE * epochs
    )


def _decades_off(ground: _Ground, params: Mapping[str, object]) -> float:
    """How many decades the peak rate lies above its best value."""
    batches = json_values.number(params, "global_batch_size") / 1024
    momentum = json_values.number(params, "one_minus_momentum", 1.0)
    rate = json_values.number(params, "peak_lr") / (momentum / 0.1)
    return math.log10(rate) - ground.best_rate - ground.batch_slope * math.log10(batches)


def _relaxed(ground: _Ground, z: float, factor: np.ndarray) -> np.ndarray:
    """Error after each epoch: it relaxes towards the level of the rate that is on."""
    rates = factor * 10**z
    levels = ground.noise * rates**ground.noise_power
    error, found = 1.0, []
    for rate, level in zip(rates, levels, strict=True):
        # Once the rate has dropped, the error falls to its new level fast: the noise goes, what was learned stays.
        speed = 0.6 if level < error < 3 * ground.noise else 1 - (1 - ground.relaxation) ** min(rate, 3.0)
        error += (min(level, 1.0) - error) * speed
        found.append(error)
    return np.asarray(found)


def _costs(ground: _Ground, params: Mapping[str, object], at: Mapping[str, float], z: float) -> float:
    decay = 2 * at["weight_decay"] - 1
    error = ground.kinds[str(params["momentum"])] + ground.valley * abs(decay + 0.8 * z - ground.valley_at)
    for name, (depth, best) in ground.costs.items():
        error += depth * abs(at.get(name, best) - best)
    return error
