"""Lend the nodes of a second allocation to a running job's cluster: ``sbatch cluster/ray_attach.slurm JOBID``.

The allocation may leave at any time. Near its time limit (USR1) it first asks Ray to move its work away. When it is
preempted or cancelled (SIGTERM), its nodes end soon, and their work continues elsewhere from its last checkpoint. When
the job goes back into the queue, the nodes wait some time for its next start and join that.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bigbatch.base.waits import LENT_LEAVE_S
from bigbatch.cluster.host import slurm_commands
from bigbatch.cluster.host.allocation import job_start
from bigbatch.cluster.host.lease import FILE as LEASE
from bigbatch.cluster.host.profiles import InputError
from bigbatch.cluster.job import billing
from bigbatch.cluster.job.allocated_nodes import Allocation, NoAllocation, await_allocation
from bigbatch.cluster.job.checks import WRONG_INPUT
from bigbatch.cluster.job.driver import drain_in_ray, forget_in_ray
from bigbatch.cluster.job.node_steps import NodeSteps
from bigbatch.cluster.job.watch import WARNINGS
from bigbatch.cluster.node import credentials, ray_commands
from bigbatch.cluster.node.node_process import CONTROL_FILE
from bigbatch.cluster.node.node_status import NodeOrders
from bigbatch.cluster.record import job_record

POLL_S = 0.2
JOIN_TIMEOUT_S = 600.0
"""How long to wait for the job to start, or to start again: waiting nodes cost as much as working ones."""
LOOK_S = 1.0
"""Time between two looks at all nodes' heartbeats on the shared file system."""
ASK_SLURM_S = 10.0
NEXT_START_S = 30.0
"""If the job still runs after this time, its cluster has not ended: the lent nodes failed by themselves."""


class Attachment:
    """One allocation's stay in the cluster of job ``main_id``, and of its next starts."""

    def __init__(self, main_id: str) -> None:
        self._main_id = main_id
        self._started = time.monotonic()
        self._signals: list[int] = []
        self._lent = billing.LentTime([], self._started)

    def run(self) -> int:
        """Stay until the end. Returns 0 if the job has ended or this allocation has left it, 1 if no node could
        join."""
        for number in WARNINGS | {signal.SIGTERM, signal.SIGINT}:
            signal.signal(number, lambda signum, frame: self._signals.append(signum))
        try:
            allocation = await_allocation(self._signals, self._say)
        except (NoAllocation, slurm_commands.SlurmError) as error:
            raise InputError(str(error)) from None
        stays: list[bool] = []
        start = job_start()
        self._lent = billing.LentTime([node.name for node in allocation.nodes], start[1] if start else time.time())
        found = self._wait_for_cluster()
        while found is not None:
            main, run_id = found
            folder = job_record.job_folder(self._main_id)
            # Each stay has a run id of its own, so that reports of an earlier stay do not count for this one.
            own = f"{allocation.job_id}.{allocation.restart_count}.{len(stays)}"
            tls = (folder / credentials.TLS_FOLDER).exists()
            sees = [Path(main.study_folder) / LEASE] if main.study_folder else []
            # With the first lent node this process is lost, and nothing else would end the allocation (--no-kill).
            end = ["scancel", allocation.job_id]
            nodes = NodeSteps(allocation.job_id, own, folder, tls, sees=sees, if_lost=end)
            nodes.follow(run_id)
            try:
                nodes.prepare()
            except OSError as error:
                raise InputError(f"the job's folder must be writable; got {folder} ({error.strerror}).") from None
            self._say(f"{', '.join(n.name for n in allocation.nodes)} join job {self._main_id} at {main.address}")
            try:
                stays.append(self._stay(allocation, nodes, main, folder))
            finally:
                # Also after an error: Slurm bills these nodes while they wait, whatever ended their stay.
                self._lent.left(node.name for node in allocation.nodes)
                nodes.stop(keep_logs=False)
                nodes.forget()
                self._write_lent(allocation, main)
            found = self._wait_for_next_start(run_id)
        if last := self._record():
            self._write_lent(allocation, last)
        return 0 if any(stays) or not stays else 1

    def _write_lent(self, allocation: Allocation, main: job_record.JobRecord) -> None:
        """Tell the study what the nodes have cost while they were not in its cluster."""
        if main.study_folder:
            study, count = Path(main.study_folder), len(allocation.nodes)
            devices = billing.devices_of_nodes(study, count, allocation.gpus, len(main.nodes))
            self._lent.write(study, f"{allocation.job_id}.{allocation.restart_count}", devices)

    def _run_id(self) -> str:
        """The start of the job whose orders its nodes follow; empty after they are told to end."""
        orders = NodeOrders.read(job_record.job_folder(self._main_id) / CONTROL_FILE)
        return "" if orders is None or orders.stop else orders.run_id

    def _running(self, last: str = "") -> tuple[job_record.JobRecord, str] | None:
        """The job's record and its start, if that start differs from ``last`` and its driver runs."""
        main, run_id = self._record(), self._run_id()
        ready = main is not None and main.state == "driver" and main.address and run_id not in ("", last)
        return (main, run_id) if main and ready else None

    def _record(self) -> job_record.JobRecord | None:
        """The record of the job, or of its successor."""
        main = job_record.read_record(self._main_id)
        if main is None or main.successor is None:
            return main
        self._main_id = main.successor
        return job_record.read_record(self._main_id)

    def _wait_for_cluster(self) -> tuple[job_record.JobRecord, str] | None:
        """Wait until the job runs. Returns ``_running``; None if a signal comes first."""
        if job_record.read_record(self._main_id) is None:
            raise InputError(
                f"there must be a job {self._main_id} with a record; got none in {job_record.records_home()}. "
                "Write the id of a running BigBatch job (squeue --me)."
            )
        deadline = time.monotonic() + JOIN_TIMEOUT_S
        while not self._signals:
            found = self._running()
            if found is not None:
                return found
            main = self._record()
            state = main.state if main else "waiting"
            if state == "ended" or time.monotonic() > deadline:
                raise InputError(f"job {self._main_id} must be running; it is {state}. Write another job's id.")
            time.sleep(POLL_S)
        return None

    def _wait_for_next_start(self, last: str) -> tuple[job_record.JobRecord, str] | None:
        """Wait for another start than ``last``. Returns ``_running``; None if no start will come."""
        since = asked = time.monotonic()
        while not self._signals:
            found = self._running(last)
            if found is not None:
                return found
            now = time.monotonic()
            # The record is a file and costs nothing; Slurm's controller serves the whole site and is asked seldom.
            why = self._over(now - since, last if now > asked + ASK_SLURM_S else None)
            if why:
                self._say(f"{why}; leaving")
                return None
            asked = now if now > asked + ASK_SLURM_S else asked
            time.sleep(POLL_S)
        return None

    def _over(self, waited_s: float, ask_about: str | None) -> str | None:
        """Why no other start will come; None if one may come. ``ask_about``: the last start; None: do not ask Slurm."""
        main = self._record()
        if main and main.state == "ended":
            return f"job {self._main_id} has ended: {main.reason}"
        if waited_s > JOIN_TIMEOUT_S:
            return f"job {self._main_id} has not started again in {JOIN_TIMEOUT_S:.0f} s"
        if ask_about is None:
            return None
        if slurm_commands.has_ended(self._main_id):
            return f"job {self._main_id} is not in the queue any more"
        if waited_s > NEXT_START_S and self._run_id() == ask_about and slurm_commands.is_running(self._main_id):
            return f"job {self._main_id} continues without these nodes"
        return None

    def _stay(self, allocation: Allocation, nodes: NodeSteps, main: job_record.JobRecord, folder: Path) -> bool:
        """Wait until the nodes have ended or a signal comes. Returns whether one of them was in the cluster."""
        for node in allocation.nodes:
            nodes.start(node)
        assert main.address is not None
        nodes.join(main.address)
        env = self._ray_environment(main, folder)
        said: set[str] = set()
        next_look = 0.0
        while nodes.living() and not self._signals:
            for name in nodes.living():
                status = nodes.status(name)
                if name not in said and status is not None and status.state == "ready":
                    said.add(name)
                    self._lent.joined(name)
                    self._write_lent(allocation, main)
                    self._say(f"{name} has joined")
            for name, reason in nodes.look().items():
                self._lent.left([name])
                self._say(f"{name} has left: {reason}")
                if (status := nodes.status(name)) is not None and status.ip:
                    forget_in_ray(allocation.job_id, status.ip, reason, env)
            if time.monotonic() >= next_look:
                next_look = time.monotonic() + LOOK_S
                for name in nodes.hung()[0]:  # the job that borrows the node drains it
                    self._say(f"{name} hangs: no heartbeat; ending its step")
                    nodes.kill(name)
            time.sleep(POLL_S)
        if self._signals:
            self._say(f"{signal.Signals(self._signals[0]).name}: leaving")
            # Slurm sends its SIGTERM to the steps, too: unheld, the nodes would end Ray under work that still saves.
            nodes.hold()
            statuses = [nodes.status(name) for name in nodes.living()]
            addresses = [status.ip for status in statuses if status is not None]
            # After SIGTERM Slurm kills within KillWait: there is no time for work to move.
            if WARNINGS.intersection(self._signals):
                drain_in_ray(addresses, "the lent allocation ends", env)
                self._wait_for_work(nodes)
        else:
            self._say(f"no node is left in the cluster of job {self._main_id}; waiting for its next start")
        return bool(said)

    def _ray_environment(self, main: job_record.JobRecord, folder: Path) -> dict[str, str]:
        """The environment of a process that talks to the borrowing job's Ray."""
        certificates = folder / credentials.TLS_FOLDER / "driver"
        token = folder / credentials.TOKEN_FILE
        return ray_commands.ray_environment(main.address or "", token, certificates if certificates.exists() else None)

    def _wait_for_work(self, nodes: NodeSteps) -> None:
        deadline = time.monotonic() + LENT_LEAVE_S
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
            raise InputError(
                f"write one job id; got {' '.join(arguments)!r}. E.g. sbatch -N2 cluster/ray_attach.slurm 123"
            )
        return Attachment(arguments[0]).run()
    except InputError as error:
        print(f"ray_attach.slurm: error: {error}", file=sys.stderr, flush=True)
        return WRONG_INPUT


if __name__ == "__main__":
    sys.exit(main())
