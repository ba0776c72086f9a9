"""Whether Python finds this project's packages, or files of the same names in the user's own folder.

``python -m``, ``python -c`` and notebooks look into the current folder first, and so does every Python where
PYTHONPATH has an empty entry. A ``cluster.py`` there is then taken for our package, runs, and fails far from its
cause. Each package that imports others asks here before it does. It runs this file by its path, because ``cluster``
is one of the names that may be taken. Nothing of what is looked for is imported.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FROM_ABOVE = ("tune", "search_spaces", "train_loop", "cluster")
"""Each may import those behind it."""
LIBRARIES = ("ray", "torch", "torchvision", "numpy", "PIL", "optuna", "scipy", "wandb", "pyarrow", "sklearn", "rich")
WRONG_INPUT = 2


class ShadowedPackage(ImportError):
    """Python would import another file in place of one of our packages; the message is one line."""


def check(package: str) -> None:
    """Look for the packages that ``package`` imports.

    Raises ShadowedPackage, which a notebook shows. With ``python -m`` prints its line and ends with exit code 2: runpy
    would add a traceback of its own.
    """
    line = refusal(FROM_ABOVE[FROM_ABOVE.index(package) + 1 :], LIBRARIES if package == "tune" else ())
    if line and sys.argv[:1] == ["-m"]:  # what it is while Python still looks for the module to run
        print(f"bigbatch: error: {line}", file=sys.stderr)
        raise SystemExit(WRONG_INPUT)
    if line:
        raise ShadowedPackage(line)


def refusal(own: Sequence[str] = FROM_ABOVE, libraries: Sequence[str] = LIBRARIES) -> str:
    """Why a search cannot run here, in one line; empty where Python finds the right packages."""
    for name in own:
        found = _where(name)
        if found is not None and not _is_same(found, ROOT / name):
            return _line(f"the package {name!r} must be BigBatch's, in {str(ROOT)!r}", found)
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


def _where(name: str) -> Path | None:
    """The file or folder that ``import name`` takes; None where there is none, which the import itself will say."""
    module = sys.modules.get(name)
    spec = getattr(module, "__spec__", None) if module is not None else importlib.util.find_spec(name)
    if spec is None:
        return None
    if spec.submodule_search_locations:  # a package, also a folder without __init__.py
        return Path(next(iter(spec.submodule_search_locations))).resolve()
    return Path(spec.origin).resolve() if spec.origin else None


def _hides_a_library(name: str) -> Path | None:
    """A file or package of this name in the current folder, where Python looks there and has another one elsewhere."""
    here = _current_folder()
    if here is None or here == ROOT or here not in [_resolved(entry) for entry in sys.path]:
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


def _is_same(one: Path, other: Path) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False
