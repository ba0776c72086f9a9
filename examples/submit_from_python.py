"""Submit searches from Python, as in a notebook on a login node. Needs neither torch nor Ray.

python examples/submit_from_python.py                  # prints the batch scripts
python examples/submit_from_python.py --submit         # submits them
"""

import sys
from pathlib import Path

from bigbatch import queue, submit

dry_run = "--submit" not in sys.argv
examples = Path(__file__).resolve().parent

# Three searches that differ in their batch: one job each, which requeues itself until its trials are done.
for batch in (256, 512, 1024):
    answer = submit(
        *("--space", "large_batch", "--set", f"batch.global_size={batch}", "--trials", "16"),
        *("--study", f"batch-{batch}", "--output", str(Path.home() / "runs")),
        nodes=2,
        gpus_per_node=4,
        cpus_per_gpu=8,
        time="2:00:00",
        name=f"batch-{batch}",
        python=sys.executable,
        check=False,  # True: check the search in the job's environment before it is queued
        dry_run=dry_run,
    )
    print(answer if dry_run else f"batch {batch}: job {answer}")

# Any other program works too: it finds the job's Ray cluster in RAY_ADDRESS.
program = ("--", sys.executable, str(examples / "ray_program.py"))
answer = submit(*program, nodes=2, cpus_per_node=16, time="0:10:00", python=sys.executable, dry_run=dry_run)
print(answer if dry_run else f"ray_program.py: job {answer}")

if not dry_run:
    for job in queue():
        print(job.job_id, job.slurm_state, job.study and f"{job.study.finished} of {job.study.planned} trials")
