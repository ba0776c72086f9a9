"""Measure the sizes of a plan, one after the other. A size that is done is not measured again.

``--retune``: a short search at each size, around the scaled configuration, so that accuracy holds.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path

from bigbatch.base.atomic_files import write_text
from bigbatch.train_loop.config import ConfigError, TrainConfig, differing_keys
from bigbatch.train_loop.config.given import read_config
from bigbatch.train_loop.config.last_step import KEY as LAST_STEP
from bigbatch.train_loop.host.folder_hold import hold_folder
from bigbatch.tune.scaling.scale_plan import ScalePlan, SizePlan, threads_of
from bigbatch.tune.scaling.size_process import (
    BIGBATCH,
    PROFILE_FOLDER,
    RETUNE_STUDY,
    RUN_FOLDER,
    SizeCommand,
    SizeDiverged,
    SizeFailed,
    config_path,
    profile_of_size,
    run_child,
    training_of_size,
)
from bigbatch.tune.scaling.size_result import SizeResult, collected, read_history, read_profile, size_folder, write_size
from bigbatch.tune.storage.description import STUDY_FILE

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
    hold = hold_folder(folder, "a size of a scaling study", "measure other sizes here with --workers")
    try:
        return _measure_held(plan, size, folder, run)
    finally:
        hold.close()


def _measure_held(plan: ScalePlan, size: SizePlan, folder: Path, run: RunChild) -> SizeResult:
    env = child_environment(plan)

    def carry_out(command: SizeCommand) -> None:
        print(f"  {size.workers} worker{'s' * (size.workers > 1)}: {command.what}: {command.typed}", flush=True)
        try:
            run(command, folder / LOG_FILE, env)
        except SizeFailed as error:
            raise type(error)(f"--workers {size.workers}: {error}") from None

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
        raise SizeFailed(f"--workers {size.workers}: its processes ended without a result; see {folder}")
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
        raise SizeFailed(f"--workers {size.workers}: its search ended without a finished trial")
    try:
        config = same_run(size.config, read_config(found))
    except ConfigError as error:  # its search has no usable answer
        raise SizeFailed(f"--workers {size.workers}: {error}") from None
    write_text(config_path(plan, size), config.to_json())
    return dataclasses.replace(size, config=config)


def same_run(planned: TrainConfig, found: TrainConfig) -> TrainConfig:
    """What a search found, on the data and for the epochs of the plan."""
    return dataclasses.replace(found, data=planned.data, model=planned.model, epochs=planned.epochs, seed=planned.seed)


def child_environment(plan: ScalePlan) -> dict[str, str]:
    """The environment of a size's processes."""
    threads = threads_of(plan.machine, max(one.workers for one in plan.sizes))
    return {**os.environ, **({} if threads is None else {"OMP_NUM_THREADS": threads})}


SEARCHED = (
    "optimizer.", "schedule.", "batch.global_size", "label_smoothing", "epochs", "seed", "data.name", "model.name",
    "data.holdout", "schema_version",
)  # fmt: skip
"""Keys that the search chooses, or that options of their own name."""
BEST_FILE = "best.json"


def check_retune(plan: ScalePlan) -> None:
    """Raise ConfigError for what a short search cannot do."""
    if not plan.retune_trials:
        return
    if plan.retune_trials < 2:
        raise ConfigError(
            f"--retune searches with 2 trials or more; got {plan.retune_trials}. The first one is the scaled "
            "configuration itself. Write e.g. --retune 8."
        )
    if not plan.epochs:
        raise ConfigError("--retune trains; got --epochs 0. Write the epochs of a trial, or leave --retune out.")
    for size in plan.sizes:
        if size.nodes > 1:
            raise ConfigError(
                f"--retune searches on one node; got a size of {size.workers} workers on {size.nodes} nodes. Search it "
                "with bigbatch cluster submit, and measure it without --retune."
            )


def study_path(plan: ScalePlan, size: SizePlan) -> Path:
    """The folder of a size's search."""
    return size_folder(plan.output, size.workers) / RETUNE_STUDY


def searched_config(plan: ScalePlan, size: SizePlan) -> Path | None:
    """The file that a finished search has found; None before it has ended."""
    folder = study_path(plan, size)
    return folder / BEST_FILE if (folder / BEST_FILE).exists() and _has_ended(folder, plan) else None


def _has_ended(folder: Path, plan: ScalePlan) -> bool:
    from bigbatch.tune.storage.summary import summarize

    return summarize(folder).ended >= plan.retune_trials


def retune_command(plan: ScalePlan, size: SizePlan) -> SizeCommand:
    """The search of a size; the command that continues it if there is one already."""
    folder, c = study_path(plan, size), size.config
    where = ("--output", str(folder.parent), "--study", folder.name)
    what = f"search of {plan.retune_trials} trials"
    if (folder / STUDY_FILE).exists():
        return SizeCommand(what, (*BIGBATCH, "tune", "--resume", *where), signal.SIGKILL)
    words = (
        "tune", "--space", "large_batch", "--data", c.data.name, "--model", c.model.name,
        "--batch", str(c.batch.global_size), "--trials", str(plan.retune_trials), "--max-epochs", str(c.epochs),
        "--workers", str(size.workers), "--objective", plan.objective.text, "--confirm", "none",
        "--holdout", f"{c.data.holdout:g}" if c.data.holdout else "none", "--seed", str(c.seed),
        "--enqueue", str(config_path(plan, size)), "--set", f"optimizer={c.optimizer.name}", *fixed_keys(c), *where,
    )  # fmt: skip
    return SizeCommand(what, (*BIGBATCH, *words), signal.SIGKILL)


def fixed_keys(config: TrainConfig) -> list[str]:
    """``KEY=VALUE`` of everything that the search leaves as the configuration has it.

    It would decide on the last step of an epoch by itself, so that key is always there.
    """
    before, after = TrainConfig().to_dict(), config.to_dict()
    keys = dict.fromkeys([*(words.partition(" ")[0] for words in differing_keys(before, after)), LAST_STEP])
    found = []
    for key in (key for key in keys if not key.startswith(SEARCHED)):
        value: object = after
        for name in key.split("."):
            value = value[name]  # type: ignore[index]
        found.append(f"{key}={json.dumps(value) if not isinstance(value, str) else value}")
    return found
