"""``--retune``: a short search at each size, around the scaled configuration, so that accuracy holds."""

from __future__ import annotations

import json
import signal
from pathlib import Path

from bigbatch.train_loop.config import ConfigError, TrainConfig, differing_keys
from bigbatch.train_loop.config.last_step import KEY as LAST_STEP
from bigbatch.tune.scaling.scale_plan import ScalePlan, SizePlan
from bigbatch.tune.scaling.size_commands import BIGBATCH, RETUNE_STUDY, SizeCommand, config_path
from bigbatch.tune.scaling.size_result import size_folder
from bigbatch.tune.storage.description import STUDY_FILE

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
        if size.nodes > 1 and size.workers in plan.only:
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
