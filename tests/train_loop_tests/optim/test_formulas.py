"""LARS, LAMB and their groups against float64 formulas written out here."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from bigbatch.train_loop.optim import LAMB, LARS
from helpers.reference_steps import SHAPES, WARMUP, check_against, lamb_reference, lars_reference, make_arrays, run

pytestmark = pytest.mark.usefixtures("each_way")


@pytest.mark.parametrize("convention", ["in", "out"])
@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("trust_ratio", [False, True])
@pytest.mark.parametrize(("m", "wd", "eps"), [(0.9, 0.02, 0.0), (0.5, 0.0, 0.1), (0.0, 0.1, 1e-3)])
def test_lars_takes_the_papers_steps_under_warmup_and_decay(convention, nesterov, trust_ratio, m, wd, eps):
    def optimizer_of(params):
        groups = [{"params": params, "trust_ratio": trust_ratio}]
        return LARS(groups, 1.0, m, wd, 0.05, nesterov, momentum_convention=convention, eps=eps)

    options = {
        "m": m,
        "wd": wd,
        "eta": 0.05,
        "eps": eps,
        "nesterov": nesterov,
        "convention": convention,
        "trust_ratio": trust_ratio,
    }
    rates = [r if trust_ratio else 0.1 * r for r in WARMUP]
    check_against(lars_reference, optimizer_of, rates, **options)


@pytest.mark.parametrize("trust_ratio", [False, True])
@pytest.mark.parametrize("bias_correction", [False, True])
@pytest.mark.parametrize(("betas", "eps", "wd"), [((0.9, 0.999), 1e-6, 0.01), ((0.8, 0.95), 0.1, 0.0)])
def test_lamb_takes_the_papers_steps_under_warmup_and_decay(trust_ratio, bias_correction, betas, eps, wd):
    def optimizer_of(params):
        return LAMB([{"params": params, "trust_ratio": trust_ratio}], 1.0, betas, eps, wd, bias_correction)

    options = {"betas": betas, "eps": eps, "wd": wd, "bias_correction": bias_correction, "trust_ratio": trust_ratio}
    check_against(lamb_reference, optimizer_of, [0.02 * r for r in WARMUP], **options)


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
    check_against(
        lars_reference,
        lambda params: LARS(params, 1.0, 0.9, 0.02, 0.05, maximize=True),
        WARMUP,
        m=0.9,
        wd=0.02,
        eta=0.05,
        maximize=True,
    )
    check_against(
        lamb_reference,
        lambda params: LAMB(params, maximize=True),
        [0.02 * r for r in WARMUP],
        betas=(0.9, 0.999),
        eps=1e-6,
        wd=0.01,
        maximize=True,
    )


@pytest.mark.parametrize("nesterov", [False, True])
def test_lars_conventions_agree_at_a_constant_rate_and_differ_under_warmup(nesterov):
    weights = make_arrays(SHAPES, seed=1)

    def weights_after(convention, rates):
        return run(
            lambda params: LARS(params, 1.0, 0.9, 0.01, 0.05, nesterov, momentum_convention=convention),
            weights,
            lambda t: make_arrays(SHAPES, seed=t + 20),
            rates,
        )

    for inside, outside in zip(weights_after("in", [0.7] * 6), weights_after("out", [0.7] * 6), strict=True):
        np.testing.assert_allclose(inside, outside, rtol=1e-12)
    gaps = [
        np.abs(inside - outside).max()
        for inside, outside in zip(weights_after("in", WARMUP), weights_after("out", WARMUP), strict=True)
    ]
    assert min(gaps) > 1e-3


@pytest.mark.parametrize("nesterov", [False, True])
def test_without_trust_ratio_lars_out_is_torch_sgd_and_lamb_is_torch_adamw(nesterov):
    weights, rates = make_arrays(SHAPES, seed=1), [0.1 * r for r in WARMUP]

    def run_with(optimizer_of):
        return run(optimizer_of, weights, lambda t: make_arrays(SHAPES, seed=t + 20), rates)

    options = {"lr": 1.0, "momentum": 0.9, "weight_decay": 0.03, "nesterov": nesterov}
    pairs = [
        (
            run_with(lambda params: LARS(params, **options, momentum_convention="out", trust_ratio=False)),
            run_with(lambda params: torch.optim.SGD(params, **options)),
        ),
        (
            run_with(lambda params: LAMB(params, weight_decay=0.03, eps=1e-8, trust_ratio=False)),
            run_with(lambda params: torch.optim.AdamW(params, weight_decay=0.03, eps=1e-8)),
        ),
    ]
    for ours, theirs in pairs:
        for a, b in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("convention", ["in", "out"])
def test_lars_uses_ratio_one_where_a_norm_is_zero(convention):
    zeros, ones = np.zeros(4), np.ones(4)
    new = run(
        lambda params: LARS(params, 1.0, 0.0, 0.5, 0.001, momentum_convention=convention),
        [zeros, ones, zeros],
        lambda t: [ones, zeros, zeros],
        [0.1],
    )
    np.testing.assert_allclose(new[0], -0.1 * ones)  # ‖w‖ = 0: w − lr·g
    np.testing.assert_allclose(new[1], (1 - 0.1 * 0.5) * ones)  # ‖g‖ = 0: decay alone, unscaled
    np.testing.assert_array_equal(new[2], zeros)


def test_lamb_uses_ratio_one_where_a_norm_is_zero():
    zeros, ones = np.zeros(4), np.ones(4)
    new = run(
        lambda params: LAMB(params, weight_decay=0.0), [zeros, 3 * ones, zeros], lambda t: [ones, zeros, zeros], [0.1]
    )
    np.testing.assert_allclose(new[0], -0.1 * ones, rtol=1e-5)  # first Adam step has size lr
    np.testing.assert_array_equal(new[1], 3 * ones)  # u = 0
    np.testing.assert_array_equal(new[2], zeros)


def test_lars_step_does_not_depend_on_the_gradients_scale_without_decay():
    weights, grads = make_arrays(SHAPES, seed=1), make_arrays(SHAPES, seed=2)

    def step_with(scale):
        return run(lambda params: LARS(params, 1.0), weights, lambda t: [scale * g for g in grads], WARMUP)

    for small, large in zip(step_with(1e-6), step_with(1e5), strict=True):
        np.testing.assert_allclose(small, large, rtol=1e-12)


def test_first_step_of_a_layer_moves_it_by_lr_times_the_papers_part_of_its_norm():
    w, g = make_arrays([(5, 4), (5, 4)], seed=3)
    (lars,) = run(lambda params: LARS(params, 1.0, trust_coefficient=0.02), [w], lambda t: [g], [3.0])
    assert np.linalg.norm(lars - w) == pytest.approx(3.0 * 0.02 * np.linalg.norm(w))
    (lamb,) = run(lambda params: LAMB(params), [w], lambda t: [g], [0.05])
    assert np.linalg.norm(lamb - w) == pytest.approx(0.05 * np.linalg.norm(w))


def test_lamb_uses_the_ratio_without_decay_where_the_flag_says_so():
    w, g = make_arrays([(5, 4), (5, 4)], seed=3)
    sizes = []
    for flag in (True, False):
        (new,) = run(lambda p, on=flag: LAMB(p, weight_decay=0.0, trust_ratio=on), [w], lambda t: [g], [0.05])
        sizes.append(np.linalg.norm(new - w))
    assert sizes[0] == pytest.approx(0.05 * np.linalg.norm(w))
    assert sizes[1] == pytest.approx(0.05 * math.sqrt(20), rel=1e-4)  # every element moves by lr
