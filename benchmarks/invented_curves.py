"""Invented landscapes: tables of learning curves whose laws are known, for measuring strategies.

Families: ``wide`` (one optimizer, a learning rate over 4.5 decades, in every second table the number of epochs is
searched too), ``projected`` (three optimizers with parameters of their own, a rate already scaled by a rule) and
``steps`` (invented_steps.py: another law of curves and of divergence). Each seed of a family is another table.

``wide`` and ``projected`` follow power laws. By epoch e of E, with f the schedule's share of the peak rate, the error
is a power of the integrated rate (training too little), plus the noise of the rate that is on now (which the schedule
takes away), overfitting that grows late, quadratic bowls in the other parameters, and noise of the seed and of each
evaluation. z is the distance of the rate from its optimum in decades. Above a cliff in z, which a longer warmup raises,
runs diverge. Warmup delays the start, and how fast a run starts says little about its end, so that curves cross.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
from invented_steps import random_params, steps_table
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from replay.curves import CurveTable, RecordedCurve

from bigbatch.base import json_values
from bigbatch.tune.models.protocol import Dimension

ROWS = 500
EPOCH_S = 300.0
"""A mean epoch in seconds."""
COUPLED, DECOUPLED = ("lars", "sgd"), ("lamb",)


@dataclass(frozen=True)
class _Optimizer:
    error: float = 0.0
    """Error that it adds."""
    shift: float = 0.0
    """Of its best rate, in decades."""
    narrowness: float = 1.0
    momentum_power: float = 1.0
    """The best rate falls with 1 / (1 - momentum) to this power."""


@dataclass(frozen=True)
class _Landscape:
    """The constants of one table. Rates are in decades."""

    epochs: int
    best_rate: float
    """log10 of the best peak rate at momentum 0.9 and the middle batch."""
    batch_slope: float
    """The best rate grows with the batch to this power."""
    batch_cost: float
    """Progress of an epoch falls with the batch to this power."""
    cliff: float
    """Decades above the best rate at which half of the runs diverge."""
    cliff_width: float
    cliff_per_warmup: float
    underfit: float
    underfit_power: float
    underfit_at: float
    noise: float
    noise_power: float
    overfit: float
    overfit_best: float
    bowls: Mapping[str, tuple[float, float]]
    """Parameter → depth and best position."""
    start_spread: float
    """Decades by which runs start faster or slower than they end."""
    seed_noise: float
    evaluation_noise: float
    ceiling: float
    chance: float
    optimizers: Mapping[str, _Optimizer]
    middle_batch: float
    """The batch at which ``best_rate`` holds."""


def _landscape(rng: np.random.Generator, wide: bool) -> _Landscape:
    u = rng.uniform
    searched = ("momentum", "label_smoothing", "warmup")
    return _Landscape(
        epochs=int(rng.choice([18, 30, 60, 90])),
        best_rate=u(-1.2, -0.2) if wide else 0.0,
        batch_slope=u(0.3, 1.0) if wide else u(-0.17, 0.17),
        batch_cost=u(0, 0.25),
        cliff=u(0.35, 1.1),
        cliff_width=u(0.03, 0.15),
        cliff_per_warmup=u(0, 0.8),
        underfit=u(0.6, 0.9),
        underfit_power=u(0.7, 1.5),
        underfit_at=u(0.015, 0.05),
        noise=u(0.05, 0.25),
        noise_power=u(0.3, 0.7),
        overfit=u(0.01, 0.05),
        overfit_best=u(-0.6, 0.6),
        bowls={name: (u(0.002, 0.02), u(0.1, 0.8)) for name in searched},
        start_spread=u(0.1, 0.5),
        seed_noise=10 ** u(-3.3, -2.5),
        evaluation_noise=10 ** u(-3, -2),
        ceiling=u(0.6, 0.95),
        chance=float(rng.choice([0.001, 0.1])),
        optimizers={"sgd": _Optimizer()} if wide else {name: _optimizer(rng) for name in (*COUPLED, *DECOUPLED)},
        middle_batch=512 if wide else 1448,
    )


def _optimizer(rng: np.random.Generator) -> _Optimizer:
    shift = float(rng.normal(0, 0.2))
    return _Optimizer(rng.uniform(0, 0.02), shift, rng.uniform(0.7, 1.3), 0.3 * shift)


def _wide_space(epochs: int, searches_epochs: bool) -> tuple[Dimension, ...]:
    number = FloatDistribution
    space = [
        Dimension("peak_lr", number(3e-4, 10, log=True)),
        Dimension("warmup", number(0.02, 0.6)),
        Dimension("one_minus_momentum", number(0.02, 0.6, log=True)),
        Dimension("weight_decay", number(1e-6, 1e-2, log=True)),
        Dimension("label_smoothing", number(0, 0.4)),
        Dimension("global_batch_size", CategoricalDistribution([128, 256, 512, 1024, 2048])),
    ]
    if searches_epochs:
        space.append(Dimension("epochs", IntDistribution(max(8, epochs // 4), epochs)))
    return tuple(space)


def _projected_space() -> tuple[Dimension, ...]:
    number, coupled, decoupled = FloatDistribution, {"optimizer": COUPLED}, {"optimizer": DECOUPLED}
    return (
        Dimension("optimizer", CategoricalDistribution(["lars", "lamb", "sgd"])),
        Dimension("global_batch_size", CategoricalDistribution([512, 1024, 2048, 4096])),
        Dimension("lr_multiplier", number(0.25, 4, log=True)),
        Dimension("warmup", number(0.05, 0.35)),
        Dimension("schedule", CategoricalDistribution(["cosine", "poly"])),
        Dimension("label_smoothing", number(0, 0.2)),
        Dimension("one_minus_momentum", number(0.03, 0.3, log=True), coupled),
        Dimension("weight_decay", number(1e-5, 1e-3, log=True), coupled),
        Dimension("one_minus_beta1", number(0.05, 0.3, log=True), decoupled),
        Dimension("decoupled_weight_decay", number(1e-3, 2, log=True), decoupled),
    )


def power_law_table(seed: int, rows: int, wide: bool) -> CurveTable:
    """The table number ``seed`` of ``wide``, or of ``projected``."""
    rng = np.random.default_rng([seed, 5 if wide else 9])
    land = _landscape(rng, wide)
    space = _wide_space(land.epochs, seed % 2 == 0) if wide else _projected_space()
    curves = tuple(_curve(land, space, rng) for _ in range(rows))
    return CurveTable(f"{'wide' if wide else 'projected'}{seed}", curves, space)


def _decades(land: _Landscape, params: Mapping[str, object], optimizer: _Optimizer) -> float:
    """Distance of the peak rate from its best value: z."""
    rate = json_values.number(params, "peak_lr") or json_values.number(params, "lr_multiplier")
    momentum = json_values.number(params, "one_minus_momentum") or json_values.number(params, "one_minus_beta1")
    batches = json_values.number(params, "global_batch_size") / land.middle_batch
    z = math.log10(rate) - land.best_rate - land.batch_slope * math.log10(batches) + optimizer.shift
    return (z - math.log10(momentum / 0.1) * optimizer.momentum_power) * optimizer.narrowness


def _curve(land: _Landscape, space: tuple[Dimension, ...], rng: np.random.Generator) -> RecordedCurve:
    params, at = random_params(space, rng)
    optimizer = land.optimizers[str(params.get("optimizer", "sgd"))]
    epochs = json_values.whole_number(params, "epochs", land.epochs)
    warmup = json_values.number(params, "warmup")
    z = _decades(land, params, optimizer)
    factor = _schedule(str(params.get("schedule", "linear")), epochs, warmup)
    batches = json_values.number(params, "global_batch_size") / land.middle_batch
    error = optimizer.error + _training_error(land, batches, z, factor, rng) + _fit_error(land, at, z, epochs)
    noise = rng.normal(0, land.seed_noise) + rng.normal(0, land.evaluation_noise, epochs) * (3 * factor + 0.1)
    values = np.clip(land.ceiling * (1 - error) + noise, land.chance, 1)
    seconds = EPOCH_S * (0.8 + 0.4 * (1 - at["global_batch_size"])) * np.arange(1, epochs + 1)
    climb = (z - land.cliff - land.cliff_per_warmup * (warmup - 0.2)) / land.cliff_width
    diverged = False
    if rng.random() < 1 / (1 + math.exp(-min(max(climb, -30), 30))):
        end = min(max(1, int(max(1.0, warmup * epochs) * rng.uniform(0.2, 1.2))), epochs - 1)
        diverged = rng.random() < 0.7
        if diverged:
            values, seconds = values[:end], seconds[: end + 1]
        else:  # the loss stays finite, but nothing is learned any more
            values[end - 1 :] = land.chance + np.abs(rng.normal(0, 0.002, epochs - end + 1))
    return RecordedCurve(params, tuple(values.tolist()), tuple(seconds.tolist()), epochs, diverged, warmup * epochs)


def _schedule(name: str, epochs: int, warmup: float) -> np.ndarray:
    """The share of the peak rate in each epoch: a linear rise, then a fall to 0."""
    epoch, peak = np.arange(1, epochs + 1), max(1.0, warmup * epochs)
    part = np.clip((epoch - peak) / max(1.0, epochs - peak), 0, 1)
    falls: dict[str, Callable[[np.ndarray], np.ndarray]] = {
        "linear": lambda q: 1 - q,
        "cosine": lambda q: 0.5 * (1 + np.cos(np.pi * q)),
        "poly": lambda q: (1 - q) ** 2,
    }
    return np.asarray(np.where(epoch < peak, epoch / peak, falls[name](part)))


def _training_error(
    land: _Landscape, batches: float, z: float, factor: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Error after each epoch of training too little, and of the rate's noise."""
    epochs = len(factor)
    share = np.arange(1, epochs + 1) / epochs
    speed = 2 * 10 ** (0.9 * min(z, 0.3)) * batches**-land.batch_cost
    early = 10 ** (land.start_spread * rng.normal() * (1 - share) ** 2)
    progress = np.cumsum(factor) / land.epochs * speed * early
    rate_on = np.convolve(factor * 10 ** min(max(z, -2), 1.2), [0.6, 0.4])[:epochs]
    underfit = land.underfit * (1 + progress / land.underfit_at) ** -land.underfit_power
    return np.asarray(underfit + land.noise * rate_on**land.noise_power)


def _fit_error(land: _Landscape, at: Mapping[str, float], z: float, epochs: int) -> np.ndarray:
    """Error after each epoch of too much or too little regularisation, and of the parameters with bowls."""
    share = np.arange(1, epochs + 1) / epochs
    decay = at["weight_decay"] if "weight_decay" in at else at["decoupled_weight_decay"]
    momentum = at["one_minus_momentum"] if "one_minus_momentum" in at else at["one_minus_beta1"]
    fit = (decay - 0.5) * 2 + 0.6 * min(max(z, -2), 1) - land.overfit_best
    error = land.overfit * fit**2 * share ** (2.0 if fit < 0 else 0.5) + max(0.0, z - 0.25) ** 2 * 0.15
    places = {"momentum": momentum, "label_smoothing": at["label_smoothing"], "warmup": at["warmup"]}
    for name, (depth, best) in land.bowls.items():
        error += depth * ((places[name] - best) / 0.5) ** 2 * (share if name == "label_smoothing" else 1)
    return np.asarray(error)


FAMILIES: Mapping[str, Callable[[int, int], CurveTable]] = {
    "wide": partial(power_law_table, wide=True),
    "projected": partial(power_law_table, wide=False),
    "steps": steps_table,
}
"""Each family's maker. Defaults were chosen on the first two; ``steps`` is kept aside to check them."""


def invented_table(family: str, seed: int, rows: int = ROWS) -> CurveTable:
    """The table number ``seed`` of a family. Raises KeyError for an unknown one."""
    return FAMILIES[family](seed, rows)
