"""Where the console command ``bigbatch`` begins: under a name that no folder of a user has by chance.

Before a package of ours is imported it looks whether Python would find ours, see ``cluster/own_packages.py``.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path


def main() -> int:
    """Returns the exit code of the command, or 2 where other files have taken the names of our packages."""
    line = runpy.run_path(str(Path(__file__).resolve().parent / "cluster" / "own_packages.py"))["refusal"]()
    if line:
        print(f"bigbatch: error: {line}", file=sys.stderr)
        return 2
    try:
        from cluster.streams import over
        from tune.cli import main as command
    except KeyboardInterrupt:  # Ctrl-C while Python still reads its files
        return 130
    return over(command())
