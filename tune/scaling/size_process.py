"""The training of a size: the same ``bigbatch train`` as a user would type, in a process that never outlives us."""

from __future__ import annotations

import ctypes
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence

from bigbatch.base.atomic_files import write_text
from bigbatch.base.processes import signal_group
from bigbatch.train_loop.host.signals import StopSignals, say_from_handler
from bigbatch.tune.scaling.scale_plan import ScalePlan, SizePlan, threads_of


class SizeFailed(Exception):
    """A size could not be trained. The message is one line."""


class ScaleStopped(Exception):
    """A signal asked to stop."""

    def __init__(self, signum: int) -> None:
        super().__init__("stopped on request")
        self.signum = signum


def train_size(plan: ScalePlan, size: SizePlan) -> None:
    """Train one size; what an earlier process has done of it is not done again.

    Raises:
        SizeFailed: the training failed.
        ScaleStopped: a signal asked to stop.
    """
    plan.output.mkdir(parents=True, exist_ok=True)
    write_text(plan.config_file(size.workers), size.config.to_json())
    threads = threads_of(plan.machine, max(one.workers for one in plan.sizes))
    words = size_command(plan, size)
    print(f"\n{shlex.join(words)}", flush=True)
    try:
        run_child(words, {**os.environ, **({} if threads is None else {"OMP_NUM_THREADS": threads})})
    except SizeFailed as error:
        raise SizeFailed(f"--workers {size.workers}: {error}") from None


def size_command(plan: ScalePlan, size: SizePlan) -> tuple[str, ...]:
    """Trains this size's configuration: under Ray Train within a node, with srun over several."""
    stage = ("--stage", plan.stage_folder) if plan.stage_folder else ()
    output = ("--output", str(plan.folder(size.workers)))
    train = (
        *(sys.executable, "-m", "bigbatch", "train", "--config", str(plan.config_file(size.workers)), *stage, *output),
    )
    if size.nodes == 1:
        return (*train, "--workers", str(size.workers))
    cores = os.environ.get("SLURM_CPUS_PER_TASK")  # since Slurm 22.05 a step does not inherit -c
    return (
        # The first step of the job holds its cores. A rank that fails must end the others, which wait for it in a
        # collective.
        "srun", "--overlap", "--kill-on-bad-exit=1", f"--nodes={size.nodes}", f"--ntasks={size.workers}",
        f"--ntasks-per-node={size.workers // size.nodes}", *((f"--cpus-per-task={cores}",) if cores else ()), *train,
    )  # fmt: skip


def run_child(words: Sequence[str], env: Mapping[str, str]) -> None:
    """Run a command to its end. It gets SIGTERM if this process dies without a word.

    Raises:
        SizeFailed: it ended with another exit code than 0.
        ScaleStopped: a stop signal came; the process has ended, with a checkpoint.
    """
    children: list[subprocess.Popen[bytes]] = []

    def ask(signum: int) -> None:
        say_from_handler("stopping, with a checkpoint of the size that trains; Ctrl-C again to stop at once\n")
        for child in children:
            child.send_signal(signal.SIGTERM)  # a training then writes a checkpoint, and ends its Ray

    signals = StopSignals(ask, same_signal_s=1.0)
    with signals:
        children.append(
            subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                env=dict(env),
                # A terminal's Ctrl-C would reach it, too: it gets one SIGTERM, from here.
                start_new_session=True,
                preexec_fn=_dies_with(os.getpid()),
            )
        )
        if signals.first is not None:  # it came before the process was known
            ask(signals.first)
        try:
            code = children[0].wait()
        # Also after another Ctrl-C: nothing that was started here may outlive us.
        except BaseException:
            signal_group(children[0].pid, signal.SIGKILL)
            raise
    if signals.first is not None:
        raise ScaleStopped(signals.first)
    if code:
        raise SizeFailed(f"its training ended with exit code {code}; its lines above say why")


PR_SET_PDEATHSIG = 1


def _dies_with(parent: int) -> Callable[[], None]:
    """What the child runs before its program: it gets SIGTERM when its parent dies (Linux)."""
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None

    def prepare() -> None:
        if libc is not None:
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
            if os.getppid() != parent:  # it died in between
                os._exit(1)

    return prepare
