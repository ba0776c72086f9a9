"""A second allocation that lends its nodes to a running job's cluster: ``sbatch cluster/ray_attach.slurm JOBID``.

It may leave at any time: near its time limit or when it is preempted Ray is asked to move its work away
first, and what is then still running there goes on elsewhere from its last checkpoint.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from cluster import credentials, ray_commands, record, slurm
from cluster.checks import WRONG_INPUT, BadInput
from cluster.driver import drain_in_ray
from cluster.files import read_json
from cluster.grant import Grant, NoAllocation, read_grant
from cluster.node import CONTROL_FILE
from cluster.node_steps import NodeSteps

POLL_S = 0.2
JOIN_TIMEOUT_S = 600.0
LEAVE_S = 15.0
"""For the work on nodes that leave to save itself and move."""


class Attachment:
    """One allocation's stay in the cluster of job ``main_id``."""

    def __init__(self, main_id: str) -> None:
        self._main_id = main_id
        self._started = time.monotonic()
        self._signals: list[int] = []

    def run(self) -> int:
        """Returns 0 when the cluster has ended or this allocation has left it, 1 if no node could join."""
        for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda signum, frame: self._signals.append(signum))
        try:
            grant = read_grant()
        except (NoAllocation, slurm.SlurmError) as error:
            raise BadInput(str(error)) from None
        main = self._wait_for_cluster()
        if main is None:
            return 0
        folder = record.folder_of(self._main_id)
        nodes = NodeSteps(grant.job_id, f"{grant.job_id}.{grant.restart_count}", folder, (folder / "tls").exists())
        nodes.follow(read_json(folder / CONTROL_FILE).get("run_id", ""))
        nodes.prepare()
        self._say(f"{', '.join(n.name for n in grant.nodes)} join job {self._main_id} at {main.address}")
        try:
            return self._stay(grant, nodes, main, folder)
        finally:
            nodes.stop(keep_logs=False)
            nodes.forget()

    def _wait_for_cluster(self) -> record.JobRecord | None:
        """The job's record once its driver runs; None if a signal comes first."""
        deadline = time.monotonic() + JOIN_TIMEOUT_S
        while not self._signals:
            main = record.read(self._main_id)
            if main is None:
                raise BadInput(
                    f"there must be a job {self._main_id} with a record; got none in {record.home()}. "
                    "Write the id of a running BigBatch job (squeue --me)."
                )
            if main.state == "driver" and main.address:
                return main
            if main.state == "ended" or time.monotonic() > deadline:
                raise BadInput(f"job {self._main_id} must be running; it is {main.state}. Write another job's id.")
            time.sleep(POLL_S)
        return None

    def _stay(self, grant: Grant, nodes: NodeSteps, main: record.JobRecord, folder: Path) -> int:
        for node in grant.nodes:
            nodes.start(node, main.address)
        said: set[str] = set()
        while nodes.living() and not self._signals:
            for name in nodes.living():
                if name not in said and nodes.status(name).get("state") == "ready":
                    said.add(name)
                    self._say(f"{name} has joined")
            for name, reason in nodes.look().items():
                self._say(f"{name} has left: {reason}")
            time.sleep(POLL_S)
        if self._signals:
            self._say(f"{signal.Signals(self._signals[0]).name}: leaving")
            nodes.hold()
            addresses = [str(nodes.status(name).get("ip")) for name in nodes.living()]
            certificates = folder / credentials.TLS_FOLDER / "driver"
            token = folder / credentials.TOKEN_FILE
            env = ray_commands.environment(main.address or "", token, certificates if certificates.exists() else None)
            if signal.SIGUSR1 in self._signals:
                drain_in_ray(addresses, "the lent allocation ends", env)
                self._wait_for_work(nodes)
        return 0 if said else 1

    def _wait_for_work(self, nodes: NodeSteps) -> None:
        deadline = time.monotonic() + LEAVE_S
        while nodes.living() and time.monotonic() < deadline and signal.SIGTERM not in self._signals:
            nodes.look()
            time.sleep(POLL_S)

    def _say(self, text: str) -> None:
        print(f"bigbatch {time.strftime('%H:%M:%S')} +{time.monotonic() - self._started:.1f}s {text}", flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """The batch script's process. Returns its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        if len(arguments) != 1 or not arguments[0].isdigit():
            raise BadInput(
                f"write one job id; got {' '.join(arguments)!r}. E.g. sbatch -N2 cluster/ray_attach.slurm 123"
            )
        return Attachment(arguments[0]).run()
    except BadInput as error:
        print(f"ray_attach.slurm: error: {error}", file=sys.stderr, flush=True)
        return WRONG_INPUT


if __name__ == "__main__":
    sys.exit(main())
