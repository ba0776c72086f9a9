"""The learning rate as a pure function of the optimizer step, without torch and without state.

A run that resumes, skips a step or is asked twice gets the same value for the same step number.
"""

from __future__ import annotations

import math

from bigbatch.train_loop.config import ScheduleConfig

# Epochs times steps an epoch is rounded in float64: 0.07 · 100 is a little above 7.
STEP_TOLERANCE = 1e-6


def learning_rate(
    step: int, *, total_steps: int, steps_per_epoch: int, peak_lr: float, schedule: ScheduleConfig
) -> float:
    """Rate for optimizer step number ``step``, 0-based, of a run of ``total_steps``.

    With x = step + 1, T = total_steps and W = warmup_steps, or warmup_epochs · steps_per_epoch, which
    may be fractional:

    - **Warmup**, x < W (Goyal et al. 2017, §2.2): linear from f = ``warmup_start_factor`` before
      the first step, ``peak · (f + (1 − f)·x/W)``. The first step's rate is above 0 also at f = 0,
      and step W − 1 has the peak.
    - **Decay** from the peak at x = max(W, 1) to e = ``end_lr_factor`` times the peak at x = T + 1,
      with t = (x − max(W, 1)) / (T + 1 − max(W, 1)). The end is one step after the last, as in
      MLPerf's reference (decay_steps = train_steps − warmup_steps + 1): with e = 0 a run of 12
      steps would else spend one of them on a rate of 0. ``cosine`` e + (1 − e)(1 + cos πt)/2
      (Loshchilov & Hutter 2017), ``linear`` e + (1 − e)(1 − t), ``poly`` e + (1 − e)(1 − t)^power.
    - ``constant`` stays at the peak. ``step`` multiplies the rate by ``step_factor`` at the start of
      each of ``step_epochs`` (also during warmup), but not below e.

    Without warmup the first step has the peak. A warmup that fills the run ends at the peak; one
    that is longer is cut off before it.

    Returns a rate in [0, peak_lr]. Raises ValueError for a step outside the run.
    """
    if total_steps < 1 or steps_per_epoch < 1:
        raise ValueError(
            f"total_steps and steps_per_epoch must be at least 1; got total_steps={total_steps}, "
            f"steps_per_epoch={steps_per_epoch}"
        )
    if not 0 <= step < total_steps:
        raise ValueError(f"step must be at least 0 and below total_steps={total_steps}; got {step}")
    warmup_steps = schedule.warmup_steps or schedule.warmup_epochs * steps_per_epoch
    warmup = _warmup_factor(step + 1, warmup_steps, schedule)
    if schedule.name == "step":
        return peak_lr * warmup * _step_factor(step, steps_per_epoch, schedule)
    start = max(warmup_steps, 1.0)
    elapsed = 0.0 if step + 1 <= start else (step + 1 - start) / (total_steps + 1 - start)
    return peak_lr * warmup * _decay_factor(elapsed, schedule)


def _warmup_factor(x: int, warmup_steps: float, schedule: ScheduleConfig) -> float:
    if x >= warmup_steps:
        return 1.0
    return schedule.warmup_start_factor + (1.0 - schedule.warmup_start_factor) * x / warmup_steps


def _step_factor(step: int, steps_per_epoch: int, schedule: ScheduleConfig) -> float:
    drops = sum(step >= epoch * steps_per_epoch - STEP_TOLERANCE for epoch in schedule.step_epochs)
    return max(schedule.step_factor**drops, schedule.end_lr_factor)


def _decay_factor(elapsed: float, schedule: ScheduleConfig) -> float:
    """Part of the peak at ``elapsed`` in [0, 1] of the decay."""
    match schedule.name:
        case "cosine":
            remaining = (1.0 + math.cos(math.pi * elapsed)) / 2.0
        case "linear":
            remaining = 1.0 - elapsed
        case "poly":
            remaining = (1.0 - elapsed) ** schedule.power
        case _:
            remaining = 1.0
    return schedule.end_lr_factor + (1.0 - schedule.end_lr_factor) * remaining
