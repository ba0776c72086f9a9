"""Commands run to their end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from helpers.paths import TUNE
from helpers.processes import clean_environment


def run(*arguments: object, cwd: Path, command: tuple[str, ...] = (sys.executable, str(TUNE)), **env: str):
    return subprocess.run(
        [*command, *map(str, arguments)],
        cwd=cwd,
        env={**clean_environment(), **env},
        capture_output=True,
        text=True,
        timeout=240,
    )
