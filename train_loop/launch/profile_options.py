"""``--profile-steps`` and ``--torch-profiler``: their options and checks. No torch here."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from bigbatch.train_loop.config import ConfigError
from bigbatch.train_loop.host.command_line import check_writable
from bigbatch.train_loop.host.ranks import Launch

PROFILES_FILE = "profile.jsonl"
"""In the output folder: a line for each profile."""


@dataclass(frozen=True)
class ProfileOptions:
    """What is measured in place of training."""

    steps: int
    trace_folder: Path | None
    """Where torch's profiler writes a trace of further steps; None: it does not."""


def add_profile_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a profile."""
    add = parser.add_argument
    add(
        "--profile-steps",
        type=int,
        metavar="N",
        help="measure each phase of N steps and validation; print what bounds the run and what it would take; stop",
    )
    add(
        "--torch-profiler",
        metavar="DIR",
        help="with --profile-steps: also write a trace of ten further steps here, for Perfetto or TensorBoard",
    )


def read_profile_options(args: argparse.Namespace, workers: int, launch: Launch | None) -> ProfileOptions | None:
    """The checked options; None if nothing is to be measured. Raises ConfigError."""
    steps, folder = args.profile_steps, args.torch_profiler
    if steps is None:
        if folder is not None:
            raise ConfigError(
                "--torch-profiler traces steps of a profile; got no --profile-steps. Write --profile-steps 50 as well."
            )
        return None
    if steps < 1:
        raise ConfigError(f"--profile-steps must be at least 1; got {steps}. Write --profile-steps 50.")
    if args.loader_report:
        raise ConfigError("one thing is measured at a time; got --profile-steps and --loader-report. Leave one out.")
    if launch is None and workers > 1:
        raise ConfigError(
            f"--profile-steps measures one worker, or those of torchrun or srun; got --workers {workers}. "
            f"Start it with torchrun --nproc-per-node {workers} train_loop/run.py … and leave --workers out."
        )
    if folder is not None:
        check_writable("--torch-profiler", Path(folder).absolute())
    return ProfileOptions(steps, Path(folder).absolute() if folder is not None else None)
