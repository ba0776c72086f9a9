"""Find this project's folder, in a clone or installed by pip. Imports no other file of ours.

A file that is run by its path calls ``make_importable``, by ``runpy.run_path``, before it imports the package. So this
file keeps to the syntax of Python 3.6: then the package can say in one line that it needs a newer Python.
"""

import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]

IMPORT_ROOT = PACKAGE.parent
"""The folder in which Python finds the package ``bigbatch``: a clone's ``src``, or ``site-packages``."""

ROOT = (PACKAGE / "cluster").resolve().parent
"""The folder with ``tune/``, ``train_loop/``, ``search_spaces/`` and ``cluster/``: a clone's root, to which links lead,
or the installed package ``bigbatch``."""


def make_importable(script: str) -> None:
    """Put ``bigbatch`` on ``sys.path``, and remove the folder of ``script``, whose modules could hide others.

    Args:
        script: ``__file__`` of a file that is run by its path, for which Python has put its folder first.
    """
    here = Path(script).resolve().parent
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != here]
    if not any(Path(entry or ".").resolve() == IMPORT_ROOT for entry in sys.path):
        sys.path.insert(0, str(IMPORT_ROOT))
