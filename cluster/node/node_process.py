"""One node's part of a job's Ray cluster: what each ``srun`` step runs, ``python -m bigbatch.cluster.node``.

It starts Ray in the foreground and reports its state in ``nodes/<node>.json`` of the job's folder. It ends its own
processes, and no others, when the job's control file or a SIGTERM (``scancel``, preemption) tells it to. After SIGTERM
alone it first waits a short time, so that the job may order it to hold: Slurm sends the same signal when a job is
preempted and trials still have to save.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import FrameType

from bigbatch.base import fork_server, private_folder, processes, waits
from bigbatch.base.atomic_files import PRIVATE, write_json
from bigbatch.base.root import IMPORT_ROOT
from bigbatch.base.waits import HOLD_S, RAY_END_S, START_TIMEOUT_S
from bigbatch.cluster.host import network, slurm_commands
from bigbatch.cluster.node import ray_commands
from bigbatch.cluster.node.node_status import HEARTBEAT_S, HUNG_S, Heartbeats, NodeOrders, NodeStatus
from bigbatch.cluster.node.ray_start_hook import FORKS
from bigbatch.cluster.record.job_record import read_record

CONTROL_FILE = "control.json"
NODES_FOLDER = "nodes"
RAY_LOGS_FOLDER = "ray-logs"
POLL_S = 0.1
CONTROL_POLL_S = 0.5
KEPT_LOG_BYTES = 20 * 2**20
STARTED = "Ray runtime started"
BLIND = 3
"""Exit code of a node that does not see the job's folders: it may not be able to report that."""
SEE_S = 5.0
"""Time until a node sees a file that another node has just made on a network file system."""
# In proportion to HUNG_S, which BIGBATCH_HUNG_S shortens in tests.
LOST_S = HUNG_S * waits.FIRST_LOST_S / waits.HUNG_S
ASK_AGAIN_S = 10.0
AT_ONCE_S = 10.0
"""A start of Ray that fails sooner would fail again: a module is missing, an option is wrong."""


class NodeProcess:
    """The process of a step, from its start until its folder is removed."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._record: Path = arguments.record
        self._name: str = arguments.node
        self._run_id: str = arguments.run_id
        self._first: str = arguments.first
        self._is_head = self._first == self._name
        self._gcs = ""
        self._sees: list[Path] = [self._record, *arguments.sees]
        self._start_timeout_s: float = arguments.start_timeout
        self._job_id: str = arguments.job
        self._status_file = self._record / NODES_FOLDER / f"{self._name}.json"
        self._status = NodeStatus(run_id=self._run_id)
        self._next_beat = self._next_control = 0.0
        self._signalled_at: float | None = None
        self._orders = NodeOrders()
        self._heartbeats = Heartbeats()
        job = read_record(self._record.name)
        self._trains = job is not None and job.study_folder is not None
        self._log = (job and job.log) or os.devnull

    def run(self) -> int:
        """Run until the end. Returns the exit code: 0 if it ended as told, 1 if Ray or the node failed, or BLIND."""
        self._take_signals()
        if not processes.wait_until(lambda: all(path.exists() for path in self._sees), SEE_S):
            unseen = next(path for path in self._sees if not path.exists())
            return self._fail(f"{self._name} does not see {unseen}", BLIND)
        # Ray's processes change their parents and groups. As our descendants all of them are found at the end.
        processes.adopt_orphans()
        # A SIGKILL leaves the folder on the node's own disk, where nobody else looks.
        for folder in private_folder.remove_stale():
            print(f"removed {folder}, left behind by a killed job", flush=True)
        try:
            # Beyond the limit Ray's processes end without an error message.
            processes.check_limits(processes.HEAD_THREADS if self._is_head else processes.RAY_THREADS)
            self._ip = network.own_address(self._name)
            self._share = ray_commands.node_resources()
            self._report(
                replace(self._status, state="starting", ip=self._ip, cpus=self._share.cpus, gpus=self._share.gpus)
            )
            with private_folder.temporary_folder(self._job_id) as folder:
                failure = self._serve(folder)
            if failure and (beat := self._beat_of_first()):  # Ray may notice a lost first node before this one does
                processes.wait_until(lambda: self._told_to_end() or self._beat_of_first() != beat, 2 * LOST_S)
        except OSError as error:
            failure = str(error)
        if failure:
            return self._fail(failure, 1)
        self._report(replace(self._status, state="ended"))
        return 0

    def _fail(self, reason: str, code: int) -> int:
        self._report(replace(self._status, state="failed", reason=reason))
        print(f"error: {reason}", file=sys.stderr, flush=True)
        return code

    def _await_head(self) -> None:
        """Wait until the job gives the address of the head's Ray, or this node must end."""
        while not (self._is_head or self._gcs or self._told_to_end()):
            time.sleep(POLL_S)
            self._gcs = self._orders.address

    def _serve(self, folder: Path) -> str | None:
        """Keep Ray running until told to end. Returns why it failed, or None.

        On a busy machine Ray may give up its start: it waits 30 s for its own processes, and no setting changes that.
        Such a start is tried again.
        """
        self._await_head()
        if not (self._is_head or self._gcs):
            return None
        began = time.monotonic()
        while True:
            tried_at = time.monotonic()
            chosen = ray_commands.free_ports(head=self._is_head)
            if chosen is None:
                return f"no ports are free on {self._name}. Ask whose servers fill 20000-30000."
            ray = self._start_ray(folder, chosen)
            try:
                failure = self._watch(ray, folder, chosen)
            finally:
                self._end_ray(ray, folder)
            # Only a start is tried again. If Ray ran and then ended, the node is lost, and the job handles that.
            if failure in (None, self._cannot_train(folder)) or self._status.state == "ready":
                return failure
            # Between the probe and Ray's start another program may take a port; that is no fault of this node.
            if ray_commands.taken_ports(chosen):
                print(f"another program took a port of {chosen.used()}; trying others", flush=True)
                continue
            now = time.monotonic()
            at_once = now - tried_at < min(AT_ONCE_S, self._start_timeout_s / 30)
            if at_once or now - began > self._start_timeout_s:
                return failure
            self._report(replace(self._status, reason=failure))
            print(f"{failure}; trying again", flush=True)

    def _start_ray(self, folder: Path, chosen: ray_commands.NodePorts) -> subprocess.Popen[bytes]:
        gcs = f"{self._ip}:{chosen.gcs}" if self._is_head else self._gcs
        environment = ray_commands.ray_environment(gcs, self._record / ray_commands.TOKEN_FILE)
        environment.update(
            private_folder.temporary_folder_variables(folder)
        )  # files that Ray and its workers leave there are removed with it
        # Workers inherit it from here: a driver's own PYTHONPATH does not reach a cluster that is already up.
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(IMPORT_ROOT), os.environ.get("PYTHONPATH")]))
        command = ray_commands.ray_start_command(self._ip, gcs, chosen, self._share, folder / "r", self._name)
        with (folder / "start.log").open("w") as log:
            return subprocess.Popen(
                command,
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _watch(self, ray: subprocess.Popen[bytes], folder: Path, chosen: ray_commands.NodePorts) -> str | None:
        """Wait until Ray ends (returns why) or this node is told to end (returns None)."""
        ready = False
        while not self._told_to_end():
            if ray.poll() is not None:
                lines = (folder / "start.log").read_text(errors="replace").strip().splitlines()
                stage = "ended" if ready else "did not start"
                return (
                    f"Ray {stage} on {self._name} (exit code {ray.returncode}): {lines[-1] if lines else 'no output'}"
                )
            if failure := self._cannot_train(folder):
                return failure
            # With --block the command does not return, so its own line is the only sign that Ray is up.
            if not ready and STARTED in (folder / "start.log").read_text(errors="replace"):
                ready = True
                self._report(replace(self._status, state="ready", ports=chosen, folder=str(folder), reason=None))
            # Adopted orphans that have ended stay zombies until someone collects them.
            processes.reap(keep=[ray.pid])
            time.sleep(POLL_S)
        return None

    def _cannot_train(self, folder: Path) -> str | None:
        """Why each trial would fail here, e.g. a library that this node lacks. A command of the user's own may work."""
        failure = fork_server.failure(str(folder / FORKS)) if self._trains else ""
        return f"{self._name} cannot load what trials need: {failure}" if failure else None

    def _beat_of_first(self) -> int:
        """The heartbeat of the job's first node; 0 if this is that node, or its Ray has ended."""
        first = None if self._is_head else NodeStatus.read(self._status_file.with_name(f"{self._first}.json"))
        alive = first is not None and first.run_id == self._run_id and first.state in ("starting", "ready")
        return first.beat if first is not None and alive else 0

    def _requeue_if_first_is_lost(self) -> None:
        """Requeue the job if its first node is lost with the batch script: --no-kill keeps it RUNNING to its limit."""
        # Our own beat is read too: if it has stopped, the shared file system does not answer.
        ours = NodeStatus.read(self._status_file)
        beats = {self._first: self._beat_of_first(), self._name: ours.beat if ours else 0}
        if self._is_head or self._orders.stop or self._first not in self._heartbeats.hung(beats, LOST_S):
            return
        self._next_control += ASK_AGAIN_S
        # Into the job's log: our own output goes to the node that is lost.
        with contextlib.suppress(OSError), open(self._log, "a") as log:
            print(f"bigbatch {self._name}: node {self._first} is lost, and the batch script with it: requeue", file=log)
        try:
            slurm_commands.scontrol_requeue(self._job_id)
        except slurm_commands.SlurmSilent:
            pass  # it is asked again
        except slurm_commands.SlurmError:  # another node was faster; or this site forbids it
            with contextlib.suppress(slurm_commands.SlurmError):
                about = slurm_commands.job_fields(self._job_id)
                if about.get("JobState") == "RUNNING" and self._run_id == f"{self._job_id}.{about.get('Restarts')}":
                    slurm_commands.scancel(self._job_id)

    def _told_to_end(self) -> bool:
        now = time.monotonic()
        if now >= self._next_control:
            self._next_control = now + CONTROL_POLL_S
            self._orders = self._read_orders()
            if now >= self._next_beat:
                self._report(self._status)
            self._requeue_if_first_is_lost()
        if self._orders.stop:
            return True
        if self._signalled_at is None or self._orders.hold:
            return False
        if not self._status.signalled:
            self._report(replace(self._status, signalled=True))
        return now >= self._signalled_at + HOLD_S

    def _read_orders(self) -> NodeOrders:
        """The job's orders. An unreadable file is no order."""
        orders = NodeOrders.read(self._record / CONTROL_FILE)
        return orders if orders is not None and orders.run_id == self._run_id else NodeOrders(self._run_id)

    def _end_ray(self, ray: subprocess.Popen[bytes], folder: Path) -> None:
        if ray.poll() is None:
            ray.terminate()  # `ray start --block` ends its own processes in order
            with contextlib.suppress(subprocess.TimeoutExpired):
                ray.wait(RAY_END_S)
        processes.signal_group(ray.pid, signal.SIGKILL)
        processes.end_descendants(grace_s=0.5)
        ray.wait()
        self._orders = self._read_orders()  # are the logs to be kept?
        # If the job did not order the end, Ray has failed by itself, and its logs say why.
        if self._orders.keep_logs or not self._orders.stop:
            self._keep_logs(folder)

    def _keep_logs(self, folder: Path) -> None:
        """Archive this node's logs: at most KEPT_LOG_BYTES, the shortest first, because they tell the most."""
        if self._signalled_at is not None and not self._orders.keep_logs:
            return  # cancelled: only seconds are left, and nobody asked for logs
        # session_latest is a link to one of these folders.
        logs = [p for p in (folder / "r").glob("session_2*/logs/**/*") if p.is_file() and not p.is_symlink()]
        sizes = sorted((p.stat().st_size, p) for p in [*logs, folder / "start.log"] if p.exists())
        (self._record / RAY_LOGS_FOLDER).mkdir(mode=0o700, exist_ok=True)
        room = KEPT_LOG_BYTES
        with tarfile.open(self._record / RAY_LOGS_FOLDER / f"{self._name}.tar.gz", "w:gz") as archive:
            for size, path in sizes:
                room -= size
                if size and room >= 0:
                    archive.add(path, arcname=f"{self._name}/{path.name}")

    def _report(self, status: NodeStatus) -> None:
        self._next_beat = time.monotonic() + HEARTBEAT_S
        self._status = replace(status, beat=self._status.beat + 1, time=time.time())
        try:
            write_json(self._status_file, asdict(self._status), mode=PRIVATE)
        except OSError as error:  # a full quota must not end a running search
            print(f"cannot write {self._status_file}: {error}", file=sys.stderr, flush=True)

    def _take_signals(self) -> None:
        def end(signum: int, frame: FrameType | None) -> None:
            if self._signalled_at is None:
                self._signalled_at = time.monotonic()

        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, end)
        # Some sites send these to the whole job as a warning. Unlike SIG_IGN, a handler is not inherited.
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, lambda signum, frame: None)


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The step's options."""
    parser = argparse.ArgumentParser(prog="python -m bigbatch.cluster.node", description=__doc__)
    parser.add_argument("--record", type=Path, required=True, help="the job's folder")
    parser.add_argument("--node", required=True, help="Slurm's name of this node")
    parser.add_argument("--job", required=True, help="the job's id")
    parser.add_argument("--run-id", required=True, help="which start of the job this is")
    parser.add_argument("--first", required=True, help="the job's first node: it runs the batch script and Ray's head")
    parser.add_argument("--start-timeout", type=float, default=START_TIMEOUT_S, help="seconds for Ray to start")
    parser.add_argument("--sees", action="append", type=Path, default=[], help="what this node must see: a path")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """The step's process. Returns its exit code."""
    return NodeProcess(parse(argv)).run()
