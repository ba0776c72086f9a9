"""``--profile-steps N``: measure N steps and validation, say what bounds the run and what the whole run would take."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import torch

from bigbatch.train_loop.config import TrainConfig
from bigbatch.train_loop.config.words import amount
from bigbatch.train_loop.data.sets.scan import FolderScan
from bigbatch.train_loop.distributed import Meeting, pick_device
from bigbatch.train_loop.host.ranks import Launch
from bigbatch.train_loop.launch.joined_ranks import joined_ranks
from bigbatch.train_loop.launch.options import PROFILES_FILE, ProfileOptions
from bigbatch.train_loop.loop.assembly import Run, set_up
from bigbatch.train_loop.loop.checkpoint import CheckpointFolder
from bigbatch.train_loop.loop.chronometer import OTHER, STEP
from bigbatch.train_loop.loop.oom_retry import Halving, retry_with_smaller_micro_batches
from bigbatch.train_loop.loop.step_profile import StepProfile, measure_steps, trace_steps
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

    Raises the errors of ``train`` that a start or a step may meet.
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

        profile = retry_with_smaller_micro_batches(begin, measured, None, device)
        if launch is not None and launch.rank != 0:
            return
        print(*profile_lines(profile), sep="\n")
        path = output / PROFILES_FILE
        _append(profile, config, path)
        print(f"\nthe figures are in {path}")
        if options.trace_folder is not None:
            print(f"the trace of {TRACED_STEPS} further steps is in {options.trace_folder}: open it in ui.perfetto.dev")


def _append(profile: StepProfile, config: TrainConfig, path: Path) -> None:
    """One JSON line with the measured figures and the estimates."""
    line = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "torch": torch.__version__,
        "model": config.model.name,
        "data": config.data.name,
        "precision": config.precision,
        **dataclasses.asdict(profile),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")


BOUNDS = {
    "computing": "computes forward and backward",
    "data": "waits for data",
    "transfer": "copies and normalises images",
    "communication": "sums gradients over the workers",
    "optimizer": "is the optimizer's",
    OTHER: "lies between the phases",
}
LEAST_BOUND = 0.1
"""A phase is named if it takes at least this part of a step."""


def profile_lines(p: StepProfile) -> list[str]:
    """A table of the phases, what bounds a step, and what the run would take."""
    step_s = p.phases[STEP]
    shares = {name: seconds / step_s for name, seconds in p.phases.items()}
    computing = shares["forward"] + shares["backward"] - shares["communication"]
    bounds = sorted(
        ((({"computing": computing} | shares)[name], words) for name, words in BOUNDS.items()), reverse=True
    )
    named = [f"{100 * share:.0f} % {words}" for share, words in bounds if share >= LEAST_BOUND]
    names = [name for name in p.phases if name != "communication" or p.workers > 1]
    hours = f"{p.workers * p.run_s / 3600:.3g} {'worker' if p.device == 'CPU' else 'GPU'} hours"
    return [
        f"{p.steps} steps on {p.device}, {amount(p.workers, 'worker')}, global batch {p.global_size} = "
        f"{p.workers} × {p.accumulation_steps} × {p.micro_size}",
        *(f"{name:16}{_seconds(p.phases[name]):>10}{100 * shares[name]:9.1f} %" for name in names),
        "",
        f"of each step {', '.join(named)}; {p.images_per_s:,.0f} images/s",
        f"an epoch takes {_seconds(p.train_s + p.bn_s + p.val_s)}, of which validation {_seconds(p.val_s)}; "
        f"{p.epochs} epochs {_seconds(p.run_s)}, {hours}; at most {p.memory_bytes / 2**30:.2f} GiB of memory",
    ]


def _seconds(seconds: float) -> str:
    if seconds < 0.1:
        return f"{1e3 * seconds:.3g} ms"
    if seconds < 100:
        return f"{seconds:.3g} s"
    minutes = seconds / 60
    return f"{minutes:.3g} min" if minutes < 100 else f"{minutes / 60:,.3g} h"
