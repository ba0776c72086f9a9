"""A model of the time of a step, fitted to the sizes that were measured, for sizes that were not.

    step(n) = compute + input + all-reduce
    compute      a + b · images of a worker
    input        c · images of a worker + d · images of all workers     (a loader of its own; storage that all share)
    all-reduce   2 (n − 1)/n · bytes / bandwidth + 2 (n − 1) · latency

The last line is the cost of a ring all-reduce: Thakur, Rabenseifner & Gropp 2005 (Int. J. High Performance Computing
Applications 19(1), section 4, the ring's reduce-scatter and allgather); Patarasuk & Yuan 2009 (J. Parallel and
Distributed Computing 69(2)) show that its first term is the least possible. Nothing here is below 0. What was measured
is the part of the all-reduce that the backward pass does not hide, so the bandwidth is an effective one, and the
latency is that of all buckets of gradients together. A tree has 2 log2 n latencies in place of 2 (n − 1): where a
library chooses trees for many devices (NCCL may), the model is too slow there.

Each line is fitted by itself, by non-negative least squares of relative errors (Lawson & Hanson 1974, chapter 23).
Sizes within a node and over several have each their own bandwidth and latency, if both were measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

FEWEST_SIZES = 3
"""A model needs at least so many: with two, one left out leaves one, and no error is known."""


@dataclass(frozen=True)
class StepTimes:
    """A step of one size, measured or modelled, in seconds."""

    workers: int
    images_per_worker: float
    """Of one step."""
    compute_s: float
    data_s: float
    communication_s: float

    @property
    def step_s(self) -> float:
        """All three parts."""
        return self.compute_s + self.data_s + self.communication_s


@dataclass(frozen=True)
class LinkCost:
    """What the all-reduce costs on one kind of network."""

    s_per_byte: float
    latency_s: float

    def all_reduce_s(self, workers: int, message_bytes: float) -> float:
        """Of a ring (Thakur et al. 2005)."""
        volume, turns = ring_terms(workers, message_bytes)
        return volume * self.s_per_byte + turns * self.latency_s


@dataclass(frozen=True)
class StepModel:
    """The fitted model."""

    step_s: float
    """``a``: of each step, however many images it has."""
    image_s: float
    """``b``"""
    own_input_s: float
    """``c``"""
    shared_input_s: float
    """``d``"""
    within: LinkCost | None
    """Within a node. None: not measured."""
    between: LinkCost | None
    """Over several nodes. None: not measured."""
    gradient_bytes: float
    per_node: int
    """Devices of a node."""

    def link(self, workers: int) -> LinkCost:
        """The network that so many workers use, or the other one if theirs was not measured."""
        first, second = (self.within, self.between) if workers <= self.per_node else (self.between, self.within)
        return first or second or LinkCost(0.0, 0.0)

    def times(self, workers: int, images_per_worker: float) -> StepTimes:
        """A step of so many workers, of whom each has so many images."""
        return StepTimes(
            workers=workers,
            images_per_worker=images_per_worker,
            compute_s=self.step_s + self.image_s * images_per_worker,
            data_s=self.own_input_s * images_per_worker + self.shared_input_s * images_per_worker * workers,
            communication_s=self.link(workers).all_reduce_s(workers, self.gradient_bytes),
        )


def ring_terms(workers: int, message_bytes: float) -> tuple[float, float]:
    """Bytes that each worker sends in a ring all-reduce, and the times that it waits for a neighbour."""
    return 2 * (workers - 1) / workers * message_bytes, 2 * (workers - 1)


def fit_step_model(measured: Sequence[StepTimes], gradient_bytes: float, per_node: int) -> StepModel:
    """Fit the model to at least one size. Terms that the sizes cannot tell apart share their cost in some way."""
    images = [one.images_per_worker for one in measured]
    everywhere = [one.images_per_worker * one.workers for one in measured]
    # Relative errors: otherwise the largest sizes alone would decide the fit.
    weights = [1 / max(one.step_s, 1e-12) for one in measured]
    ones = [1.0] * len(measured)
    step_s, image_s = _least_squares([ones, images], [one.compute_s for one in measured], weights)
    own_s, shared_s = _least_squares([images, everywhere], [one.data_s for one in measured], weights)
    return StepModel(
        step_s=step_s,
        image_s=image_s,
        own_input_s=own_s,
        shared_input_s=shared_s,
        within=_link([one for one in measured if 1 < one.workers <= per_node], gradient_bytes),
        between=_link([one for one in measured if one.workers > max(1, per_node)], gradient_bytes),
        gradient_bytes=gradient_bytes,
        per_node=per_node,
    )


def left_out_errors(measured: Sequence[StepTimes], gradient_bytes: float, per_node: int) -> dict[int, float]:
    """By workers: the relative error of the step's time at each size, by a model of all the other sizes.

    0.1: the model says 10 % more than was measured. Empty for fewer than ``FEWEST_SIZES`` sizes.
    """
    if len(measured) < FEWEST_SIZES:
        return {}
    errors = {}
    for one in measured:
        others = [other for other in measured if other is not one]
        said = fit_step_model(others, gradient_bytes, per_node).times(one.workers, one.images_per_worker)
        errors[one.workers] = said.step_s / one.step_s - 1
    return errors


def _link(measured: Sequence[StepTimes], gradient_bytes: float) -> LinkCost | None:
    if not measured:
        return None
    terms = [ring_terms(one.workers, gradient_bytes) for one in measured]
    columns = [[volume for volume, _ in terms], [turns for _, turns in terms]]
    weights = [1 / max(one.step_s, 1e-12) for one in measured]
    return LinkCost(*_least_squares(columns, [one.communication_s for one in measured], weights))


def _least_squares(
    columns: Sequence[Sequence[float]], values: Sequence[float], weights: Sequence[float]
) -> tuple[float, float]:
    """The two factors, at least 0, with the least sum of squares of ``weight · (sum of columns − value)``.

    If the columns are proportional to each other, the first one gets everything: one term explains what two cannot
    divide.
    """
    from scipy.optimize import nnls  # slow to import

    matrix = np.array(columns, dtype=np.float64).T * np.array(weights)[:, None]
    target = np.array(values, dtype=np.float64) * weights
    sizes = np.linalg.norm(matrix, axis=0)
    # A column of zeros has no length to divide by.
    sizes[sizes == 0] = 1.0
    scaled = matrix / sizes
    # Parallel columns: a fit could share the cost between them as it liked.
    if abs(scaled[:, 0] @ scaled[:, 1]) > 1 - 1e-9:
        return float(max(0.0, scaled[:, 0] @ target) / sizes[0]), 0.0
    found, _ = nnls(scaled, target)
    first, second = (float(value) for value in found / sizes)
    return first, second
