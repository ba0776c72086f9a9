"""LARS and LAMB against timm and optax, at the settings where their conventions are ours; two ranks against one.

timm and optax are in the extra ``test``; where one is not installed its tests are skipped.
"""

import inspect
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bigbatch.train_loop.optim import LAMB, LARS
from helpers.paths import ROOT
from helpers.reference_steps import LAMB_RATES, SHAPES, make_arrays, run
from helpers.reference_steps import WARMUP as RATES

WEIGHTS = make_arrays(SHAPES[:3], 1)
GRADIENTS = [make_arrays(SHAPES[:3], 10 + t, 0.3) for t in range(len(RATES))]


def torch_weights(optimizer_of, rates: list[float]) -> list[np.ndarray]:
    return run(optimizer_of, WEIGHTS, lambda t: GRADIENTS[t], rates)


def agree(a: list[np.ndarray], b: list[np.ndarray], rtol: float) -> None:
    for x, y in zip(a, b, strict=True):
        np.testing.assert_allclose(x, y, rtol=rtol, atol=rtol)


# --- timm: LARS with momentum "out", LAMB with the norm clipped to 1; both without ratio where the decay is 0 ---


def told(optimizer: Any, foreach: bool) -> dict[str, bool]:
    """The option ``foreach``. Earlier versions of timm have one implementation alone, without that option."""
    if "foreach" in inspect.signature(optimizer).parameters:
        return {"foreach": foreach}
    if foreach:
        pytest.skip("this version of timm has no foreach")
    return {}


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("trust_clip", [False, True])
def test_timm_lars(nesterov: bool, trust_clip: bool, foreach: bool) -> None:
    optim = pytest.importorskip("timm.optim", reason="timm is not installed (extra: test)")
    options: dict[str, Any] = {"momentum": 0.9, "weight_decay": 0.02, "nesterov": nesterov}
    larc = "clip" if trust_clip else "off"
    rates = [0.3 * r for r in RATES]  # with η = 0.1 on both sides of the clip
    theirs = torch_weights(
        lambda p: optim.Lars(p, lr=1.0, trust_coeff=0.1, trust_clip=trust_clip, **told(optim.Lars, foreach), **options),
        rates,
    )
    ours = torch_weights(
        lambda p: LARS(p, 1.0, trust_coefficient=0.1, eps=1e-8, momentum_convention="out", larc=larc, **options), rates
    )
    agree(ours, theirs, 1e-10)


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ({}, {"nvlamb": False}),
        ({"always_adapt": True}, {}),
        ({"trust_clip": True, "always_adapt": True}, {"trust_bounds": (0.0, 1.0)}),
        ({"decoupled_decay": True, "always_adapt": True}, {"decay_in_ratio": False}),
        ({"bias_correction": False, "max_grad_norm": None}, {"bias_correction": False, "max_grad_norm": 0.0}),
    ],
)
@pytest.mark.parametrize("wd", [0.0, 0.3])
def test_timm_lamb(theirs: dict[str, Any], ours: dict[str, Any], wd: float, foreach: bool) -> None:
    optim = pytest.importorskip("timm.optim", reason="timm is not installed (extra: test)")
    ours = {**ours, "nvlamb": False} if wd == 0 and not theirs.get("always_adapt") else {"nvlamb": True, **ours}
    expected = torch_weights(
        lambda p: optim.Lamb(p, weight_decay=wd, **told(optim.Lamb, foreach), **theirs), LAMB_RATES
    )
    # timm divides by ‖G‖/c, we multiply by c/‖G‖; its step number is float32 where ours is exact.
    agree(
        torch_weights(lambda p: LAMB(p, weight_decay=wd, **{"max_grad_norm": 1.0, **ours}), LAMB_RATES), expected, 1e-6
    )


# --- optax: LARS with momentum "in" and η‖w‖/‖g + λw‖, which is the paper's at λ = 0; LAMB as in the paper ---


def optax_weights(make: Any) -> list[np.ndarray]:
    jax = pytest.importorskip("jax", reason="optax is not installed (extra: test)")
    optax = pytest.importorskip("optax", reason="optax is not installed (extra: test)")
    with jax.enable_x64(True):
        params = [jax.numpy.asarray(w) for w in WEIGHTS]
        transform = make(optax, lambda step: jax.numpy.asarray(RATES)[step])
        state = transform.init(params)
        for grads in GRADIENTS:
            updates, state = transform.update([jax.numpy.asarray(g) for g in grads], state, params)
            params = optax.apply_updates(params, updates)
        return [np.asarray(p) for p in params]


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("eps", [0.0, 0.1])
def test_optax_lars_without_decay(nesterov: bool, eps: float) -> None:
    expected = optax_weights(
        lambda optax, rate: optax.lars(rate, trust_coefficient=0.1, eps=eps, momentum=0.9, nesterov=nesterov)
    )
    ours = torch_weights(lambda p: LARS(p, 1.0, 0.9, trust_coefficient=0.1, eps=eps, nesterov=nesterov), RATES)
    agree(ours, expected, 1e-10)


@pytest.mark.parametrize("wd", [0.0, 0.3])
def test_optax_lamb(wd: float) -> None:
    def make(optax: Any, rate: Any) -> Any:
        return optax.lamb(lambda step: 0.02 * rate(step), b1=0.8, b2=0.95, eps=1e-6, weight_decay=wd)

    ours = torch_weights(lambda p: LAMB(p, betas=(0.8, 0.95), weight_decay=wd), LAMB_RATES)
    agree(ours, optax_weights(make), 1e-6)  # optax raises β to an int32 power in float32


# --- DDP ---

TWO_RANKS = """
import gc, sys
import torch, torch.distributed as dist
from torch import nn
from bigbatch.train_loop.optim import LAMB, LARS, parameter_groups

folder, rank, workers = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
torch.set_num_threads(1)
if workers > 1:
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=workers)
for name in ("lars", "lamb"):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 6, 3), nn.GroupNorm(2, 6), nn.ReLU(), nn.Flatten(), nn.Linear(96, 4)).double()
    images, labels = torch.randn(16, 3, 6, 6).double(), torch.arange(16) % 4
    groups = parameter_groups(model, 0.01)
    optimizer = LARS(groups, 2.0, nesterov=True) if name == "lars" else LAMB(groups, 0.05, max_grad_norm=1.0)
    parallel = nn.parallel.DistributedDataParallel(model) if workers > 1 else model
    for _ in range(5):
        optimizer.zero_grad(set_to_none=True)
        nn.functional.cross_entropy(parallel(images[rank::workers]), labels[rank::workers]).backward()
        optimizer.step()
    torch.save([p.detach() for p in model.parameters()], f"{folder}/{name}-{workers}-{rank}.pt")
    del parallel
    gc.collect()
if workers > 1:
    dist.destroy_process_group()
"""


def test_two_ranks_take_the_steps_of_one(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    start = [sys.executable, "-c", TWO_RANKS, str(tmp_path)]
    ranks = [subprocess.Popen([*start, *which], env=environment) for which in ("01", "02", "12")]
    assert [process.wait(timeout=300) for process in ranks] == [0, 0, 0]
    for name in ("lars", "lamb"):
        one, first, second = (torch.load(tmp_path / f"{name}-{run}.pt") for run in ("1-0", "2-0", "2-1"))
        for a, b, c in zip(one, first, second, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12)
            assert torch.equal(b, c)
