"""``python -m bigbatch …``, and ``python src/bigbatch …`` in a clone: the same as the console command ``bigbatch``."""

import sys

if not __package__:  # the folder was run by its path
    import runpy
    from pathlib import Path

    root = Path(__file__).resolve().parent / "base" / "root.py"
    runpy.run_path(str(root))["make_importable"](__file__)

from bigbatch.command import console

if __name__ == "__main__":
    sys.exit(console())
