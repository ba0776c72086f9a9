"""Measure the sizes of a plan, one after the other. A size that is done is not measured again."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from bigbatch.base.atomic_files import write_text
from bigbatch.cluster.host.allocation import usable_cpus
from bigbatch.train_loop.config import ConfigError, TrainConfig
from bigbatch.train_loop.config.given import read_config
from bigbatch.train_loop.host.folder_hold import hold_folder
from bigbatch.tune.scaling.child_process import SizeDiverged, SizeFailed, run_child
from bigbatch.tune.scaling.retune import retune_command, searched_config
from bigbatch.tune.scaling.scale_plan import ScaleMachine, ScalePlan, SizePlan
from bigbatch.tune.scaling.size_commands import (
    PROFILE_FOLDER,
    RUN_FOLDER,
    SizeCommand,
    config_path,
    profile_of_size,
    training_of_size,
)
from bigbatch.tune.scaling.size_result import (
    SizeResult,
    collected,
    read_history,
    read_profile,
    size_folder,
    write_size,
)

LOG_FILE = "log.txt"
RunChild = Callable[[SizeCommand, Path, Mapping[str, str]], None]


def measure_size(plan: ScalePlan, size: SizePlan, run: RunChild = run_child) -> SizeResult:
    """Measure one size: search if that was asked for, profile steps, train. What was done before is kept.

    Raises:
        ConfigError: another process measures this size.
        SizeFailed: a command of it failed.
        ScaleStopped: a signal asked to stop.
    """
    folder = size_folder(plan.output, size.workers)
    folder.mkdir(parents=True, exist_ok=True)
    hold = hold_folder(folder, "a size of a scaling study", "measure other sizes here with --only")
    try:
        return _measure_held(plan, size, folder, run)
    finally:
        hold.close()


def _measure_held(plan: ScalePlan, size: SizePlan, folder: Path, run: RunChild) -> SizeResult:
    env = child_environment(plan.machine, max(one.workers for one in plan.sizes))

    def carry_out(command: SizeCommand) -> None:
        print(f"  {size.workers} worker{'s' * (size.workers > 1)}: {command.what}: {command.typed}", flush=True)
        try:
            run(command, folder / LOG_FILE, env)
        except SizeFailed as error:
            raise type(error)(f"the size of {size.workers} workers: {error}") from None

    write_text(config_path(plan, size), size.config.to_json())
    if plan.retune_trials:
        size = _searched(plan, size, carry_out)
    profile = read_profile(folder / PROFILE_FOLDER)
    if profile is None:
        carry_out(profile_of_size(plan, size))
        profile = read_profile(folder / PROFILE_FOLDER)
    history, diverged = read_history(folder / RUN_FOLDER), False
    if plan.epochs and not history:
        try:
            carry_out(training_of_size(plan, size))
        except SizeDiverged as error:
            print(f"  {error}", flush=True)
            diverged = True
        history = read_history(folder / RUN_FOLDER)
    if profile is None or (plan.epochs and not history and not diverged):
        raise SizeFailed(f"the size of {size.workers} workers: its processes ended without a result; see {folder}")
    result = collected(plan, size, profile, history, searched=plan.retune_trials > 0, diverged=diverged)
    write_size(plan.output, result)
    return result


def _searched(plan: ScalePlan, size: SizePlan, carry_out: Callable[[SizeCommand], None]) -> SizePlan:
    """The size with the configuration that its search has found; after a kill the search goes on."""
    found = searched_config(plan, size)
    if found is None:
        carry_out(retune_command(plan, size))
        found = searched_config(plan, size)
    if found is None:
        raise SizeFailed(f"the size of {size.workers} workers: its search ended without a finished trial")
    try:
        config = same_run(size.config, read_config(found))
    except ConfigError as error:  # its search has no usable answer
        raise SizeFailed(f"the size of {size.workers} workers: {error}") from None
    write_text(config_path(plan, size), config.to_json())
    return dataclasses.replace(size, config=config)


def same_run(planned: TrainConfig, found: TrainConfig) -> TrainConfig:
    """What a search found, on the data and for the epochs of the plan."""
    return dataclasses.replace(found, data=planned.data, model=planned.model, epochs=planned.epochs, seed=planned.seed)


def child_environment(
    machine: ScaleMachine, most_workers: int, environ: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """The environment of a size's processes.

    On CPUs each worker computes with the same number of threads at every size: those of the largest one. A serial run
    that used all cores would be compared with runs that share them.
    """
    env = dict(environ)
    if machine.unit != "GPUs" and "OMP_NUM_THREADS" not in env:
        on_node = min(most_workers, machine.per_node)
        env["OMP_NUM_THREADS"] = str(max(1, usable_cpus() // on_node))
    return env
