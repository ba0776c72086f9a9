"""LARS, LAMB and their groups against float64 formulas."""

import numpy as np
import pytest
import torch

from bigbatch.train_loop.optim import LAMB, LARS
from helpers.reference_steps import (
    LAMB_RATES,
    SHAPES,
    WARMUP,
    check_against,
    lamb_reference,
    lars_reference,
    make_arrays,
    run,
)  # fmt: skip

pytestmark = pytest.mark.usefixtures("each_way")


@pytest.mark.parametrize("convention", ["in", "out"])
@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("trust_ratio", [False, True])
@pytest.mark.parametrize(("m", "wd", "eps"), [(0.9, 0.02, 0.0), (0.5, 0.0, 0.1), (0.0, 0.1, 1e-3)])
def test_lars_takes_the_papers_steps_under_warmup_and_decay(convention, nesterov, trust_ratio, m, wd, eps):
    def optimizer_of(params):
        groups = [{"params": params, "trust_ratio": trust_ratio}]
        return LARS(groups, 1.0, m, wd, 0.05, nesterov, momentum_convention=convention, eps=eps)

    options = {"m": m, "wd": wd, "eta": 0.05, "eps": eps, "nesterov": nesterov, "convention": convention}
    rates = [r if trust_ratio else 0.1 * r for r in WARMUP]
    check_against(lars_reference, optimizer_of, rates, **options, trust_ratio=trust_ratio)


@pytest.mark.parametrize("trust_ratio", [False, True])
@pytest.mark.parametrize("bias_correction", [False, True])
@pytest.mark.parametrize(("betas", "eps", "wd"), [((0.9, 0.999), 1e-6, 0.01), ((0.8, 0.95), 0.1, 0.0)])
def test_lamb_takes_the_papers_steps_under_warmup_and_decay(trust_ratio, bias_correction, betas, eps, wd):
    def optimizer_of(params):
        return LAMB([{"params": params, "trust_ratio": trust_ratio}], 1.0, betas, eps, wd, bias_correction)

    options = {"betas": betas, "eps": eps, "wd": wd, "bias_correction": bias_correction}
    check_against(lamb_reference, optimizer_of, LAMB_RATES, **options, trust_ratio=trust_ratio)


@pytest.mark.parametrize("nesterov", [False, True])
def test_lars_keeps_the_digits_of_factors_far_below_one(nesterov):
    """1 − (1 − 1e-15), as the fused kernel gets its factor, is a tenth too large."""
    weights, grads = make_arrays(SHAPES, seed=1), make_arrays(SHAPES, seed=2, scale=1e12)
    found = run(
        lambda params: LARS(params, 1.0, 0.9, 0.02, 0.001, nesterov), weights, lambda t: grads, WARMUP, torch.float32
    )
    for w, g, got in zip(weights, grads, found, strict=True):
        want = lars_reference(w, [g] * len(WARMUP), WARMUP, m=0.9, wd=0.02, eta=0.001, nesterov=nesterov)
        np.testing.assert_allclose(got - w, want - w, rtol=1e-3, atol=1e-6)


def test_maximize_ascends():
    options = {"wd": 0.02, "maximize": True}
    lars = lambda params: LARS(params, 1.0, 0.9, 0.02, 0.05, maximize=True)  # noqa: E731
    check_against(lars_reference, lars, WARMUP, m=0.9, eta=0.05, **options)
    lamb = lambda params: LAMB(params, weight_decay=0.02, maximize=True)  # noqa: E731
    check_against(lamb_reference, lamb, LAMB_RATES, **options)


@pytest.mark.parametrize("convention", ["in", "out"])
def test_the_ratio_is_one_where_a_norm_is_zero(convention):
    zeros, ones = np.zeros(4), np.ones(4)
    weights, grads = [zeros, ones, zeros], [ones, zeros, zeros]
    lars = run(
        lambda params: LARS(params, 1.0, 0.0, 0.5, 0.001, momentum_convention=convention),
        weights, lambda t: grads, [0.1],
    )  # fmt: skip
    np.testing.assert_allclose(lars[0], -0.1 * ones)  # ‖w‖ = 0: w − lr·g
    np.testing.assert_allclose(lars[1], (1 - 0.1 * 0.5) * ones)  # ‖g‖ = 0: decay alone, unscaled
    lamb = run(lambda params: LAMB(params, weight_decay=0.0), weights, lambda t: grads, [0.1])
    np.testing.assert_allclose(lamb[0], -0.1 * ones, rtol=1e-5)  # first Adam step has size lr
    np.testing.assert_array_equal(lamb[1], ones)  # u = 0
    for new in (lars, lamb):
        np.testing.assert_array_equal(new[2], zeros)
