"""A real Slurm with several nodes on one machine, for tests and for trying things by hand.

Each node has its own network, host name, process table, /tmp, /dev/shm and /run. Needs root on Linux and
Slurm's programs; ``VirtualCluster.available()`` says what is missing. docs/testing-slurm.md says more.
"""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import IO

import virtual_init
import virtual_processes
import virtual_requirements
from virtual_config import CONTROLLER, USERS, Plan
from virtual_jobs import PATIENCE_S, ClusterError, CommandFailed, Jobs, until
from virtual_processes import Listener
from virtual_requirements import PATH

REPOSITORY = Path(__file__).resolve().parents[2]
# Outside of /tmp, which every node has to itself, and short: sockets' paths end at 107 characters.
PLACE, PREFIX = Path("/var/tmp"), "vc-"
COMMAND_TIMEOUT_S = 60.0


class VirtualCluster(Jobs):
    """A controller, ``ctl``, which is the login node too, and nodes ``n1``…; users ``alice`` and ``bob``.

    Partitions: ``main``, the default, whose jobs are requeued when ``urgent`` needs their nodes; ``patient``, the same
    with a longer grace time; ``abrupt``, with none; ``scrap``, whose jobs are then cancelled.
    ``readable``: further files and folders that ordinary users shall reach at the same path on every node,
    wherever they lie; the repository and this Python are always among them. Nodes see them read-only.
    """

    def __init__(
        self, *, nodes: int = 3, cpus: int = 2, memory_mb: int = 8000, gpus: int = 2,
        readable: Iterable[str | Path] = (),
    ) -> None:  # fmt: skip
        trees = (REPOSITORY, sys.prefix, sys.base_prefix, *readable)
        self._options = {"nodes": nodes, "cpus": cpus, "memory_mb": memory_mb, "gpus": gpus}
        self._readable = tuple(dict.fromkeys(str(Path(tree).absolute()) for tree in trees))
        self._plan: Plan | None = None
        self._keeper: subprocess.Popen[bytes] | None = None
        self._output: IO[bytes] | None = None
        self._frozen: set[str] = set()

    @staticmethod
    def available() -> str | None:
        """None where a cluster can run, else why not and what helps."""
        return virtual_requirements.missing()

    # ---- life

    def up(self, *, timeout_s: float = PATIENCE_S) -> VirtualCluster:
        """Start all nodes and wait until they are idle. The cluster ends with this process."""
        folder = tempfile.mkdtemp(prefix=PREFIX, dir=PLACE)
        self._plan = Plan(folder=folder, readable=self._readable, **self._options)
        self._plan.write()
        self._output = tempfile.TemporaryFile()
        self._keeper = subprocess.Popen(
            virtual_processes.command("keeper", folder, os.getpid()),
            stdin=subprocess.DEVNULL, stdout=self._output, stderr=self._output, cwd="/",
            env={"PATH": PATH, "LANG": "C.UTF-8"}, start_new_session=True,
        )  # fmt: skip
        try:
            self.wait_idle(timeout_s)
        except BaseException:
            self.down()
            raise
        return self

    def down(self) -> None:
        """End every process and remove every file of the cluster. Harmless when it is down."""
        plan, self._plan = self._plan, None
        if plan is None:
            return
        started, self._keeper = self._keeper, None
        if started:
            started.terminate()
            started.wait(PATIENCE_S)
        # A keeper that was killed has not cleaned up.
        if plan.path.exists():
            virtual_init.clean(plan)

    def __enter__(self) -> VirtualCluster:
        return self.up()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.down()

    # ---- what it is

    @property
    def plan(self) -> Plan:
        if self._plan is None:
            raise ClusterError("The cluster is down. Start it with `with VirtualCluster() as vc:` or vc.up().")
        return self._plan

    @property
    def nodes(self) -> list[str]:
        return self.plan.names

    @property
    def shared(self) -> Path:
        """The folder that is the same on the machine and on every node."""
        return self.plan.path

    def home(self, user: str) -> Path:
        return self.plan.home(user)

    def folder(self, user: str, prefix: str = "t") -> Path:
        """A new empty folder of the user's, in the home, for one test."""
        path = Path(tempfile.mkdtemp(prefix=f"{prefix}-", dir=self.home(user)))
        os.chown(path, USERS[user], USERS[user])
        return path

    # ---- commands

    def command(
        self, node: str, *cmd: object, user: str | None = None, env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
    ) -> list[str]:  # fmt: skip
        """The command line, for this machine, that runs ``cmd`` on the node as after a login."""
        who, home = user or "root", self.home(user) if user else Path("/")
        identity = [f"--reuid={user}", f"--regid={user}", "--init-groups"] if user else []
        values = {"PATH": PATH, "HOME": str(home), "USER": who, "LOGNAME": who, "SHELL": "/bin/bash"}
        values |= {"LANG": "C.UTF-8", **(env or {})}
        return [
            *("nsenter", "-t", str(self._init(node)), "-n", "-u", "-m", "-p", "--"),
            *("setpriv", *identity, "--pdeathsig", "KILL", "--"),
            *("env", "-i", "-C", str(cwd or home), *(f"{k}={v}" for k, v in values.items())),
            *map(str, cmd),
        ]

    def run(
        self, node: str, *cmd: object, user: str | None = None, timeout_s: float = COMMAND_TIMEOUT_S,
        check: bool = True, env: Mapping[str, str] | None = None, cwd: str | Path | None = None,
        stdin: str | None = None,
    ) -> subprocess.CompletedProcess[str]:  # fmt: skip
        """Run on a node, as root or a user. Raises CommandFailed, subprocess.TimeoutExpired."""
        process = subprocess.Popen(
            self.command(node, *cmd, user=user, env=env, cwd=cwd), text=True, start_new_session=True,
            stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        with process:
            try:
                output, errors = process.communicate(stdin, timeout=timeout_s)
            except BaseException:
                # nsenter's child is of the same group; alone it would be left on the node.
                os.killpg(process.pid, signal.SIGKILL)
                raise
        if check and process.returncode:
            raise CommandFailed(process.returncode, [node, *map(str, cmd)], output, errors)
        return subprocess.CompletedProcess([*map(str, cmd)], process.returncode, output, errors)

    def sbatch(
        self, user: str, *args: object, script: str | Path | None = None, cwd: str | Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> str:  # fmt: skip
        """Submit from the login node; returns the job's id. ``script``: a file, or the text itself (``#!…``)."""
        text = script if isinstance(script, str) and script.startswith("#!") else None
        files = [] if script is None or text else [str(script)]
        done = self.run(CONTROLLER, "sbatch", "--parsable", *args, *files, user=user, cwd=cwd, env=env, stdin=text)
        return done.stdout.strip().split(";")[0]

    # ---- nodes

    def node_states(self) -> dict[str, str]:
        """As ``sinfo`` says: idle, mixed, allocated, down…; a trailing * means that the node does not answer."""
        text = self.run(CONTROLLER, "sinfo", "-h", "-N", "-p", "main", "-o", "%N %T").stdout
        return dict(line.split() for line in text.splitlines())

    def wait_idle(self, timeout_s: float = PATIENCE_S) -> None:
        """Wait until all nodes are idle. Raises ClusterError."""
        if not until(lambda: set(self._ask(self.node_states).values()) == {"idle"}, timeout_s):
            raise ClusterError(
                f"Not all nodes are idle after {timeout_s} s: {self._ask(self.node_states)}\n{self.logs()}"
            )

    def _ask(self, question: Callable[[], dict[str, str]]) -> dict[str, str]:
        """The answer, or none as long as the controller is about to start."""
        if self._keeper and self._keeper.poll() is not None:
            raise ClusterError(f"The cluster has ended.\n{self.logs()}")
        try:
            return question()
        except (ClusterError, CommandFailed):
            return {}

    def poweroff(self, node: str) -> None:
        """Pull the plug: everything on the node ends at once, and its private folders are gone."""
        pid = self._init(node)
        os.kill(pid, signal.SIGKILL)
        self._frozen.discard(node)
        until(lambda: not virtual_processes.alive(pid), PATIENCE_S)

    def poweron(self, node: str, timeout_s: float = PATIENCE_S) -> None:
        """Start the node again; ``wait_idle`` waits for Slurm to take it back. Harmless when it is on."""
        if self.is_on(node):
            return
        with open(self.plan.path / "boot", "w") as pipe:
            pipe.write(f"{node}\n")
        if not until(lambda: self.is_on(node), timeout_s):
            raise ClusterError(f"{node} did not start.\n{self.logs()}")

    def is_on(self, node: str) -> bool:
        return virtual_processes.init_of(self.plan.folder, node) is not None

    def suspend(self, node: str) -> None:
        """Freeze all processes of the node: it hangs, and nobody notices at once."""
        self._frozen.add(node)
        # A process may start another while the others are being stopped.
        while virtual_processes.signal_all(self._init(node), signal.SIGSTOP):
            time.sleep(0.02)

    def resume(self, node: str) -> None:
        virtual_processes.signal_all(self._init(node), signal.SIGCONT)
        self._frozen.discard(node)

    def _init(self, node: str) -> int:
        pid = virtual_processes.init_of(self.plan.folder, node)
        if pid is None:
            raise ClusterError(f"{node} is off or does not exist.\n{self.logs()}")
        return pid

    # ---- what is on a node

    def processes(self, node: str, user: str | None = None) -> list[tuple[int, str]]:
        """(process id on the node, command line), without process 1 and the daemons of Slurm and munge."""
        return virtual_processes.on_node(self._init(node), None if user is None else USERS[user])

    def listening(self, node: str) -> list[Listener]:
        """Listening TCP sockets: (port, address, pid, command)."""
        return virtual_processes.listeners(self.run(node, "ss", "-Htlnp").stdout)

    def files(self, node: str, under: str | Path = "/tmp") -> list[Path]:
        """Everything below a folder as the node sees it: files, folders, sockets.

        Without the trees that are kept readable, and the folders in which they lie: a checkout, or the virtual
        environment of a CI run, may itself be in /tmp.
        """
        root = f"/proc/{self._init(node)}/root"
        kept = {path for tree in self._readable for path in (tree, os.path.realpath(tree))}
        ways = {str(parent) for path in kept for parent in Path(path).parents}
        found = []
        for folder, folders, files in os.walk(f"{root}{under}"):
            here = f"/{os.path.relpath(folder, root)}"
            folders[:] = [name for name in folders if f"{here}/{name}" not in kept]
            found += [f"{here}/{name}" for name in folders + files if f"{here}/{name}" not in ways | kept]
        return sorted(map(Path, found))

    def billed_s(self, job_id: str) -> float:
        """Seconds for which Slurm has billed the job, over all its starts that have ended, to the second."""
        text = (self.plan.path / "log" / "jobcomp.txt").read_text()
        lines = [dict(f.split("=", 1) for f in line.split() if "=" in f) for line in text.splitlines()]
        times = [(fields["StartTime"], fields["EndTime"]) for fields in lines if fields.get("JobId") == job_id]
        began, ended = ([datetime.fromisoformat(pair[i]) for pair in times] for i in (0, 1))
        return sum((end - begin).total_seconds() for begin, end in zip(began, ended, strict=True))

    def logs(self, lines: int = 15) -> str:
        """The end of every log, for error messages."""
        parts = []
        if self._output:
            # Not read(): the nodes write at the position in the file that they share with this process.
            output = os.pread(self._output.fileno(), 1 << 20, 0).decode(errors="replace")
            parts.append(f"== output of the nodes\n{output}")
        for path in sorted(self.plan.path.glob("log/*")):
            if path.suffix == ".out" and path.with_suffix(".log").exists():
                continue
            tail = path.read_text(errors="replace").splitlines()[-lines:]
            parts.append("\n".join([f"== {path.name}", *tail]))
        return "\n".join(parts)

    # ---- between tests

    def tidy(self, timeout_s: float = PATIENCE_S) -> None:
        """All nodes on and idle, no jobs, no processes of users: as fresh, but for homes and finished jobs."""
        for node in self.nodes:
            self.poweron(node)
            self.resume(node)
        self._cancel_jobs()
        self._remove_what_users_have()
        stuck = [name for name, state in self.node_states().items() if state.startswith(("down", "drain"))]
        for name in stuck:
            self.run(CONTROLLER, "scontrol", "update", f"NodeName={name}", "State=RESUME", check=False)
        # Again and again: a job that ends may have submitted its successor.
        if not until(self._cancel_jobs, timeout_s, step_s=0.5):
            raise ClusterError(f"Jobs cannot be cancelled.\n{self.logs()}")
        self.wait_idle(timeout_s)
        # And a killed process may have gone on while they were looked for.
        if not until(self._remove_what_users_have, timeout_s):
            raise ClusterError(f"Users' processes or files cannot be removed.\n{self.logs()}")

    def _cancel_jobs(self) -> bool:
        """Cancel those in the queue; returns whether there were none."""
        jobs = self.run(CONTROLLER, "squeue", "-h", "-o", "%A").stdout.split()
        if jobs:
            self.run(CONTROLLER, "scancel", "--full", "-s", "KILL", *jobs, check=False)
            self.run(CONTROLLER, "scancel", *jobs, check=False)
        return not jobs

    def _remove_what_users_have(self) -> bool:
        """Kill their processes and remove their files on every node; returns whether there were none."""
        found = 0
        for node in (CONTROLLER, *self.nodes):
            for user in USERS.values():
                found += len(virtual_processes.on_node(self._init(node), user))
                virtual_processes.signal_all(self._init(node), signal.SIGKILL, user)
            found += self._remove_files_of_users(node)
        return not found

    def _remove_files_of_users(self, node: str) -> int:
        """In /tmp and /dev/shm, where ordinary programs leave caches (PyTorch's compiler does). Returns how many."""
        root, found = f"/proc/{self._init(node)}/root", 0
        for folder in ("/tmp", "/dev/shm"):
            for path in reversed(self.files(node, folder)):  # what is in a folder before the folder
                here = Path(f"{root}{path}")
                with contextlib.suppress(OSError):  # gone, or not empty again: a killed process may still be going
                    status = here.lstat()
                    if status.st_uid in USERS.values():
                        found += 1
                        here.rmdir() if stat.S_ISDIR(status.st_mode) else here.unlink()
        return found
