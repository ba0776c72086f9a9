"""``--profile-steps N``: measure N steps and validation, say what bounds the run and what the whole run would take."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import torch

from bigbatch.train_loop.config import ConfigError, TrainConfig
from bigbatch.train_loop.data.sets.scan import FolderScan
from bigbatch.train_loop.distributed import Meeting, pick_device
from bigbatch.train_loop.host.ranks import Launch
from bigbatch.train_loop.launch.joined_ranks import joined_ranks
from bigbatch.train_loop.launch.loader_report import cores_of_a_run
from bigbatch.train_loop.launch.profile_options import PROFILES_FILE, ProfileOptions
from bigbatch.train_loop.launch.profile_words import profile_lines
from bigbatch.train_loop.loop.assembly import Run, set_up
from bigbatch.train_loop.loop.checkpoint import CheckpointFolder
from bigbatch.train_loop.loop.oom_retry import Halving
from bigbatch.train_loop.loop.step_profile import StepProfile, measure_steps, trace_steps
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
        for line in profile_lines(profile, config, cores_of_a_run(torch.cuda.device_count())):
            print(line)
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
            "gpu_energy_j": profile.gpu_energy_j,
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
