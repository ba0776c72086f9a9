"""How many workers are useful, with the formulas of the paper written out here."""

from types import SimpleNamespace
from typing import Any

import pytest

from bigbatch.tune.scaling.analysis import progress_efficiencies, statistical_efficiency, useful_size


def size(workers: int, global_size: int, step_s: float) -> Any:
    return SimpleNamespace(workers=workers, global_size=global_size, step_s=step_s)


def test_at_the_noise_scale_twice_the_images_are_needed() -> None:
    """McCandlish et al. 2018, figure 1: at the noise scale a run takes twice the images of a tiny batch."""
    assert statistical_efficiency(4096, 1e-9, 4096) == pytest.approx(0.5)
    assert statistical_efficiency(128, 128, 4096) == 1


def test_the_limit_is_half_of_the_device_hours() -> None:
    """Perfect speed, noise scale 1000, 100 images a worker: (1 + 0.1) / (1 + 0.1 n) is 0.61 at 8 and 0.42 at 16."""
    sizes = [size(n, 100 * n, 2.0) for n in (1, 2, 4, 8, 16, 32)]
    efficiencies = progress_efficiencies(sizes, 1000.0)
    assert efficiencies[8] == pytest.approx(1.1 / 1.8) and efficiencies[16] == pytest.approx(1.1 / 2.6)
    found = useful_size(sizes, 1000.0)
    assert (found.workers, found.next_workers, found.by_speed_alone) == (8, 16, 32)
    without = useful_size(sizes, None)
    assert (without.workers, without.next_workers) == (32, None)


def test_speed_alone_may_be_the_limit() -> None:
    speeds = {2: 100.0, 4: 180.0, 8: 190.0, 16: 2000.0}  # 1, 0.9, 0.475; the last one comes too late
    found = useful_size([size(n, 256, 256 / speed) for n, speed in speeds.items()], None)
    assert (found.workers, found.next_workers) == (4, 8)
