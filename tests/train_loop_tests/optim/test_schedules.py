"""Learning rates against values worked out by hand from the published formulas."""

import itertools
import math

import pytest

from bigbatch.train_loop.config import ScheduleConfig
from bigbatch.train_loop.optim.schedules import learning_rate


def rates(total_steps, steps_per_epoch=10, peak_lr=1.0, **schedule):
    config = ScheduleConfig(**schedule)
    return [
        learning_rate(step, total_steps=total_steps, steps_per_epoch=steps_per_epoch, peak_lr=peak_lr, schedule=config)
        for step in range(total_steps)
    ]


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        # Warmup over 4 steps to peak 2, then four equal parts of the decay.
        ({"name": "constant"}, [0.5, 1.0, 1.5, 2.0, 2.0, 2.0, 2.0, 2.0]),
        ({"name": "linear"}, [0.5, 1.0, 1.5, 2.0, 1.5, 1.0, 0.5, 0.0]),
        ({"name": "poly", "power": 2.0}, [0.5, 1.0, 1.5, 2.0, 1.125, 0.5, 0.125, 0.0]),
        ({"name": "cosine"}, [0.5, 1.0, 1.5, 2.0, 1 + math.sqrt(0.5), 1.0, 1 - math.sqrt(0.5), 0.0]),
        # end_lr_factor 0.1 stretches the same curves between 2 and 0.2.
        ({"name": "linear", "end_lr_factor": 0.1}, [0.5, 1.0, 1.5, 2.0, 1.55, 1.1, 0.65, 0.2]),
        ({"name": "poly", "end_lr_factor": 0.1}, [0.5, 1.0, 1.5, 2.0, 1.2125, 0.65, 0.3125, 0.2]),
        ({"name": "cosine", "end_lr_factor": 0.5}, [0.5, 1.0, 1.5, 2.0, 1.5 + math.sqrt(0.125), 1.5, None, 1.0]),
        # warmup_start_factor 0.2: from 0.4 before the first step, 0.4 a step.
        ({"name": "constant", "warmup_start_factor": 0.2}, [0.8, 1.2, 1.6, 2.0, 2.0, 2.0, 2.0, 2.0]),
    ],
)
def test_table_of_a_run_with_an_epoch_of_warmup(schedule, expected):
    # The decay's end is one step after the last (MLPerf), so a run of 7 steps takes the first 7 rates.
    found = rates(7, steps_per_epoch=4, peak_lr=2.0, warmup_epochs=1.0, **schedule)
    for value, wanted in zip(found, expected[:7], strict=True):
        assert wanted is None or value == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize("name", ["cosine", "poly", "linear", "constant"])
def test_warmup_in_steps_equals_warmup_in_epochs(name):
    in_steps = rates(40, steps_per_epoch=8, warmup_steps=12, name=name)
    assert in_steps == rates(40, steps_per_epoch=8, warmup_epochs=1.5, name=name)


STEPS = {"name": "step", "steps_per_epoch": 2, "step_factor": 0.5}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"name": "linear", "steps_per_epoch": 100, "warmup_steps": 2}, [0.5, 1.0, 2 / 3, 1 / 3]),
        # Without warmup the first step has the peak, and no step is wasted on a rate of zero.
        ({"name": "linear", "peak_lr": 4.0}, [4.0, 3.0, 2.0, 1.0]),
        ({"name": "poly", "power": 1.0, "end_lr_factor": 0.5, "peak_lr": 4.0}, [4.0, 3.5, 3.0, 2.5]),
        ({"name": "poly"}, [((12 - step) / 12) ** 2 for step in range(12)]),
        # 0.25 epochs of 10 steps: W = 2.5, so 0.4, 0.8, then (x − 2.5)/(4 + 1 − 2.5) of the decay: 0.2, 0.6.
        ({"name": "linear", "warmup_epochs": 0.25}, [0.4, 0.8, 0.8, 0.4]),
        ({"name": "linear", "warmup_epochs": 0.05}, [1.0, 0.5]),  # half a step is none
        # 0.07 · 100 is above 7 in floats.
        ({"name": "step", "steps_per_epoch": 100, "step_epochs": (0.07,)}, [1.0] * 7 + [0.1] * 3),
        ({**STEPS, "step_epochs": (1.0, 2.0, 3.0), "end_lr_factor": 0.3}, [1.0, 1.0, 0.5, 0.5, 0.3, 0.3, 0.3, 0.3]),
        ({**STEPS, "step_epochs": (1.0,), "warmup_epochs": 2.0}, [0.25, 0.5, 0.375, 0.5, 0.5, 0.5]),
    ],
)
def test_rates_by_hand(options, expected):
    assert rates(len(expected), **options) == pytest.approx(expected)


def test_goyals_imagenet_recipe():
    # Goyal et al. 2017: batch 8192 (156 steps an epoch), peak 3.2 after 5 epochs, ÷10 at 30, 60, 80 of 90.
    found = rates(90 * 156, 156, 3.2, name="step", warmup_epochs=5.0, step_epochs=(30.0, 60.0, 80.0))
    assert found[0] == pytest.approx(3.2 / 780)
    assert found[389] == pytest.approx(1.6)  # half of the warmup
    assert found[779] == found[780] == 3.2
    for epoch, before, after in ((30, 3.2, 0.32), (60, 0.32, 0.032), (80, 0.032, 0.0032)):
        assert found[epoch * 156 - 1] == pytest.approx(before)
        assert found[epoch * 156] == pytest.approx(after)
    assert found[-1] == pytest.approx(0.0032)


@pytest.mark.parametrize("name", ["cosine", "poly", "linear", "constant"])
@pytest.mark.parametrize("warmup_epochs", [0.0, 0.03, 0.1, 1.0, 2.37, 19.99, 20.0])
@pytest.mark.parametrize("start", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("end", [0.0, 0.07, 1.0])
def test_rates_are_continuous_never_above_the_peak_and_never_negative(name, warmup_epochs, start, end):
    total_steps, peak_lr = 200, 3.7
    options = {"warmup_epochs": warmup_epochs, "warmup_start_factor": start, "end_lr_factor": end}
    found = rates(total_steps, peak_lr=peak_lr, name=name, power=2.0, **options)
    assert found[0] > 0.0
    assert all(0.0 <= rate <= peak_lr for rate in found)
    # Slopes: warmup at most peak/W a step, decay at most 2·peak/(T − W) (poly 2; cosine π/2).
    warmup_steps = max(warmup_epochs * 10, 1.0)
    steepest = peak_lr * max(1.0 / warmup_steps, 2 / max(total_steps - warmup_steps, 2))
    assert max(abs(b - a) for a, b in itertools.pairwise(found)) <= steepest + 1e-12
    if name != "constant" and warmup_steps < total_steps - 1:
        assert end * peak_lr - 1e-12 <= found[-1] <= end * peak_lr + steepest
        top = found.index(max(found))
        assert all(a <= b for a, b in itertools.pairwise(found[: top + 1]))
        assert all(a >= b for a, b in itertools.pairwise(found[top:]))


@pytest.mark.parametrize(
    ("step", "total_steps", "steps_per_epoch", "said"),
    [
        *((step, 10, 5, f"below total_steps=10; got {step}") for step in (-1, 10, 11)),
        *((0, total, epoch, f"total_steps={total}, steps_per_epoch={epoch}") for total, epoch in ((0, 5), (5, 0))),
    ],
)
def test_a_step_outside_the_run_and_a_run_without_steps_are_refused(step, total_steps, steps_per_epoch, said):
    length = {"total_steps": total_steps, "steps_per_epoch": steps_per_epoch}
    with pytest.raises(ValueError, match=said):
        learning_rate(step, **length, peak_lr=1.0, schedule=ScheduleConfig())
