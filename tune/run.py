"""``python tune/run.py --space large_batch``: the main job. ``--help`` lists the options."""

import runpy
import sys
from pathlib import Path

# Run as a file, Python looks into this folder first, where a module may have the name of a library.
if not __package__:
    here = Path(__file__).resolve().parents[1]  # a clone's root, or the installed package
    base = next(path for path in (here / "src" / "bigbatch" / "base", here / "base") if path.is_dir())
    runpy.run_path(str(base / "root.py"))["make_importable"](__file__)

try:
    from bigbatch.tune.commands.tune import tune_main
except KeyboardInterrupt:  # Ctrl-C while Python still reads its files
    sys.exit(130)

if __name__ == "__main__":
    sys.exit(tune_main())
