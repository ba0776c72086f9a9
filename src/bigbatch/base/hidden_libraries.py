"""Check that Python finds the libraries of a search, not files of the same names in the user's folder.

``python -m``, ``python -c`` and notebooks first look into the current folder, and so does any Python with an empty
entry in PYTHONPATH. They would run a ``torch.py`` there in place of the library, and fail far from the cause. The
check imports none of these libraries.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder
from pathlib import Path

LIBRARIES = ("ray", "torch", "torchvision", "numpy", "PIL", "optuna", "scipy", "wandb", "pyarrow", "sklearn", "rich")
WRONG_INPUT = 2


def refuse_hidden_libraries() -> None:
    """Raise ImportError, which a notebook shows, if a file hides a library.

    With ``python -m``, print its line and exit with code 2 instead: runpy would add a traceback.
    """
    line = refusal()
    if line and sys.argv[:1] == ["-m"]:  # sys.argv while Python still looks for the module to run
        print(f"bigbatch: error: {line}", file=sys.stderr)
        raise SystemExit(WRONG_INPUT)
    if line:
        raise ImportError(line)


def refusal() -> str:
    """Why a search cannot run here, in one line; empty if Python finds the installed libraries."""
    for name in LIBRARIES:
        found = _hides_a_library(name)
        if found is not None:
            rule = f"the library {name!r} must be the installed one; got {str(found)!r}, which Python finds first"
            return f"{rule}. Rename it, or start from another folder."
    return ""


def _hides_a_library(name: str) -> Path | None:
    """A file or package of this name in the current folder, if Python would find it before the installed one."""
    here = _current_folder()
    if here is None or here not in [_resolved(entry) for entry in sys.path]:
        return None
    for found in (here / f"{name}.py", here / name):
        if found.is_file() or (found / "__init__.py").is_file():
            # Where the library is not installed, nothing is hidden.
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
