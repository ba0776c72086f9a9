"""Slurm's commands, where only their words or their slowness matter."""

from __future__ import annotations

import os
from pathlib import Path


def names(text: str) -> list[str]:
    return text.split(",")


def stand_in(folder: Path, monkeypatch, **commands: str) -> None:
    for name, script in commands.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
