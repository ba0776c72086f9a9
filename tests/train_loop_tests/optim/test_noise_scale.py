"""The gradient noise scale: its formula, and the norms of the loop against autograd."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from bigbatch.train_loop.data import sampling
from bigbatch.train_loop.optim.noise_scale import GradientNorms, noise_scale
from helpers.loop_references import run
from helpers.tiny_training import CONFIG, TinySource, changed, install, plain_model, two_ranks

pytestmark = pytest.mark.xdist_group("noise")  # else each test process starts the ranks
SMALL, BIG = 8, 64
Outcomes = list[dict[str, Any]]


def test_exact_expectations_give_the_exact_value_and_nonsense_gives_none() -> None:
    signal, noise = 4.0, 450.0
    assert noise_scale(signal + noise / SMALL, signal + noise / BIG, SMALL, BIG) == pytest.approx(noise / signal)
    assert noise_scale(1.0, 1.0, 64, 64) is None  # one micro-batch
    assert noise_scale(10.0, 0.1, 8, 64) is None  # the mean gradient is lost in the noise
    assert noise_scale(1.0, 2.0, 8, 64) is None  # more noise in the larger batch: too few steps
    assert noise_scale(math.nan, 1.0, 8, 64) is None


def test_a_step_that_overflows_is_left_out_and_the_loss_scale_divided_away() -> None:
    p = torch.nn.Parameter(torch.zeros(2))
    norms = GradientNorms(torch.device("cpu"), accumulation_steps=2, workers=1)
    for values in ([3.0, 4.0], [math.inf, 0.0]):
        p.grad = 8 * torch.tensor(values)
        norms.first_micro_batch([p])
        p.grad = 8 * torch.tensor([0.0, 1.0])
        norms.step([p], torch.tensor(8.0))
    # The first micro-batch's gradient was divided by the 2 of them: |2·(3, 4)|² = 100.
    assert norms.sums.tolist() == [100.0, 1.0, 1.0]


STEP = changed(CONFIG, epochs=1, global_size=64, micro_size=16, schedule__name="constant", label_smoothing=0.0,
               peak_lr=1e-30)  # fmt: skip


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """Of each rank: the sums and noise scales of runs with two sizes of micro-batches."""
    folder = tmp_path_factory.mktemp("noise")
    (folder / "config.json").write_text(STEP.to_json())
    return two_ranks("noise", folder)


def gradient_sq(rows: np.ndarray) -> float:
    """Squared norm of the mean gradient over ``rows`` of the training set at the initial weights, float64."""
    torch.manual_seed(STEP.seed)
    model = plain_model().double()
    images, labels = TinySource().train
    loss = torch.nn.functional.cross_entropy(model(images[rows].double()), labels[rows])
    return sum(g.square().sum().item() for g in torch.autograd.grad(loss, list(model.parameters())))


def test_the_loop_measures_the_first_micro_batch_against_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch.setattr, plain_model)
    seen: list[list[float]] = []
    real = GradientNorms.estimate
    note = lambda self, sums, *sizes: seen.append(sums) or real(self, sums, *sizes)  # noqa: E731
    monkeypatch.setattr(GradientNorms, "estimate", note)
    (record,) = run(STEP)
    order = sampling.train_order(70, STEP.seed, 0)
    small, big = gradient_sq(order[:16]), gradient_sq(order[:64])
    assert seen == [[pytest.approx(small, rel=1e-4), pytest.approx(big, rel=1e-4), 1.0]]
    assert record.noise_scale == noise_scale(seen[0][0], seen[0][1], 16, 64)


def test_one_micro_batch_a_step_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch.setattr, plain_model)
    assert run(changed(STEP, micro_size=64))[0].noise_scale is None


@pytest.mark.parametrize("number", range(2), ids=["32", "16"])
def test_two_ranks_measure_their_own_gradients_before_they_are_averaged(number: int, outcomes: Outcomes) -> None:
    first, second = outcomes
    assert first == second
    micro_size = (32, 16)[number]
    # Micro-batch j is accumulation step j // 2 of rank j % 2.
    micro = sampling.train_order(70, STEP.seed, 0)[:64].reshape(-1, micro_size)
    shares = [micro[rank] for rank in (0, 1)]
    small, big = sum(map(gradient_sq, shares)), gradient_sq(micro.ravel())
    sums, size = first["seen"][number]
    assert size == 64 and sums == pytest.approx([small, 2 * big, 2.0], rel=1e-4)
    assert first["found"][number] == noise_scale(sums[0] / 2, sums[1] / 2, len(shares[0]), 64)
