"""A command of ours in a process of its own, for scripts and notebooks: its output, and an interrupt that saves."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from bigbatch.base.command_line import WRONG_INPUT
from bigbatch.base.root import IMPORT_ROOT
from bigbatch.train_loop.config import ConfigError


def our_script(*parts: str) -> list[str]:
    """The command line that runs a file of ours with this interpreter, e.g. ``our_script("tune", "run.py")``."""
    return [sys.executable, str(Path(IMPORT_ROOT, "bigbatch", *parts))]


def run_child(
    words: Sequence[str], stop: int = signal.SIGTERM, *, apart: bool = False, env: Mapping[str, str] = {}
) -> tuple[int, str]:
    """Run a command and print its output. Returns its exit code and the last line of its output.

    An interrupt (Ctrl-C, a notebook's stop button) is passed on. The child saves and ends; then this raises
    KeyboardInterrupt again.

    Args:
        stop: the signal that makes the child save. Front ends interrupt the kernel alone or its whole group; a search
            takes a Ctrl-C and the SIGTERM after it for one request.
        apart: only the child gets ``stop``, once: it is in a process group of its own, which no terminal interrupts.
        env: variables in addition to those of this process.
    """
    last, program = "", f"{'/'.join(Path(words[1]).parts[-2:])}: "
    with subprocess.Popen(
        words,
        stdout=subprocess.PIPE,
        # One stream: lines come in the order in which they were written.
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**os.environ, **env},
        process_group=0 if apart else None,
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                line = line.removeprefix(program)
                print(line, end="", flush=True)
                last = line.strip() or last
        except KeyboardInterrupt:
            process.send_signal(stop)
            for line in process.stdout:
                print(line, end="", flush=True)
            raise
    return process.returncode, last


def check_exit(code: int, last: str, what: str) -> None:
    """Raise ConfigError if the child refused its input, RuntimeError if it failed in another way.

    ``last``: the last line of its output. ``what``: names it, e.g. ``the search of 'digits'``.
    """
    said = re.sub(r"^(\S+: )?(error|failed): ", "", last)
    if code == WRONG_INPUT:
        raise ConfigError(said)
    if code != 0:
        raise RuntimeError(f"{what} ended with exit code {code}: {said}")
