"""The job's side of its nodes: it starts one ``srun`` step for each, reads their reports and tells them to end."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from bigbatch.base import processes
from bigbatch.base.atomic_files import PRIVATE, write_json
from bigbatch.base.root import IMPORT_ROOT
from bigbatch.base.waits import NODES_END_S, START_TIMEOUT_S
from bigbatch.cluster.host import slurm_commands
from bigbatch.cluster.job.allocated_nodes import AllocatedNode
from bigbatch.cluster.node.node_process import BLIND, CONTROL_FILE, NODES_FOLDER
from bigbatch.cluster.node.node_status import Heartbeats, NodeOrders, NodeStatus

# Variables that sbatch leaves for srun. They would ask for more, or less, than one task on each node.
PER_TASK = (
    *("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NTASKS_PER_NODE", "SLURM_TASKS_PER_NODE", "SLURM_NNODES", "SLURM_HINT"),
    *("SLURM_CPUS_PER_TASK", "SRUN_CPUS_PER_TASK", "SLURM_TRES_PER_TASK", "SLURM_GPUS_PER_TASK", "SLURM_GPUS"),
    *("SLURM_NTASKS_PER_GPU", "SLURM_GPU_BIND", "SLURM_TRES_BIND", "SLURM_CPU_BIND", "SLURM_DISTRIBUTION"),
)


class NodeSteps:
    """The steps of one start of a job (``run_id``).

    Args:
        record: the job's folder, on a file system that all nodes share.
        sees: files and folders that every node must see.
        start_timeout_s: for this long a node tries to start Ray again.
    """

    def __init__(
        self,
        job_id: str,
        run_id: str,
        record: Path,
        sees: Sequence[Path] = (),
        start_timeout_s: float = START_TIMEOUT_S,
    ) -> None:
        self._job_id, self._run_id, self._record = job_id, run_id, record
        self._sees, self._start_timeout_s = sees, start_timeout_s
        self._steps: dict[str, subprocess.Popen[bytes]] = {}
        self._started: dict[str, AllocatedNode] = {}
        self._not_again: set[str] = set()
        self._heartbeats = Heartbeats()
        self._orders, self._told = NodeOrders(run_id), True
        self.gone: dict[str, str] = {}
        """Name → reason of each node whose step has ended."""
        self.blind: dict[str, str] = {}
        """Name → reason of each of them that does not see the job's folders."""

    def prepare(self) -> None:
        """Write this run's control file and remove reports of earlier runs. Raises OSError."""
        folder = self._record / NODES_FOLDER
        folder.mkdir(mode=0o700, exist_ok=True)
        for old in folder.glob("*.json"):
            old.unlink()
        write_json(self._record / CONTROL_FILE, asdict(self._orders), mode=PRIVATE)

    def start(self, node: AllocatedNode) -> None:
        """Start a node: the first one as the head. The others wait until they may ``join``."""
        self._started[node.name] = node
        log_path = self._record / NODES_FOLDER / f"{node.name}.log"
        descriptor = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(descriptor, "ab") as log:
            # A session of its own: an srun that gets SIGTERM makes Slurm kill its step, and nothing there is cleaned.
            self._steps[node.name] = subprocess.Popen(
                srun_command(node) + self._node_command(node.name),
                env={name: value for name, value in os.environ.items() if name not in PER_TASK},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def join(self, address: str) -> None:
        """Let the nodes join the head at ``address`` (``ip:port`` of its GCS)."""
        self._tell(replace(self._orders, address=address))

    def _node_command(self, name: str) -> list[str]:
        command = [sys.executable, "-m", "bigbatch.cluster.node", "--record", str(self._record), "--node", name]
        command += ["--job", self._job_id, "--run-id", self._run_id, "--start-timeout", f"{self._start_timeout_s:g}"]
        command += ["--first", next(iter(self._started))]
        return command + [word for path in self._sees for word in ("--sees", str(path))]

    def status(self, name: str) -> NodeStatus | None:
        """The node's last report in this run; None if it has not reported."""
        status = NodeStatus.read(self._record / NODES_FOLDER / f"{name}.json")
        return status if status is not None and status.run_id == self._run_id else None

    def look(self) -> dict[str, str]:
        """Name → reason of each node whose step has ended since the last look.

        A step that never reported is started once more: if slurmd does not answer for some seconds, srun gives up the
        node ("Communication connection failure"), and the job would have to do without it.
        """
        if not self._told:
            self._tell(self._orders)
        news = {}
        for name, step in list(self._steps.items()):
            if name not in self.gone and step.poll() is not None:
                status = self.status(name)
                if step.returncode == BLIND:
                    self.blind[name] = (status and status.reason) or f"{name} does not see {self._record}"
                elif status is None and not (name in self._not_again or self._orders.stop):
                    self._not_again.add(name)
                    self.start(self._started[name])
                    continue
                lost = f"lost: its step ended without a report (exit code {step.returncode})"
                has_reported_end = status is not None and status.state == "ended"
                news[name] = (
                    self.blind.get(name)
                    or (status and status.reason)
                    or ("as it was told" if has_reported_end else lost)
                )
        self.gone.update(news)
        return news

    def living(self) -> list[str]:
        """Names of the nodes whose step runs."""
        return [name for name in self._steps if name not in self.gone]

    def signalled(self) -> list[str]:
        """Names of the nodes whose step has got SIGTERM from Slurm."""
        found = {name: self.status(name) for name in self.living()}
        return [name for name, status in found.items() if status is not None and status.signalled]

    def hung(self) -> list[str]:
        """The living nodes that hang."""
        found = {name: self.status(name) for name in self.living()}
        return self._heartbeats.hung({name: status.beat for name, status in found.items() if status is not None})

    def hold(self) -> None:
        """Tell the nodes to ignore Slurm's SIGTERM for now: trials still save."""
        if not self._orders.hold:
            self._tell(replace(self._orders, hold=True))

    def stop(self, *, keep_logs: bool, timeout_s: float = NODES_END_S, signalled: bool = False) -> list[str]:
        """End every node. Returns the nodes that did not end in time and whose steps were killed.

        ``signalled``: Slurm has ended the job, and so has signalled the steps. It would refuse to signal them again,
        and scancel would repeat its request for most of a minute ("Job can not be altered now, try again later").
        """
        ends = time.monotonic() + timeout_s
        self._tell(replace(self._orders, stop=True, keep_logs=keep_logs))
        if self.living() and not signalled:
            with contextlib.suppress(slurm_commands.SlurmError):  # the nodes also read the control file, a little later
                slurm_commands.scancel(self._job_id, signal="TERM", steps_only=True, timeout_s=timeout_s / 2)
        processes.wait_until(lambda: not (self.look() or self.living()), ends - time.monotonic())
        late = self.living()
        for name in late:
            self.kill(name)
        return late

    def kill(self, name: str) -> None:
        """Give up a step: Slurm kills its processes."""
        self._not_again.add(name)
        self._steps[name].terminate()
        try:
            self._steps[name].wait(2)
        except subprocess.TimeoutExpired:
            self._steps[name].kill()

    def _tell(self, orders: NodeOrders) -> None:
        self._orders, self._told = orders, False
        with contextlib.suppress(OSError):  # a full quota: the next look tries it again
            write_json(self._record / CONTROL_FILE, asdict(orders), mode=PRIVATE)
            self._told = True


def srun_command(node: AllocatedNode) -> list[str]:
    """The command for one task on one node, beside other steps, with all of the job's resources there."""
    # --export=ALL: a user's SBATCH_EXPORT=NONE would reach the steps as SLURM_EXPORT_ENV and empty their environment.
    command = [
        "srun",
        "--export=ALL",
        # Without --overlap Slurm answers that the requested nodes are busy. Without --ntasks an inherited SLURM_NTASKS
        # starts two Rays on a node.
        "--overlap",
        "--nodes=1",
        "--ntasks=1",
        f"--nodelist={node.name}",
        "--kill-on-bad-exit=0",
    ]
    command += [f"--job-name=ray-{node.name}", f"--chdir={IMPORT_ROOT}", "--input=none"]
    # Since Slurm 22.05 srun does not take this option over from sbatch.
    if node.cpus:
        command.append(f"--cpus-per-task={node.cpus}")
    return command
