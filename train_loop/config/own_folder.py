"""The folder of a user's file: which Python files lie there, and how that file finds them. No torch."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_beside: dict[str, Path] = {}
"""Modules that users' files have imported from their own folder: name → folder."""


def python_files(folder: Path) -> list[str]:
    """Names of the Python files in the folder; none if it cannot be read."""
    try:
        return [name for name in os.listdir(folder) if name.endswith(".py")]
    except OSError:
        return []


@contextmanager
def folder_first(folder: Path) -> Iterator[None]:
    """Within the block Python finds the files in ``folder`` first, and none of the same name beside another file.

    For a file that loads. Afterwards those beside it could hide libraries of the same name.
    """
    for name in [name for name, other in _beside.items() if other != folder and _is_there(folder, name)]:
        for loaded in [each for each in sys.modules if each == name or each.startswith(f"{name}.")]:
            del sys.modules[loaded]
        del _beside[name]
    before = set(sys.modules)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        # The user's file may have changed the path itself.
        if str(folder) in sys.path:
            sys.path.remove(str(folder))
        new = {name.partition(".")[0] for name in set(sys.modules) - before}
        _beside.update({name: folder for name in new if _is_there(folder, name)})


def _is_there(folder: Path, name: str) -> bool:
    return (folder / f"{name}.py").is_file() or (folder / name).is_dir()
