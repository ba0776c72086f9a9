"""Losses against the published formulas in float64, written out here."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from train_loop.losses import training_loss


def targets(labels: np.ndarray, classes: int, smoothing: float) -> np.ndarray:
    q = np.full((len(labels), classes), smoothing / classes)
    q[np.arange(len(labels)), labels] += 1 - smoothing
    return q


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_losses(smoothing: float) -> None:
    rng = np.random.default_rng(0)
    z, labels = 3 * rng.standard_normal((7, 5)), rng.integers(0, 5, 7)
    q = targets(labels, 5, smoothing)
    p = 1 / (1 + np.exp(-z))
    softmax = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    expected = {
        "bce": -(q * np.log(p) + (1 - q) * np.log(1 - p)).mean(),
        "cross_entropy": -(q * np.log(softmax)).sum(1).mean(),
    }
    for kind, value in expected.items():
        found = training_loss(torch.tensor(z), torch.tensor(labels), kind, smoothing)
        assert found.item() == pytest.approx(value, rel=1e-12)
    with pytest.raises(ValueError, match="got 'mse'"):
        training_loss(torch.tensor(z), torch.tensor(labels), "mse", smoothing)


def test_bce_is_finite_at_logits_that_saturate_the_sigmoid() -> None:
    z = torch.tensor([[200.0, -200.0]])
    assert training_loss(z, torch.tensor([1]), "bce", 0.0).item() == pytest.approx(200.0)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_shares_of_mixed_classes_are_the_mixture_of_their_losses(smoothing: float) -> None:
    """Both losses are linear in the targets: 0.3·A + 0.7·B costs 0.3 of A's loss and 0.7 of B's (Zhang et al. 2018)."""
    generator = torch.Generator().manual_seed(1)
    z = torch.randn(5, 4, generator=generator, dtype=torch.float64)
    a, b = torch.tensor([0, 1, 2, 3, 0]), torch.tensor([3, 3, 1, 0, 0])
    shares = 0.3 * torch.nn.functional.one_hot(a, 4).double() + 0.7 * torch.nn.functional.one_hot(b, 4).double()
    for kind in ("cross_entropy", "bce"):
        mixed = training_loss(z, shares, kind, smoothing)
        apart = 0.3 * training_loss(z, a, kind, smoothing) + 0.7 * training_loss(z, b, kind, smoothing)
        assert mixed.item() == pytest.approx(apart.item(), rel=1e-12)
