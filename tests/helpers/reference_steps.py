"""LARS and LAMB in float64, written from the papers, and how an optimizer is compared with them."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import nn

SHAPES = [(4, 3, 3, 3), (7, 5), (6,), ()]

WARMUP = [0.5, 1.0, 1.5, 2.0, 1.0, 0.25]


def make_arrays(shapes, seed, scale=1.0):
    rng = np.random.default_rng(seed)
    return [scale * rng.standard_normal(shape) for shape in shapes]


def run(optimizer_of, weights, grads_of, rates, dtype=torch.float64):
    """Step through ``rates``; ``grads_of(t)`` gives the arrays of step t. Returns arrays."""
    params = [nn.Parameter(torch.tensor(w, dtype=dtype)) for w in weights]
    optimizer = optimizer_of(params)
    for t, lr in enumerate(rates):
        for group in optimizer.param_groups:
            group["lr"] = lr
        for p, g in zip(params, grads_of(t), strict=True):
            p.grad = torch.tensor(g, dtype=dtype)
        optimizer.step()
    return [p.detach().double().numpy() for p in params]


def lars_reference(
    w, grads, rates, *, m, wd, eta, eps=0.0, nesterov=False, convention="in", trust_ratio=True, maximize=False
):
    """You et al. 2017, Alg. 1, one tensor, float64."""
    w, b = np.array(w, dtype=np.float64), np.zeros_like(w, dtype=np.float64)
    for g, lr in zip(grads, rates, strict=True):
        g = -g if maximize else g
        w_norm, g_norm = math.sqrt((w * w).sum()), math.sqrt((g * g).sum())
        r = 1.0
        if trust_ratio and w_norm > 0 and g_norm > 0:
            r = eta * w_norm / (g_norm + wd * w_norm + eps)
        d = r * (g + wd * w)
        if convention == "in":
            b = m * b + lr * d
            w = w - ((lr * d + m * b) if nesterov else b)
        else:
            b = m * b + d
            w = w - lr * ((d + m * b) if nesterov else b)
    return w


def lamb_reference(w, grads, rates, *, betas, eps, wd, bias_correction=True, trust_ratio=True, maximize=False):
    """You et al. 2020, Alg. 2, one tensor, float64."""
    w = np.array(w, dtype=np.float64)
    m, v = np.zeros_like(w), np.zeros_like(w)
    for t, (g, lr) in enumerate(zip(grads, rates, strict=True), start=1):
        g = -g if maximize else g
        m = betas[0] * m + (1 - betas[0]) * g
        v = betas[1] * v + (1 - betas[1]) * g * g
        c1, c2 = (1 - betas[0] ** t, 1 - betas[1] ** t) if bias_correction else (1.0, 1.0)
        u = (m / c1) / (np.sqrt(v / c2) + eps) + wd * w
        w_norm, u_norm = math.sqrt((w * w).sum()), math.sqrt((u * u).sum())
        r = w_norm / u_norm if trust_ratio and w_norm > 0 and u_norm > 0 else 1.0
        w = w - lr * r * u
    return w


def check_against(reference, optimizer_of, rates, **options):
    weights = make_arrays(SHAPES, seed=1)
    steps = [make_arrays(SHAPES, seed=10 + t, scale=0.3) for t in range(len(rates))]
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 2e-5)):
        found = run(optimizer_of, weights, lambda t: steps[t], rates, dtype)
        for i, w in enumerate(weights):
            expected = reference(w, [s[i] for s in steps], rates, **options)
            np.testing.assert_allclose(found[i], expected, rtol=tolerance, atol=tolerance)
