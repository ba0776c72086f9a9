"""What the run of a configuration would cost, so that the hours of a search do not go into a few expensive runs.

Runs of one search may differ in cost by a factor: by batch, optimizer, network, or number of epochs. The search is paid
in hours. So a proposal is judged by its probability of improvement for each hour, as Snoek et al. 2012 (arXiv
1206.2944, section 3.2) divide the expected improvement by the expected seconds. But costs are told apart only
above ``USUAL`` times the median: to divide by small differences draws the search towards what is cheap, e.g. to larger
batches, and lost as much as it saved by replay (docs/decisions/025).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bigbatch.tune.strategies.curve_history import Curve
from bigbatch.tune.strategies.curve_model import matern_52, squared_distances
from bigbatch.tune.strategies.one_thread import on_one_thread

Array = NDArray[np.float64]
USUAL = 1.5
"""Times the median run: up to this, all runs count as equally expensive."""
FEWEST_RUNS = 3
NOISE = 0.05
"""Variance of the noise, as a part of the variance of the logarithms."""


@on_one_thread
def surcharge(curves: Sequence[Curve], features: Array, peers: Sequence[int], at: Array) -> Array:
    """How much more expensive than usual the runs of other configurations will be.

    The cost of a run is predicted by the mean of a Gaussian process on its logarithm (Rasmussen and Williams 2006, eq.
    2.25; Matérn-5/2 with one fixed length), from the epoch times of all curves.

    Args:
        curves: what was run.
        features: (n, d): their configurations in unit coordinates.
        peers: places of the curves with which the others compare. The usual cost is the median of these.
        at: (m, d): the other configurations.

    Returns:
        (m,): the logarithm of predicted cost / (USUAL × median cost), at least 0. All 0 if fewer than three peers'
        costs are known, or none is above USUAL × median.
    """
    known = np.array([i for i, curve in enumerate(curves) if curve.run_s is not None], int)
    costs = np.log([run_s for curve in curves if (run_s := curve.run_s) is not None])
    usual = costs[np.isin(known, list(peers))]
    if len(usual) < FEWEST_RUNS or costs.max() <= (most := np.median(usual) + np.log(USUAL)):
        return np.zeros(len(at))  # the common case, in which nothing is to be predicted
    mean, length = costs.mean(), 0.5 * np.sqrt(max(at.shape[1], 1))
    gram, _ = matern_52(squared_distances(features[known], features[known], 1 / length))
    cross, _ = matern_52(squared_distances(at, features[known], 1 / length))
    predicted = mean + cross @ np.linalg.solve(gram + NOISE * np.eye(len(known)), costs - mean)
    return np.asarray(np.maximum(0.0, predicted - most))
