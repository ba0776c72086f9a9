"""Where this project lies, in a clone or installed by pip. Imports nothing of ours, and runs on Python 3.9.

A file that is run by its path calls ``make_importable`` before it imports the package, by ``runpy.run_path``.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""The folder with ``tune/``, ``train_loop/``, ``search_spaces/`` and ``cluster/``: a clone's root, or the installed
package ``bigbatch``."""

IMPORT_ROOT = ROOT / "src" if (ROOT / "src" / "bigbatch" / "__init__.py").is_file() else ROOT.parent
"""The folder in which Python finds the package ``bigbatch``: a clone's ``src``, or ``site-packages``."""


def make_importable(script: str) -> None:
    """Put ``bigbatch`` on ``sys.path``, and take off the folder of ``script``, whose modules would shadow others.

    Args:
        script: ``__file__`` of a file that is run by its path, for which Python has put its folder first.
    """
    here = Path(script).resolve().parent
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != here]
    if not any(Path(entry or ".").resolve() == IMPORT_ROOT for entry in sys.path):
        sys.path.insert(0, str(IMPORT_ROOT))


def alias_package(package: str) -> None:
    """Make ``bigbatch.<package>`` answer to the name ``package``, so that no module is imported under two names.

    For ``python -m cluster.job`` and its like in a clone's root: batch scripts that were queued before the packages
    moved into ``bigbatch`` say so.
    """
    if str(IMPORT_ROOT) not in sys.path:
        sys.path.insert(0, str(IMPORT_ROOT))
    sys.modules[package] = importlib.import_module(f"bigbatch.{package}")
    if package == "cluster":
        for wing in ("job", "node"):  # packages that are run by `python -m`
            sys.modules[f"cluster.{wing}"] = importlib.import_module(f"bigbatch.cluster.{wing}")
        # Jobs that run while the repository is brought up to date call `python -m cluster.gcs` and its like.
        for wing in ("node", "doctor", "submission"):
            sys.modules[package].__path__.append(str(ROOT / "cluster" / wing))
