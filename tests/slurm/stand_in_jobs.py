"""Drivers of jobs in the virtual cluster whose Ray is a stand-in (``submit_stand_in`` in conftest.py)."""

from __future__ import annotations

import re
import textwrap

from ray_job import RayJob

WAIT = "time.sleep(600)"
ONCE = "os.environ.get('SLURM_RESTART_COUNT') or time.sleep(600)"


def driver(text: str) -> tuple[str, ...]:
    """A driver that saves when it is told to, for half a second."""
    head = """
        import os, signal, sys, time
        def save(*_):
            print("SAVING", flush=True); time.sleep(0.5); print("SAVED", flush=True); sys.exit(143)
        signal.signal(signal.SIGTERM, save)
        print("RUNNING", os.environ.get("SLURM_RESTART_COUNT", "0"), flush=True)
    """
    return ("--", "python", "-u", "-c", textwrap.dedent(head) + textwrap.dedent(text))


def starts(job: RayJob) -> int:
    """How often the driver has begun, that of a successor included, which writes into the same log."""
    return len(re.findall("^RUNNING", job.log, re.MULTILINE))
