"""The commands that measure a size: the same ``bigbatch train`` as a user would type, with this size's workers."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

from bigbatch.train_loop.config.words import epochs_text
from bigbatch.tune.scaling.scale_plan import ScalePlan, SizePlan
from bigbatch.tune.scaling.size_result import size_folder

CONFIG_FILE = "config.json"
PROFILE_FOLDER, RUN_FOLDER, RETUNE_STUDY = "profile", "run", "retune"
BIGBATCH = (sys.executable, "-m", "bigbatch")


@dataclass(frozen=True)
class SizeCommand:
    """A process that is started for a size."""

    what: str
    """In words: ``profile of 50 steps``."""
    words: tuple[str, ...]
    death_signal: int
    """What the process gets when the study's process dies without a word. Ray ends with its driver; torchrun and srun
    must end their ranks themselves."""
    is_shown: bool = True
    """Whether its lines go to the terminal too."""

    @property
    def typed(self) -> str:
        """As a user would type it in the current folder."""
        here = f"{Path.cwd()}/"
        words = [word.removeprefix(here) for word in self.words]
        if self.words[: len(BIGBATCH)] == BIGBATCH:
            words = ["bigbatch", *words[len(BIGBATCH) :]]
        return shlex.join("python" if word == sys.executable.removeprefix(here) else word for word in words)


def config_path(plan: ScalePlan, size: SizePlan) -> Path:
    """The configuration that a size trains."""
    return size_folder(plan.output, size.workers) / CONFIG_FILE


def profile_of_size(plan: ScalePlan, size: SizePlan) -> SizeCommand:
    """Measures steps on this size's ranks, without Ray: torchrun within a node, srun over several."""
    folder = size_folder(plan.output, size.workers) / PROFILE_FOLDER
    train = _train(plan, size, folder, "--profile-steps", str(plan.profile_steps))
    what = f"profile of {plan.profile_steps} steps"
    if size.workers == 1:
        return SizeCommand(what, (*BIGBATCH, *train), signal.SIGKILL, is_shown=False)
    if size.nodes > 1:
        return SizeCommand(what, (*_srun(size), *BIGBATCH, *train), signal.SIGTERM, is_shown=False)
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(size.workers))
    return SizeCommand(what, (*torchrun, "-m", "bigbatch", *train), signal.SIGTERM, is_shown=False)


def training_of_size(plan: ScalePlan, size: SizePlan) -> SizeCommand:
    """Trains this size's configuration: under Ray Train within a node, with srun over several."""
    folder = size_folder(plan.output, size.workers) / RUN_FOLDER
    what = f"training of {epochs_text(plan.epochs)}"
    if size.nodes > 1:
        return SizeCommand(what, (*_srun(size), *BIGBATCH, *_train(plan, size, folder)), signal.SIGTERM)
    workers = ("--workers", str(size.workers))
    return SizeCommand(what, (*BIGBATCH, *_train(plan, size, folder, *workers)), signal.SIGKILL)


def _train(plan: ScalePlan, size: SizePlan, output: Path, *more: str) -> tuple[str, ...]:
    stage = ("--stage", plan.stage_folder) if plan.stage_folder else ()
    return ("train", "--config", str(config_path(plan, size)), *more, *stage, "--output", str(output))


def _srun(size: SizePlan) -> tuple[str, ...]:
    """A step on a part of the job's nodes, one task a worker. Since Slurm 22.05 a step does not inherit -c."""
    per_node = size.workers // size.nodes
    cores = os.environ.get("SLURM_CPUS_PER_TASK")
    return (
        # The first step of the job holds its cores. A rank that fails must end the others, which wait for it in a
        # collective.
        "srun", "--overlap", "--kill-on-bad-exit=1", f"--nodes={size.nodes}", f"--ntasks={size.workers}",
        f"--ntasks-per-node={per_node}", *((f"--cpus-per-task={cores}",) if cores else ()),
    )  # fmt: skip
