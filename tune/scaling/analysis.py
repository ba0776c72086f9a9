"""What the measured sizes say: speed, efficiency, a model of larger sizes, and the number of workers that is useful."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from bigbatch.train_loop.launch.checks import parameter_count
from bigbatch.tune.scaling.scale_plan import WEAK, ScalePlan
from bigbatch.tune.scaling.size_result import SizeResult
from bigbatch.tune.scaling.step_model import (
    FEWEST_SIZES,
    StepModel,
    StepTimes,
    fit_step_model,
    left_out_errors,
)
from bigbatch.tune.scaling.useful_size import SizeSpeed, UsefulSize, progress_efficiencies, useful_size

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
    speeds = [*_measured_speeds(sizes), *(SizeSpeed(m.workers, m.global_size, m.images_per_s) for m in beyond)]
    return ScalingAnalysis(
        sizes=tuple(sizes),
        speed_up=speed_up,
        efficiency={workers: value * first.workers / workers for workers, value in speed_up.items()},
        gradient_bytes=gradient_bytes,
        noise_scale=noise_scale,
        model=model,
        errors=left_out_errors(measured, gradient_bytes, plan.machine.per_node),
        beyond=beyond,
        efficiencies=dict(progress_efficiencies(speeds, noise_scale)),
        useful=useful_size(speeds, noise_scale),
    )


def measured_step(one: SizeResult) -> StepTimes:
    """The profiled step of a size, as the model is fitted to it."""
    images = one.global_size / one.workers
    return StepTimes(one.workers, images, one.compute_s, one.data_s, one.communication_s)


def _measured_speeds(sizes: Sequence[SizeResult]) -> list[SizeSpeed]:
    """Of profiled steps: the model's speeds, which follow, are those of steps too."""
    return [SizeSpeed(one.workers, one.global_size, one.global_size / one.step_s) for one in sizes]


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
