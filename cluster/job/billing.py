"""Note what a job costs a study after its driver.

The driver counts from the job's start (``tune/budget/ledger.py``). After it, the nodes end and the job is put back into
the queue; if it was killed, nothing counted its last seconds. The job writes a file of its own into the study's
``ledger/``, and the study has used the sum of all files there.

Standard library only. A study without a ledger gets none. If the file cannot be written, the job goes on without it:
its bill is no reason to fail.
"""

from __future__ import annotations

import contextlib
import time
from datetime import datetime
from pathlib import Path

from bigbatch.base import json_values
from bigbatch.base.atomic_files import read_json, write_json
from bigbatch.cluster.host.allocation import job_start

LEDGER = "ledger"
SCHEMA_VERSION = 1


class JobBill:
    """The bill of the job around this process, at this start of it.

    Args:
        study: the folder of the study that the job searches; None: it runs another program.
        gpus: GPUs of the whole job; 0: as many devices as the driver counts.
    """

    def __init__(self, study: Path | None, gpus: int) -> None:
        self._study, self._gpus = study, gpus
        self._start = job_start()

    def environment(self) -> dict[str, str]:
        """Tells the driver when the job began, even if Slurm sets no variable for it or the driver cannot ask Slurm."""
        return {"SLURM_JOB_START_TIME": f"{self._start[1]:.0f}"} if self._start else {}

    def note_end(self) -> None:
        """Write the device seconds that the job has held since its driver last counted. May be called again later."""
        if self._start is None or self._study is None or not (self._study / LEDGER).is_dir():
            return
        job, began = self._start
        sessions = _sessions(self._study)
        ours = [values for values in sessions if json_values.text(values, "slurm_job") == job]
        since = max([began, *(_written(values) for values in ours)])
        devices = _devices(ours) or self._gpus or _devices(sessions)
        _write(self._study / LEDGER / f"job-{job}.json", job, devices * max(0.0, time.time() - since))


def _sessions(study: Path) -> list[dict[str, object]]:
    """The contents of the drivers' files, the latest last."""
    # Drivers name their files by a number; job-….json lie beside them.
    return [read_json(path) for path in sorted((study / LEDGER).glob("*.json")) if path.stem.isdecimal()]


def _devices(sessions: list[dict[str, object]]) -> float:
    found = [json_values.number(values, "devices_held") for values in sessions]
    return next((devices for devices in reversed(found) if devices), 0.0)


def _written(values: dict[str, object]) -> float:
    try:
        return datetime.fromisoformat(json_values.text(values, "written_at")).timestamp()
    except ValueError:
        return 0.0


def _write(path: Path, job: str, held_device_s: float) -> None:
    now = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime())
    values = {"schema_version": SCHEMA_VERSION, "slurm_job": job, "written_at": now,
              "held_device_s": round(held_device_s, 3), "trial_device_s": {}}  # fmt: skip
    with contextlib.suppress(OSError):  # a full disk must not end a job
        write_json(path, values)
