"""Do the batch script's last duty on another node of its job: ``python -m bigbatch.cluster.job --host-lost …``.

The script is gone with the job's first node (``bigbatch.cluster.node.batch_host`` notices it). The job goes back into
the queue, or ends, as after any other loss of its head.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bigbatch.base.waits import SILENT_S
from bigbatch.cluster.host import slurm_commands
from bigbatch.cluster.host.allocation import SlurmJob, slurm_job
from bigbatch.cluster.job import billing, options, restart
from bigbatch.cluster.job.policy import Action, Cause, Situation, decide
from bigbatch.cluster.job.restart import HOST_LOST
from bigbatch.cluster.record import job_record

SLURMD_TIMEOUT_S = 300.0
"""Slurm's default time until it gives up a node that does not answer."""
ASK_AGAIN_S = 5.0
NOT_YET_S = 20.0
"""How long Slurm may be unable to alter the requeued job. It kills this process after KillWait, often 30 s."""


def command() -> list[str]:
    """The command that the batch script leaves to its other nodes, with its own arguments."""
    return [sys.executable, "-m", "bigbatch.cluster.job", HOST_LOST, *sys.argv[1:]]


def main(arguments: Sequence[str]) -> int:
    """End or requeue the job. Returns 1 if Slurm does not answer."""
    for number in (signal.SIGTERM, signal.SIGHUP):  # on some sites a requeue signals all processes of the job
        signal.signal(number, lambda signum, frame: None)
    job = slurm_job()
    record = job_record.read_record(job.job_id) if job else None
    if job is None or record is None:
        print("error: --host-lost runs on a node of a job that has a record", file=sys.stderr)
        return 1
    ends = time.monotonic() + SILENT_S
    while True:
        try:
            _act(job, record, options.parse_job_options(arguments))
            return 0
        except slurm_commands.SlurmSilent as error:
            if time.monotonic() > ends:
                print(f"error: {error}", file=sys.stderr)
                return 1
            time.sleep(ASK_AGAIN_S)


def _act(job: SlurmJob, record: job_record.JobRecord, chosen: options.JobOptions) -> None:
    if not _runs(job):
        return  # another node was faster, or it was cancelled
    fruitless = record.fruitless_restarts
    decision = decide(Situation(Cause.HEAD_LOST, None, fruitless, chosen.max_restarts, chain=chosen.chain))
    action, record.reason = decision.action, decision.reason
    _say(record, f"{action.value}: {record.reason} ({record.head})")
    # Slurm may not have noticed yet that this node is down, and would start the job there again.
    record.excluded.setdefault(record.head or "", "lost: no heartbeat and no answer")
    # The batch script, which else notes what the last seconds cost, has died with its node.
    billing.JobBill(Path(record.study_folder) if record.study_folder else None, gpus=0).note_end()
    # Now: a requeue ends this process within KillWait, and the next start reads which nodes it avoids.
    _write(record, "ended" if action is Action.END else "requeueing")
    try:
        # Slurm tries to reach the lost node for SlurmdTimeout. A start before that would meet the old steps.
        study = restart.default_study_name(job.job_id)
        delay_s = slurm_commands.configured_s("SlurmdTimeout", SLURMD_TIMEOUT_S) + restart.LOST_NODE_S
        restart.start_again(
            action, record, study, lambda text: _say(record, text), again=True, delay_s=delay_s, not_yet_s=NOT_YET_S
        )
    except slurm_commands.SlurmSilent:
        raise
    except slurm_commands.SlurmError as error:
        # Slurm refuses a second requeue: another node was faster.
        if not _runs(job):
            return
        action, record.reason = Action.END, f"{record.reason}; {error}"
        _say(record, f"cannot start again: {error}")
    # A requeue ends all of this start by itself, and the next one may have written its record.
    if action is not Action.REQUEUE:
        _write(record, "ended" if action is Action.END else "requeueing")
        slurm_commands.scancel(job.job_id)


def _write(record: job_record.JobRecord, state: str) -> None:
    record.state = state
    try:
        record.write()
    except OSError as error:  # a full quota
        _say(record, f"cannot write the job's record: {error}")


def _runs(job: SlurmJob) -> bool:
    """Whether this start of the job still runs, according to Slurm. Raises SlurmError."""
    fields = slurm_commands.job_fields(job.job_id)
    restarts = slurm_commands.read_count(fields.get("Restarts")) or 0
    return fields.get("JobState") == "RUNNING" and restarts <= job.restart_count


def _say(record: job_record.JobRecord, text: str) -> None:
    """Write a line to the job's log. This process's own output went to the node that is lost."""
    line = f"bigbatch {time.strftime('%H:%M:%S')} node {os.uname().nodename}: {text}\n"
    try:
        with open(record.log or os.devnull, "a") as log:
            log.write(line)
    except OSError:
        print(line, end="", flush=True)
