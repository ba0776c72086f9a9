"""What the measured sizes say: speed, efficiency, a model of larger sizes, and the number of workers that is useful.

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

from bigbatch.train_loop.launch.checks import parameter_count
from bigbatch.tune.scaling.scale_plan import WEAK, ScalePlan
from bigbatch.tune.scaling.size_result import SizeResult
from bigbatch.tune.scaling.step_model import FEWEST_SIZES, StepModel, StepTimes, fit_step_model, left_out_errors

LEAST_EFFICIENCY = 0.5


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


def progress_efficiencies(steps: Sequence[StepTimes], noise_scale: float | None) -> dict[int, float]:
    """By workers: progress per device hour as a part of the smallest size's; of images alone without a noise scale."""
    first = steps[0]
    found = {}
    for one in steps:
        speed = (one.images_per_worker / one.step_s) / (first.images_per_worker / first.step_s)
        batch, smallest = one.workers * one.images_per_worker, first.workers * first.images_per_worker
        found[one.workers] = speed * (statistical_efficiency(batch, smallest, noise_scale) if noise_scale else 1.0)
    return found


def useful_size(steps: Sequence[StepTimes], noise_scale: float | None) -> UsefulSize:
    """The largest useful size of these, which are in rising order. A size beyond a useless one does not count."""
    workers, following = _last_useful(progress_efficiencies(steps, noise_scale))
    alone, _ = _last_useful(progress_efficiencies(steps, None))
    return UsefulSize(workers, following, alone, noise_scale)


def _last_useful(efficiencies: Mapping[int, float]) -> tuple[int, int | None]:
    last = next(iter(efficiencies))
    for workers, efficiency in efficiencies.items():
        if efficiency < LEAST_EFFICIENCY:
            return last, workers
        last = workers
    return last, None


GRADIENT_BYTES = 4
"""Of a parameter: gradients are summed in float32, whatever precision the passes have."""


@dataclass(frozen=True)
class ModelledSize:
    """A size that was not measured, as the model sees it."""

    workers: int
    nodes: int
    global_size: int
    step: StepTimes
    epoch_s: float | None
    """Training steps of an epoch. None: the global batch exceeds the training set."""

    @property
    def images_per_s(self) -> float:
        """Training images over the time of their steps."""
        return self.global_size / self.step.step_s


@dataclass(frozen=True)
class ScalingAnalysis:
    """Everything that tables and files show of a scaling study."""

    sizes: tuple[SizeResult, ...]
    """Finished ones, smallest first."""
    speed_up: dict[int, float]
    """Images/s as a multiple of the smallest size's, by workers."""
    efficiency: dict[int, float]
    """Images/s of a worker as a part of the smallest size's, by workers."""
    gradient_bytes: int
    noise_scale: float | None
    model: StepModel | None
    """None: fewer than three sizes, so nothing is extrapolated."""
    errors: dict[int, float]
    """Of the step's time at sizes left out, see ``left_out_errors``."""
    beyond: tuple[ModelledSize, ...]
    """Sizes that the model was asked for."""
    efficiencies: dict[int, float]
    """Progress per device hour as a part of the smallest size's, by workers, measured and modelled."""
    useful: UsefulSize


def analyse(plan: ScalePlan, sizes: Sequence[SizeResult]) -> ScalingAnalysis:
    """The analysis of at least one finished size."""
    first = sizes[0]
    speed_up = {one.workers: one.images_per_s / first.images_per_s for one in sizes}
    noise = [one.noise_scale for one in sizes if one.noise_scale is not None]
    noise_scale = statistics.median(noise) if noise else None
    gradient_bytes = GRADIENT_BYTES * parameter_count(plan.config.model, plan.info)
    measured = [measured_step(one) for one in sizes]
    model = None
    if len(sizes) >= FEWEST_SIZES:
        model = fit_step_model(measured, gradient_bytes, plan.machine.per_node)
    beyond = tuple(_modelled(plan, model, workers) for workers in sizes_beyond(plan, sizes)) if model else ()
    steps = [*measured, *(one.step for one in beyond)]
    return ScalingAnalysis(
        sizes=tuple(sizes),
        speed_up=speed_up,
        efficiency={workers: value * first.workers / workers for workers, value in speed_up.items()},
        gradient_bytes=gradient_bytes,
        noise_scale=noise_scale,
        model=model,
        errors=left_out_errors(measured, gradient_bytes, plan.machine.per_node),
        beyond=beyond,
        efficiencies=progress_efficiencies(steps, noise_scale),
        useful=useful_size(steps, noise_scale),
    )


def measured_step(one: SizeResult) -> StepTimes:
    """The profiled step of a size, as the model is fitted to it."""
    images = one.global_size / one.workers
    return StepTimes(one.workers, images, one.compute_s, one.data_s, one.communication_s)


def sizes_beyond(plan: ScalePlan, sizes: Sequence[SizeResult]) -> list[int]:
    """Powers of two above the measured sizes, up to ``--to``, as far as they can be trained.

    With strong scaling the batch must divide over the workers, two images for each.
    """
    largest = max(one.workers for one in sizes)
    powers = [2**power for power in range(1, plan.largest.bit_length())]
    found = [workers for workers in powers if largest < workers <= plan.largest]
    if plan.mode == WEAK:
        return found
    batch = plan.config.batch.global_size
    return [workers for workers in found if batch % workers == 0 and batch >= 2 * workers]


def _modelled(plan: ScalePlan, model: StepModel, workers: int) -> ModelledSize:
    batch = plan.config.batch.global_size
    if plan.mode == WEAK:
        batch = batch // plan.base_workers * workers
    step = model.times(workers, batch / workers)
    steps = plan.info.train_size // batch
    return ModelledSize(workers, plan.machine.nodes_for(workers), batch, step, steps * step.step_s if steps else None)


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
        "gradient_bytes": found.gradient_bytes,
        "noise_scale": found.noise_scale,
        "model": None if found.model is None else dataclasses.asdict(found.model),
        "model_errors": {str(workers): error for workers, error in found.errors.items()},
        "modelled": [
            {**dataclasses.asdict(one), "images_per_s": one.images_per_s, "is_model": True} for one in found.beyond
        ],
        "progress_efficiency": {str(workers): value for workers, value in found.efficiencies.items()},
        "useful": dataclasses.asdict(found.useful),
    }
