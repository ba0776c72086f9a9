"""The trust ratios that LARS and LAMB show, against formulas in float64; showing changes nothing."""

import copy

import numpy as np
import pytest
import torch

from bigbatch.train_loop.loop.train import quantiles_of
from bigbatch.train_loop.optim import LAMB, LARS
from bigbatch.train_loop.optim.layerwise import LayerwiseOptimizer

pytestmark = pytest.mark.usefixtures("each_way")

SHAPES = [(5, 3), (7,), (2, 2, 3)]
ETA, DECAY, EPS = 0.02, 0.1, 1e-6


def parameters(dtype: torch.dtype = torch.float32) -> list[torch.nn.Parameter]:
    draws = torch.Generator().manual_seed(4)
    made = [torch.nn.Parameter(torch.randn(shape, generator=draws).to(dtype)) for shape in SHAPES]
    for parameter in made:
        parameter.grad = torch.randn(parameter.shape, generator=draws).to(dtype)
    return made


def groups(made: list[torch.nn.Parameter]) -> list[dict]:
    """The second parameter is a bias: plain steps."""
    return [{"params": [made[0], made[2]]}, {"params": [made[1]], "trust_ratio": False}]


def lars(made: list[torch.nn.Parameter]) -> LARS:
    return LARS(groups(made), 0.5, weight_decay=DECAY, trust_coefficient=ETA)


def lamb(made: list[torch.nn.Parameter]) -> LAMB:
    return LAMB(groups(made), 0.5, weight_decay=DECAY, eps=EPS)


def of_lars(w: np.ndarray, g: np.ndarray) -> float:
    return float(ETA * np.linalg.norm(w) / (np.linalg.norm(g) + DECAY * np.linalg.norm(w)))


def of_lamb(w: np.ndarray, g: np.ndarray) -> float:
    """Of the first step, where the corrected moments are g and g²."""
    return float(np.linalg.norm(w) / np.linalg.norm(g / (np.abs(g) + EPS) + DECAY * w))


@pytest.mark.parametrize(("make", "formula"), [(lars, of_lars), (lamb, of_lamb)])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)])
def test_the_ratios_are_those_of_the_last_step(make, formula, dtype: torch.dtype, tolerance: float) -> None:
    made = parameters(dtype)
    arrays = [(p.detach().double().numpy().ravel(), p.grad.double().numpy().ravel()) for p in made]
    optimizer: LayerwiseOptimizer = make(made)
    optimizer.keep_trust_ratios()
    assert optimizer.trust_ratios().numel() == 0
    optimizer.step()
    expected = [formula(*arrays[0]), formula(*arrays[2])]
    np.testing.assert_allclose(optimizer.trust_ratios().double().numpy(), expected, rtol=tolerance)
    for _ in range(3):
        optimizer.step()
    assert optimizer.trust_ratios().shape == (2,), "those of one step, not of all"


@pytest.mark.parametrize("make", [lars, lamb])
def test_keeping_them_changes_no_step(make) -> None:
    plain, kept = parameters(), parameters()
    optimizers = make(plain), make(kept)
    optimizers[1].keep_trust_ratios()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.step()
    assert optimizers[0].trust_ratios().numel() == 0
    for one, other in zip(plain, kept, strict=True):
        assert torch.equal(one, other)


def test_a_copied_optimizer_still_steps() -> None:
    optimizer = lars(parameters())
    optimizer.keep_trust_ratios()
    optimizer.step()
    copied = copy.deepcopy(optimizer)  # torch copies no attributes
    for group in copied.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.ones_like(parameter)
    copied.step()
    assert copied.trust_ratios().numel() == 0


def test_quantiles_go_from_the_least_to_the_greatest() -> None:
    found = quantiles_of(torch.tensor([3.0, 1.0, 2.0, 5.0, 4.0]))
    assert found == {"0": 1.0, "0.25": 2.0, "0.5": 3.0, "0.75": 4.0, "1": 5.0}
    assert quantiles_of(torch.tensor([1.0, torch.nan, torch.inf])) == dict.fromkeys(found, 1.0)
    assert quantiles_of(torch.empty(0)) is None and quantiles_of(torch.tensor([torch.nan])) is None
