"""The number of workers past which more of them are waste: from the step's time and the gradient noise scale.

A batch of B images needs 1 + B/B_noise times the images of a very small one for the same progress, so 1 + B_noise/B
times the fewest steps (McCandlish et al. 2018, arXiv 1812.06162, section 2.3, where B_noise is the noise scale). The
device hours for the same progress at n workers, compared with the smallest size, are then

    efficiency(n) = speed of a worker(n) / speed of a worker(smallest) · (1 + B(smallest)/B_noise) / (1 + B(n)/B_noise)

At half of it every second device hour buys nothing: that is the limit here, as it is for the noise scale itself, at
which twice the images are needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

LEAST_EFFICIENCY = 0.5


@dataclass(frozen=True)
class SizeSpeed:
    """How fast one size trains, measured or modelled."""

    workers: int
    global_size: int
    images_per_s: float


@dataclass(frozen=True)
class UsefulSize:
    """The answer, and what it rests on."""

    workers: int
    """The largest size up to which at least half of the device hours buy progress."""
    next_workers: int | None
    """The next size, which has less. None: all sizes that were looked at are useful."""
    by_speed_alone: int
    """The same without the noise scale."""
    noise_scale: float | None
    """In images. None: not measured, and the answer is that of speed alone."""


def statistical_efficiency(batch: float, smallest_batch: float, noise_scale: float) -> float:
    """Images that a smaller batch needs for the same progress, as a part of those that ``batch`` needs."""
    return (1 + smallest_batch / noise_scale) / (1 + batch / noise_scale)


def progress_efficiencies(sizes: Sequence[SizeSpeed], noise_scale: float | None) -> Mapping[int, float]:
    """By workers: progress per device hour as a part of the smallest size's; of images alone without a noise scale."""
    first = sizes[0]
    found = {}
    for one in sizes:
        speed = (one.images_per_s / one.workers) / (first.images_per_s / first.workers)
        progress = 1.0 if noise_scale is None else statistical_efficiency(
            one.global_size, first.global_size, noise_scale
        )  # fmt: skip
        found[one.workers] = speed * progress
    return found


def useful_size(sizes: Sequence[SizeSpeed], noise_scale: float | None) -> UsefulSize:
    """The largest useful size of these, which are in rising order. A size beyond a useless one does not count."""
    workers, following = _last_useful(progress_efficiencies(sizes, noise_scale))
    alone, _ = _last_useful(progress_efficiencies(sizes, None))
    return UsefulSize(workers, following, alone, noise_scale)


def _last_useful(efficiencies: Mapping[int, float]) -> tuple[int, int | None]:
    last = next(iter(efficiencies))
    for workers, efficiency in efficiencies.items():
        if efficiency < LEAST_EFFICIENCY:
            return last, workers
        last = workers
    return last, None
