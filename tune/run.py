"""``python tune/run.py --space large_batch``: the main job. ``--help`` lists the options."""

import sys
from pathlib import Path

if not __package__:
    # Run as a file, Python puts tune/ first on sys.path, where its modules would shadow others.
    here = Path(__file__).resolve().parent
    sys.path[:] = [str(here.parent), *(entry for entry in sys.path if Path(entry or ".").resolve() != here)]

try:
    from cluster.streams import over
    from tune.cli import tune_main
except KeyboardInterrupt:  # Ctrl-C while Python still reads its files
    sys.exit(130)

if __name__ == "__main__":
    sys.exit(over(tune_main()))
