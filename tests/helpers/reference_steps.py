"""LARS, LARC and LAMB in float64, written from the papers, and how an optimizer is compared with them."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import nn

SHAPES = [(4, 3, 3, 3), (7, 5), (6,), ()]
WARMUP = [0.5, 1.0, 1.5, 2.0, 1.0, 0.25]
LAMB_RATES = [0.02 * rate for rate in WARMUP]


def make_arrays(shapes, seed, scale=1.0):
    rng = np.random.default_rng(seed)
    return [scale * rng.standard_normal(shape) for shape in shapes]


def norm(*arrays):
    return math.sqrt(sum(float((a * a).sum()) for a in arrays))


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


def lars_reference(w, grads, rates, *, m, wd, eta, eps=0.0, nesterov=False, convention="in", trust_ratio=True):
    """You et al. 2017, Alg. 1, one tensor, float64."""
    w, b = np.array(w, dtype=np.float64), np.zeros_like(w, dtype=np.float64)
    for g, lr in zip(grads, rates, strict=True):
        r = 1.0
        if trust_ratio and norm(w) > 0 and norm(g) > 0:
            r = eta * norm(w) / (norm(g) + wd * norm(w) + eps)
        d = r * (g + wd * w)
        if convention == "in":
            b = m * b + lr * d
            w = w - ((lr * d + m * b) if nesterov else b)
        else:
            b = m * b + d
            w = w - lr * ((d + m * b) if nesterov else b)
    return w


def larc_reference(w, grads, rates, *, m, wd, eta, eps, mode, nesterov=False):
    """apex/parallel/LARC.py around SGD, one tensor; with whether each step was clipped."""
    w, b, clipped = np.array(w), np.zeros_like(w), []
    for g, lr in zip(grads, rates, strict=True):
        if norm(w) != 0 and norm(g) != 0:
            adaptive = eta * norm(w) / (norm(g) + norm(w) * wd + eps)
            clipped.append(adaptive > lr)
            g = (g + wd * w) * (min(adaptive / lr, 1) if mode == "clip" else adaptive)
        b = m * b + g
        w = w - lr * ((g + m * b) if nesterov else b)
    return w, clipped


def lamb_reference(
    w, grads, rates, *, wd, betas=(0.9, 0.999), eps=1e-6, bias_correction=True, trust_ratio=True, bounds=(0.0, math.inf)
):
    """You et al. 2020, Alg. 2, one tensor, float64, with what apex, DeepSpeed and timm change."""
    w = np.array(w, dtype=np.float64)
    m, v = np.zeros_like(w), np.zeros_like(w)
    for t, (g, lr) in enumerate(zip(grads, rates, strict=True), start=1):
        m = betas[0] * m + (1 - betas[0]) * g
        v = betas[1] * v + (1 - betas[1]) * g * g
        c1, c2 = (1 - betas[0] ** t, 1 - betas[1] ** t) if bias_correction else (1.0, 1.0)
        u = (m / c1) / (np.sqrt(v / c2) + eps) + wd * w
        r = 1.0
        if trust_ratio and norm(w) > 0 and norm(u) > 0:
            r = min(max(norm(w) / norm(u), bounds[0]), bounds[1])
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
