"""Processes that tests start, and what they leave."""

from __future__ import annotations

import os
import time


def clean_environment() -> dict[str, str]:
    """The environment without what a surrounding Ray or Slurm would add."""
    drop = ("RAY_", "SLURM_", "TUNE_", "PYTHONPATH", "WANDB_")
    return {k: v for k, v in os.environ.items() if not k.startswith(drop)}


def processes_naming(text: str) -> list[str]:
    """Command lines of living processes that contain ``text``."""
    import psutil

    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        line = " ".join(process.info["cmdline"] or ())
        if text in line and process.pid != os.getpid() and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(f"{process.pid}: {line[:200]}")
    return found


def wait_gone(text: str, seconds: float = 60) -> list[str]:
    """Processes naming ``text`` that are still there after ``seconds``."""
    deadline = time.monotonic() + seconds
    while (left := processes_naming(text)) and time.monotonic() < deadline:
        time.sleep(0.2)
    return left
