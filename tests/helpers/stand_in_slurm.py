"""Slurm's commands, where only their words or their slowness matter."""

import os
from pathlib import Path

from helpers.processes import program


def names(text: str) -> list[str]:
    return text.split(",")


def stand_in(folder: Path, monkeypatch, **commands: str) -> None:
    for name, script in commands.items():
        program(folder / name, script)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
