"""A file system of its own that a test may fill."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def mounted(options: str = "size=60m") -> Iterator[Path]:
    """A file system in memory with these mount options, whose path is short enough for sockets."""
    folder = Path(tempfile.mkdtemp(prefix="bbd", dir="/tmp"))
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode != 0:
        folder.rmdir()
        pytest.skip("needs root and the right to mount a tmpfs")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)
    folder.rmdir()


def fill(folder: Path, leave_bytes: int = 0) -> Path:
    """Another program's file takes the room that is left. It asks again if others write meanwhile."""
    hog = folder / "hog"
    block = 4096
    with hog.open("wb") as file:
        for attempt in range(100):
            stat = os.statvfs(folder)
            spared = leave_bytes + attempt * block
            with contextlib.suppress(OSError):
                os.posix_fallocate(file.fileno(), 0, max(block, stat.f_bavail * stat.f_frsize - spared))
                return hog
    raise AssertionError(f"{folder} could not be filled")
