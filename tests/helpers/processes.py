"""Processes that tests start, and what they leave."""

from __future__ import annotations

import os
from pathlib import Path

from helpers.waiting import wait_until

# Ray runs its workers with a niceness of 15. Beside one busy process per core, such as other tests, they have a
# thirtieth of the time of others, and searches reach the time limits of their tests.
AS_URGENT_AS_OTHERS = {"RAY_worker_niceness": "0"}


def clean_environment() -> dict[str, str]:
    """The environment without what a surrounding Ray or Slurm would add."""
    drop = ("RAY_", "SLURM_", "TUNE_", "PYTHONPATH", "WANDB_")
    return {k: v for k, v in os.environ.items() if not k.startswith(drop)} | AS_URGENT_AS_OTHERS


def program(path: Path, script: str) -> Path:
    """Write an executable shell script: in place of Slurm's programs, of Apptainer or of an interpreter."""
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def processes_naming(text: str) -> list[str]:
    """Command lines of living processes that contain ``text``."""
    import psutil

    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        line = " ".join(process.info["cmdline"] or ())
        if text in line and process.pid != os.getpid() and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(f"{process.pid}: {line[:200]}")
    return found


def wait_gone(text: str, limit_s: float = 240) -> None:
    """Wait until no living process names ``text``; an AssertionError names those that stay."""
    wait_until(lambda: not processes_naming(text), lambda: "\n".join(processes_naming(text)), limit_s)
