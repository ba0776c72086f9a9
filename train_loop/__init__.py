"""One training run: configuration, data, models, optimizers, loop. Importing it loads nothing heavy."""

import runpy
from pathlib import Path

# By its path: a file of the user's may have taken the name of a package, and must not run.
runpy.run_path(str(Path(__file__).resolve().parent.parent / "cluster" / "own_packages.py"))["check"](__name__)
