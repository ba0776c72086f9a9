"""``python train_loop/run.py --config best.json``: one full run of a configuration.

Under Ray Train; or without Ray, with ``torchrun --nproc-per-node 2 train_loop/run.py --config best.json``
or, in a Slurm job, ``srun python train_loop/run.py --config best.json``. Repeating the command resumes the run.
``--help`` lists the options.
"""

import runpy
import sys
from pathlib import Path

if not __package__:
    here = Path(__file__).resolve().parents[1]  # a clone's root, or the installed package
    base = next(path for path in (here / "src" / "bigbatch" / "base", here / "base") if path.is_dir())
    runpy.run_path(str(base / "root.py"))["make_importable"](__file__)

try:
    from bigbatch.train_loop.launch.command import main
except KeyboardInterrupt:  # Ctrl-C while Python still reads its files
    sys.exit(130)

if __name__ == "__main__":
    sys.exit(main())
