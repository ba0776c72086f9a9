"""The command that measures a size, and its process.

The command is the same ``bigbatch train`` as a user would type, with this size's workers. One process at a time runs:
its output is shown and kept, signals reach it, it never outlives us.
"""

from __future__ import annotations

import ctypes
import os
import re
import shlex
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from bigbatch.base.processes import signal_group
from bigbatch.train_loop.config.words import epochs_text
from bigbatch.train_loop.host.signals import StopSignals, say_from_handler
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


PR_SET_PDEATHSIG = 1
KEPT_LINES = 30
"""Of a failed process's output, to find its reason in."""
DIVERGED = re.compile(r"failed: ((training|validation) loss is|gradients overflow)")
"""How ``bigbatch train`` says that a loss is not finite (``NonFiniteLossError``)."""


class SizeFailed(Exception):
    """A size could not be measured. The message is one line."""


class SizeDiverged(SizeFailed):
    """Training ended with a loss that is not finite. That is a result: this size cannot train so."""


class ScaleStopped(Exception):
    """A signal asked to stop."""

    def __init__(self, signum: int) -> None:
        super().__init__("stopped on request")
        self.signum = signum


def run_child(command: SizeCommand, log: Path, env: Mapping[str, str]) -> None:
    """Run a command to its end. Its lines go to ``log``, and indented to the terminal.

    Raises:
        SizeFailed: it ended with another exit code than 0; SizeDiverged: because of a loss that is not finite.
        ScaleStopped: a stop signal came; the process has ended, a training with a checkpoint.
    """
    children: list[subprocess.Popen[str]] = []

    def ask(signum: int) -> None:
        say_from_handler("stopping, with a checkpoint of the size that trains; Ctrl-C again to stop at once\n")
        for child in children:
            child.send_signal(signal.SIGTERM)  # a training then writes a checkpoint, and ends its Ray

    signals = StopSignals(ask, same_signal_s=1.0)
    with signals, log.open("a", encoding="utf-8") as file:
        children.append(_start(command, env))
        if signals.first is not None:  # it came before the process was known
            ask(signals.first)
        try:
            last = _pass_on(command, children[0], file)
            code = children[0].wait()
        # Also after another Ctrl-C: nothing that was started here may outlive us.
        except BaseException:
            signal_group(children[0].pid, signal.SIGKILL)
            raise
    if signals.first is not None:
        raise ScaleStopped(signals.first)
    if code:
        said = next((line for line in reversed(last) if "error" in line.lower() or "failed" in line), "")
        reason = said or (last[-1] if last else "it said nothing")
        kind = SizeDiverged if any(DIVERGED.search(line) for line in last) else SizeFailed
        raise kind(f"exit code {code}: {reason} (all of it in {log})")


def _start(command: SizeCommand, env: Mapping[str, str]) -> subprocess.Popen[str]:
    """Start it in a session of its own, so that Ctrl-C in the terminal reaches it once, through us."""
    return subprocess.Popen(
        command.words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=dict(env),
        # A terminal's Ctrl-C would reach it, too: it gets one SIGTERM, from here.
        start_new_session=True,
        preexec_fn=_dies_with(os.getpid(), command.death_signal),
    )


def _pass_on(command: SizeCommand, child: subprocess.Popen[str], file: TextIO) -> list[str]:
    """Show and keep what the process says, until it has closed its output. Returns the last lines."""
    last: deque[str] = deque(maxlen=KEPT_LINES)
    assert child.stdout is not None
    file.write(f"$ {command.typed}\n")
    for line in child.stdout:
        file.write(line)
        file.flush()
        last.append(line.strip())
        if command.is_shown:
            print(f"    {line.rstrip()}", flush=True)
    return list(last)


def _dies_with(parent: int, number: int) -> Callable[[], None]:
    """What the child runs before its program: it gets the signal when its parent dies (Linux)."""
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None

    def prepare() -> None:
        if libc is not None:
            libc.prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)
            if os.getppid() != parent:  # it died in between
                os._exit(1)

    return prepare
