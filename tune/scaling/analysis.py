"""What the measured sizes say: speed, efficiency, and the number of workers that is useful.

More workers than those are waste, by the step's time and the gradient noise scale. A batch of B images needs
1 + B/B_noise times the images of a very small one for the same progress, so 1 + B_noise/B times the fewest steps
(McCandlish et al. 2018, arXiv 1812.06162, section 2.3, where B_noise is the noise scale). The device hours for the same
progress at n workers, compared with the smallest size, are then

    efficiency(n) = speed of a worker(n) / speed of a worker(smallest) · (1 + B(smallest)/B_noise) / (1 + B(n)/B_noise)

At half of it every second device hour buys nothing: that is the limit here, as it is for the noise scale itself, at
which twice the images are needed.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bigbatch.tune.scaling.size_result import SizeResult

LEAST_EFFICIENCY = 0.5


@dataclass(frozen=True)
class UsefulSize:
    """The answer, and what it rests on."""

    workers: int
    """The largest size up to which at least half of the device hours buy progress."""
    next_workers: int | None
    """The next size, which has less. None: all sizes are useful."""
    by_speed_alone: int
    """The same without the noise scale."""
    noise_scale: float | None
    """In images. None: not measured, and the answer is that of speed alone."""


def statistical_efficiency(batch: float, smallest_batch: float, noise_scale: float) -> float:
    """Images that a smaller batch needs for the same progress, as a part of those that ``batch`` needs."""
    return (1 + smallest_batch / noise_scale) / (1 + batch / noise_scale)


def progress_efficiencies(sizes: Sequence[SizeResult], noise_scale: float | None) -> dict[int, float]:
    """By workers: progress per device hour as a part of the smallest size's; of images alone without a noise scale."""
    first = sizes[0]
    found = {}
    for one in sizes:
        speed = (one.global_size / one.workers / one.step_s) / (first.global_size / first.workers / first.step_s)
        images = statistical_efficiency(one.global_size, first.global_size, noise_scale) if noise_scale else 1.0
        found[one.workers] = speed * images
    return found


def useful_size(sizes: Sequence[SizeResult], noise_scale: float | None) -> UsefulSize:
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


@dataclass(frozen=True)
class ScalingAnalysis:
    """Everything that tables and files show of a scaling study."""

    sizes: tuple[SizeResult, ...]
    """Finished ones, smallest first."""
    speed_up: dict[int, float]
    """Images/s as a multiple of the smallest size's, by workers."""
    efficiency: dict[int, float]
    """Images/s of a worker as a part of the smallest size's, by workers."""
    noise_scale: float | None
    efficiencies: dict[int, float]
    """Progress per device hour as a part of the smallest size's, by workers."""
    useful: UsefulSize


def analyse(sizes: Sequence[SizeResult]) -> ScalingAnalysis:
    """The analysis of at least one finished size."""
    first = sizes[0]
    speed_up = {one.workers: one.images_per_s / first.images_per_s for one in sizes}
    noise = [one.noise_scale for one in sizes if one.noise_scale is not None]
    noise_scale = statistics.median(noise) if noise else None
    return ScalingAnalysis(
        sizes=tuple(sizes),
        speed_up=speed_up,
        efficiency={workers: value * first.workers / workers for workers, value in speed_up.items()},
        noise_scale=noise_scale,
        efficiencies=progress_efficiencies(sizes, noise_scale),
        useful=useful_size(sizes, noise_scale),
    )


def as_json(found: ScalingAnalysis) -> dict[str, object]:
    """The analysis for ``scaling.json``."""
    return {
        "sizes": [
            {
                **dataclasses.asdict(one),
                "speed_up": found.speed_up[one.workers],
                "efficiency": found.efficiency[one.workers],
                "communication_share": one.communication_share,
                "data_share": one.data_share,
            }
            for one in found.sizes
        ],
        "noise_scale": found.noise_scale,
        "progress_efficiency": {str(workers): value for workers, value in found.efficiencies.items()},
        "useful": dataclasses.asdict(found.useful),
    }
