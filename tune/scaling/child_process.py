"""One process at a time that measures a size: its output is shown and kept, signals reach it, it never outlives us."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TextIO

from bigbatch.base.processes import signal_group
from bigbatch.train_loop.host.signals import StopSignals, say_from_handler
from bigbatch.tune.scaling.size_commands import SizeCommand

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
