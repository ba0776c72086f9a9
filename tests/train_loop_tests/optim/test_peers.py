"""LARS and LAMB against timm, at the settings where its conventions are ours.

timm is in the extra ``test``; where it is not installed these tests are skipped.
"""

from typing import Any

import numpy as np
import pytest

from bigbatch.train_loop.optim import LAMB, LARS
from helpers.reference_steps import LAMB_RATES, SHAPES, WARMUP as RATES, make_arrays, run

WEIGHTS = make_arrays(SHAPES[:3], 1)
GRADIENTS = [make_arrays(SHAPES[:3], 10 + t, 0.3) for t in range(len(RATES))]


def torch_weights(optimizer_of, rates: list[float]) -> list[np.ndarray]:
    return run(optimizer_of, WEIGHTS, lambda t: GRADIENTS[t], rates)


def agree(a: list[np.ndarray], b: list[np.ndarray], rtol: float) -> None:
    for x, y in zip(a, b, strict=True):
        np.testing.assert_allclose(x, y, rtol=rtol, atol=rtol)


# --- timm: LARS with momentum "out", without ratio where the decay is 0 ---


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("trust_clip", [False, True])
def test_timm_lars(nesterov: bool, trust_clip: bool) -> None:
    optim = pytest.importorskip("timm.optim", reason="timm is not installed (extra: test)")
    options: dict[str, Any] = {"momentum": 0.9, "weight_decay": 0.02, "nesterov": nesterov}
    larc = "clip" if trust_clip else "off"
    rates = [0.3 * r for r in RATES]  # with η = 0.1 on both sides of the clip
    theirs = torch_weights(lambda p: optim.Lars(p, lr=1.0, trust_coeff=0.1, trust_clip=trust_clip, **options), rates)
    ours = torch_weights(
        lambda p: LARS(p, 1.0, trust_coefficient=0.1, eps=1e-8, momentum_convention="out", larc=larc, **options), rates
    )
    agree(ours, theirs, 1e-10)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [({}, {}), ({"trust_clip": True}, {"trust_bounds": (0.0, 1.0)}), *[({"bias_correction": False},) * 2]],
)
@pytest.mark.parametrize("wd", [0.0, 0.3])
def test_timm_lamb(theirs: dict[str, Any], ours: dict[str, Any], wd: float) -> None:
    optim = pytest.importorskip("timm.optim", reason="timm is not installed (extra: test)")
    how = {"weight_decay": wd, "always_adapt": True, "max_grad_norm": None, **theirs}
    expected = torch_weights(lambda p: optim.Lamb(p, **how), LAMB_RATES)
    # timm's step number is float32 where ours is exact.
    agree(torch_weights(lambda p: LAMB(p, weight_decay=wd, **ours), LAMB_RATES), expected, 1e-6)
