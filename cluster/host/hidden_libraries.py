"""Whether Python finds the libraries that a search needs, or files of the same names in the user's own folder.

``python -m``, ``python -c`` and notebooks look into the current folder first, and so does every Python where
PYTHONPATH has an empty entry. A ``torch.py`` there is then taken for the library, runs, and fails far from its cause.
Nothing of what is looked for is imported.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder
from pathlib import Path

LIBRARIES = ("ray", "torch", "torchvision", "numpy", "PIL", "optuna", "scipy", "wandb", "pyarrow", "sklearn", "rich")
WRONG_INPUT = 2


class HiddenLibrary(ImportError):
    """Python would import another file in place of a library; the message is one line."""


def refuse_hidden_libraries() -> None:
    """Raise HiddenLibrary, which a notebook shows, where a file hides a library.

    With ``python -m`` print its line and end with exit code 2: runpy would add a traceback of its own.
    """
    line = refusal()
    if line and sys.argv[:1] == ["-m"]:  # what it is while Python still looks for the module to run
        print(f"bigbatch: error: {line}", file=sys.stderr)
        raise SystemExit(WRONG_INPUT)
    if line:
        raise HiddenLibrary(line)


def refusal(libraries: Sequence[str] = LIBRARIES) -> str:
    """Why a search cannot run here, in one line; empty where Python finds the installed libraries."""
    for name in libraries:
        found = _hides_a_library(name)
        if found is not None:
            return _line(f"the library {name!r} must be the one that is installed", found)
    return ""


def _line(rule: str, found: Path) -> str:
    here = _current_folder()
    if here is not None and found.parent == here:
        return f"{rule}; got {str(found)!r}, which Python finds first. Rename it, or start from another folder."
    return f"{rule}; got {str(found)!r}, which Python finds first. Rename it, or take its folder off PYTHONPATH."


def _hides_a_library(name: str) -> Path | None:
    """A file or package of this name in the current folder, where Python looks there and has another one elsewhere."""
    here = _current_folder()
    if here is None or here not in [_resolved(entry) for entry in sys.path]:
        return None
    for found in (here / f"{name}.py", here / name):
        if found.is_file() or (found / "__init__.py").is_file():
            elsewhere = [entry for entry in sys.path if _resolved(entry) != here]
            return found if PathFinder.find_spec(name, elsewhere) else None
    return None


def _resolved(entry: str) -> Path | None:
    try:
        return Path(entry or os.curdir).resolve()
    except OSError:
        return None


def _current_folder() -> Path | None:
    try:
        return Path.cwd().resolve()
    except OSError:  # it was removed
        return None
