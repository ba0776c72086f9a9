"""``--profile-steps N``: measure N steps and validation, say what bounds the run and what the whole run would take.

The lines for the terminal are a table, estimates, and what bounds the run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import torch

from bigbatch.train_loop.config import ConfigError, TrainConfig
from bigbatch.train_loop.data.sets.scan import FolderScan
from bigbatch.train_loop.distributed import Meeting, pick_device
from bigbatch.train_loop.host.ranks import Launch
from bigbatch.train_loop.launch.joined_ranks import joined_ranks
from bigbatch.train_loop.launch.options import PROFILES_FILE, ProfileOptions
from bigbatch.train_loop.loop.assembly import Run, set_up
from bigbatch.train_loop.loop.checkpoint import CheckpointFolder
from bigbatch.train_loop.loop.chronometer import OTHER, PHASES
from bigbatch.train_loop.loop.oom_retry import Halving
from bigbatch.train_loop.loop.step_profile import Spread, StepProfile, measure_steps, trace_steps
from bigbatch.train_loop.loop.until_it_fits import until_it_fits
from bigbatch.train_loop.reporter import ListReporter

TRACED_STEPS = 10


def print_profile(
    config: TrainConfig,
    options: ProfileOptions,
    output: Path,
    launch: Launch | None,
    stage_folder: str | None = None,
    scan: FolderScan | None = None,
    meeting: Meeting | None = None,
) -> None:
    """Measure on all ranks. Rank 0 prints the lines, and appends the figures to ``profile.jsonl`` in ``output``.

    Raises the errors of ``train`` that a start or a step may meet, and ConfigError if a folder cannot be written.
    """
    joined = (
        joined_ranks(launch, config.data, stage_folder, meeting) if launch else contextlib.nullcontext(pick_device())
    )
    with joined as device:

        def begin(halvings: Sequence[Halving]) -> Run:
            return set_up(config, ListReporter(), CheckpointFolder(None, 0.0), device, stage_folder, scan, halvings)

        def measured(run: Run) -> StepProfile:
            profile = measure_steps(run, options.steps)
            if options.trace_folder is not None:
                trace_steps(run, TRACED_STEPS, str(options.trace_folder))
            return profile

        profile = until_it_fits(begin, measured, None, device)
        if launch is not None and launch.rank != 0:
            return
        print("\n".join(profile_lines(profile)))
        path = _append(profile, config, output / PROFILES_FILE)
        print(f"\nthe figures are in {path}")
        if options.trace_folder is not None:
            print(f"the trace of {TRACED_STEPS} further steps is in {options.trace_folder}: open it in ui.perfetto.dev")


def _append(profile: StepProfile, config: TrainConfig, path: Path) -> Path:
    """One JSON line with the measured figures and the estimates. Returns the path."""
    line = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "slurm_job": os.environ.get("SLURM_JOB_ID"),
        "torch": torch.__version__,
        "model": config.model.name,
        "data": config.data.name,
        "precision": config.precision,
        **dataclasses.asdict(profile),
        "images_per_s": profile.images_per_s,
        "data_share": profile.share("data"),
        "communication_share": profile.communication_share,
        "estimated": {
            "train_s": profile.train_s,
            "val_s": profile.val_s,
            "run_s": profile.run_s,
            "device_hours": profile.device_hours,
        },
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.write(json.dumps(line) + "\n")
    except OSError as error:
        raise ConfigError(
            f"--output must be a writable folder; got {str(path.parent)!r} ({error.strerror}). "
            "Write --output with another folder."
        ) from None
    return path


NAMES = {
    "data": "data wait",
    "transfer": "transfer",
    "forward": "forward",
    "backward": "backward",
    "optimizer": "optimizer",
    OTHER: "other",
}
BOUNDS = {
    "computing": (0.0, "computes forward and backward"),
    "data": (0.05, "waits for data"),
    "transfer": (0.05, "copies and normalises images"),
    "communication": (0.1, "sums gradients over the workers"),
    "optimizer": (0.1, "is the optimizer's"),
    OTHER: (0.15, "lies between the phases: mixing images, sums of losses, gradient norms, Python"),
}
"""From which part of a step on a line names it, and how."""


def profile_lines(profile: StepProfile) -> list[str]:
    """All lines for the terminal."""
    return [*_table(profile), "", *_estimates(profile), "", *bound_lines(profile)]


def _steps(count: int) -> str:
    return f"{count} step{'s' * (count != 1)}"


def _table(p: StepProfile) -> Iterator[str]:
    workers = f"{p.workers} worker{'s' if p.workers > 1 else ''}"
    yield (
        f"{_steps(p.steps)} on {p.device}, {workers}, global batch {p.global_size} = "
        f"{p.workers} × {p.accumulation_steps} × {p.micro_size}"
    )
    yield f"{'':16}{'min':>10}{'median':>10}{'sd':>10}{'of a step':>11}"
    for phase in (*PHASES, OTHER):
        yield _row(NAMES[phase], p.phases[phase], p.share(phase))
        if phase == "backward" and p.communication:
            yield _row("  communication", p.communication, p.communication_share)
    yield _row("step", p.step, 1.0)
    yield _row("validation batch", p.validation, None)
    if p.communication:
        yield (
            "communication: the backward pass, minus one that sums no gradients over the workers. What the backward "
            "pass hides is not in it; the wait for the slowest worker is."
        )
    if p.workers > 1:
        yield f"the worker that waits longest for data: {_seconds(p.slowest_data_s)} of each step (median)"


def _row(name: str, spread: Spread, share: float | None) -> str:
    of_step = "" if share is None else f"{100 * share:9.1f} %"
    return f"{name:16}" + "".join(f"{_seconds(s):>10}" for s in (spread.min_s, spread.median_s, spread.sd_s)) + of_step


def _estimates(p: StepProfile) -> Iterator[str]:
    hours = "GPU hours" if p.device_memory_bytes else "worker hours"
    epoch_s = p.train_s + p.bn_s + p.val_s
    bn = f" + {_seconds(p.bn_s)} BatchNorm" if p.bn_s >= 0.01 * epoch_s else ""
    yield f"speed       {p.images_per_s:,.0f} images/s; {100 * p.share('data'):.0f} % of the time waits for data"
    yield (
        f"epoch       {_seconds(epoch_s)}: {p.steps_per_epoch} steps take {_seconds(p.train_s)}"
        f"{bn} + {_seconds(p.val_s)} validation (estimated from {_steps(p.steps)})"
    )
    yield (
        f"whole run   {_seconds(p.run_s)} for {p.epochs} epochs, {p.device_hours:.3g} {hours}; "
        "start-up and checkpoints come on top"
    )
    of = f" of {p.device_memory_bytes / 2**30:.0f} GiB" if p.device_memory_bytes else ""
    yield f"memory      {p.memory_bytes / 2**30:.2f} GiB{of} at most, of the worker that needed most"


def bound_lines(profile: StepProfile) -> list[str]:
    """What takes a noted part of a step, the most first."""
    shares = {name: profile.share(name) for name in ("data", "transfer", "optimizer", OTHER)}
    shares["communication"] = profile.communication_share
    shares["computing"] = profile.share("forward") + profile.share("backward") - profile.communication_share
    most_first = sorted(BOUNDS, key=lambda name: -shares[name])
    noted = [name for name in most_first if shares[name] >= BOUNDS[name][0]]
    return [f"bound   {100 * shares[name]:.0f} % of each step {BOUNDS[name][1]}." for name in noted]


def _seconds(seconds: float) -> str:
    if abs(seconds) < 1e-3:
        return f"{1e6 * seconds:.0f} µs"
    if abs(seconds) < 1:
        return f"{1e3 * seconds:.3g} ms"
    if seconds < 100:
        return f"{seconds:.3g} s"
    minutes = seconds / 60
    return f"{minutes:.3g} min" if minutes < 100 else f"{minutes / 60:,.3g} h"
