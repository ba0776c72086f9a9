"""The model of a step against made sizes whose laws are known, with the formulas of the papers written out here."""

import math

import numpy as np
import pytest

from bigbatch.tune.scaling.analysis import progress_efficiencies, statistical_efficiency, useful_size
from bigbatch.tune.scaling.step_model import LinkCost, StepTimes, fit_step_model, left_out_errors, ring_terms

BYTES = 102.4e6  # ResNet-50's gradients
STEP, IMAGE, OWN, SHARED = 0.004, 0.0011, 2e-5, 3e-7
SECONDS_PER_BYTE, LATENCY = 1 / 12e9, 25e-6


def ring_s(workers: int, seconds_per_byte: float = SECONDS_PER_BYTE, latency: float = LATENCY) -> float:
    """Reduce-scatter and allgather: n - 1 turns each, in each of which a worker sends a n-th of the message."""
    return sum(latency + BYTES / workers * seconds_per_byte for _ in range(2 * (workers - 1)))


def made(workers: int, images: float, *, communication_s: float | None = None) -> StepTimes:
    return StepTimes(
        workers,
        images,
        STEP + IMAGE * images,
        OWN * images + SHARED * images * workers,
        ring_s(workers) if communication_s is None else communication_s,
    )


@pytest.mark.parametrize("workers", [1, 2, 3, 8, 1024])
def test_the_ring_is_the_sum_of_its_turns(workers: int) -> None:
    said = LinkCost(SECONDS_PER_BYTE, LATENCY).all_reduce_s(workers, BYTES)
    assert said == pytest.approx(ring_s(workers), rel=1e-12)
    assert ring_terms(workers, BYTES)[0] < 2 * BYTES, "Patarasuk & Yuan 2009: never twice the message"


@pytest.mark.parametrize("mode", ["weak", "strong"])
def test_known_laws_are_found_again_and_hold_at_1024_workers(mode: str) -> None:
    def images(workers: int) -> float:
        return 256.0 if mode == "weak" else 4096 / workers

    model = fit_step_model([made(n, images(n)) for n in (1, 2, 4, 8)], BYTES, per_node=8)
    assert model.within is not None and model.between is None
    assert 1 / model.within.s_per_byte == pytest.approx(12e9, rel=1e-6)
    assert model.within.latency_s == pytest.approx(LATENCY, rel=1e-6)
    if mode == "strong":  # with weak scaling, what belongs to a step and what to an image looks alike
        assert (model.step_s, model.image_s) == pytest.approx((STEP, IMAGE), rel=1e-6)
    else:
        assert (model.own_input_s, model.shared_input_s) == pytest.approx((OWN, SHARED), rel=1e-6)
    far = made(1024, images(1024))
    assert model.times(1024, images(1024)).compute_s == pytest.approx(far.compute_s, rel=1e-6)
    assert model.times(1024, images(1024)).step_s == pytest.approx(far.step_s, rel=1e-6)


def test_networks_within_a_node_and_between_nodes_are_fitted_apart() -> None:
    slow = {"seconds_per_byte": 1 / 2e9, "latency": 40e-6}
    sizes = [made(n, 64.0, communication_s=ring_s(n)) for n in (1, 2, 4)]
    sizes += [made(n, 64.0, communication_s=ring_s(n, **slow)) for n in (8, 16)]
    model = fit_step_model(sizes, BYTES, per_node=4)
    assert 1 / model.within.s_per_byte == pytest.approx(12e9, rel=1e-6)
    assert 1 / model.between.s_per_byte == pytest.approx(2e9, rel=1e-6)
    assert model.times(256, 64.0).communication_s == pytest.approx(ring_s(256, **slow), rel=1e-6)
    assert model.times(4, 64.0).communication_s == pytest.approx(ring_s(4), rel=1e-6)


def test_noisy_sizes_never_give_negative_costs() -> None:
    draws = np.random.default_rng(3)
    for _ in range(50):
        noise = draws.lognormal(0, 0.5, 4)
        sizes = [
            StepTimes(n, 64.0, 0.1 * f, 0.001 * f, 0.0 if n == 1 else 0.02 * f)
            for n, f in zip((1, 2, 4, 8), noise, strict=True)
        ]
        model = fit_step_model(sizes, BYTES, per_node=8)
        costs = [model.step_s, model.image_s, model.own_input_s, model.shared_input_s]
        costs += [model.within.s_per_byte, model.within.latency_s]
        assert all(cost >= 0 and math.isfinite(cost) for cost in costs), costs


def test_the_error_of_a_size_left_out_is_that_of_a_model_without_it() -> None:
    """Weak scaling of 1, 2, 4, 8 workers; the step of 8 takes 50 ms longer than the law says."""
    sizes = [made(n, 64.0) for n in (1, 2, 4)]
    slow = made(8, 64.0, communication_s=ring_s(8) + 0.05)
    errors = left_out_errors([*sizes, slow], BYTES, per_node=8)
    # Without it the others follow the law, so the model says what the law says.
    assert errors[8] == pytest.approx(made(8, 64.0).step_s / slow.step_s - 1, rel=1e-6)
    assert errors[8] < -0.1
    exact = left_out_errors([*sizes, made(8, 64.0)], BYTES, per_node=8)
    assert exact == pytest.approx({1: 0.0, 2: 0.0, 4: 0.0, 8: 0.0}, abs=1e-9)
    assert left_out_errors([made(1, 64.0), made(2, 64.0)], BYTES, per_node=8) == {}, "two sizes have no error"


def test_a_pass_that_hides_the_sums_costs_nothing() -> None:
    model = fit_step_model([made(n, 64.0, communication_s=0.0) for n in (1, 2, 4)], BYTES, per_node=8)
    assert (model.within.s_per_byte, model.within.latency_s) == (0.0, 0.0)


def test_at_the_noise_scale_twice_the_images_are_needed() -> None:
    """McCandlish et al. 2018, figure 1: at the noise scale a run takes twice the images of a tiny batch."""
    assert statistical_efficiency(4096, 1e-9, 4096) == pytest.approx(0.5)
    assert statistical_efficiency(128, 128, 4096) == 1


def test_the_limit_is_half_of_the_device_hours() -> None:
    """Perfect speed, noise scale 1000, 100 images a worker: (1 + 0.1) / (1 + 0.1 n) is 0.61 at 8 and 0.42 at 16."""
    sizes = [StepTimes(n, 100, 2.0, 0.0, 0.0) for n in (1, 2, 4, 8, 16, 32)]
    efficiencies = progress_efficiencies(sizes, 1000.0)
    assert efficiencies[8] == pytest.approx(1.1 / 1.8) and efficiencies[16] == pytest.approx(1.1 / 2.6)
    found = useful_size(sizes, 1000.0)
    assert (found.workers, found.next_workers, found.by_speed_alone) == (8, 16, 32)
    without = useful_size(sizes, None)
    assert (without.workers, without.next_workers) == (32, None)


def test_speed_alone_may_be_the_limit() -> None:
    speeds = {2: 100.0, 4: 180.0, 8: 190.0, 16: 2000.0}  # 1, 0.9, 0.475; the last one comes too late
    found = useful_size([StepTimes(n, 256 / n, 256 / speed, 0.0, 0.0) for n, speed in speeds.items()], None)
    assert (found.workers, found.next_workers) == (4, 8)
