"""``python tune/run.py --space large_batch``: the main job. ``--help`` lists the options."""

import runpy
import sys
from pathlib import Path

if not __package__:
    root = Path(__file__).resolve().parents[1] / "cluster" / "host" / "root.py"
    runpy.run_path(str(root))["make_importable"](__file__)

try:
    from bigbatch.cluster.host.streams import exit_code_after_output
    from bigbatch.tune.search.command import tune_main
except KeyboardInterrupt:  # Ctrl-C while Python still reads its files
    sys.exit(130)

if __name__ == "__main__":
    sys.exit(exit_code_after_output(tune_main()))
