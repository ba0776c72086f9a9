"""``python train_loop/run.py --config best.json``: one full run of a configuration.

Under Ray Train; or without Ray, with ``torchrun --nproc-per-node 2 train_loop/run.py --config best.json``
or, in a Slurm job, ``srun python train_loop/run.py --config best.json``. Repeating the command resumes the run.
``--help`` lists the options.
"""

import runpy
import sys
from pathlib import Path

if not __package__:
    root = Path(__file__).resolve().parents[1] / "cluster" / "host" / "root.py"
    runpy.run_path(str(root))["make_importable"](__file__)

try:
    from bigbatch.cluster.host.streams import exit_code_after_output
    from bigbatch.train_loop.launch.command import main
except KeyboardInterrupt:  # Ctrl-C while Python still reads its files
    sys.exit(130)

if __name__ == "__main__":
    sys.exit(exit_code_after_output(main()))
