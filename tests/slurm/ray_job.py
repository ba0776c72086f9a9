"""A job of ``cluster/ray_head_workers.slurm`` in the virtual cluster, and what it leaves behind."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
import textwrap
from pathlib import Path

from helpers.paths import ROOT
from helpers.waiting import wait_until
from virtual_cluster import VirtualCluster

SCRIPT = ROOT / "cluster" / "ray_head_workers.slurm"

ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")

LOOK_EVERY_S = 0.1
"""Each look goes through the files and processes of all nodes."""

START_S = 300
"""Only who waits in vain waits so long: Slurm may hold a requeued job back for two minutes."""


class RayJob:
    """A job of the script under test, submitted as a user does.

    Args:
        outer: options of a job in whose shell the user submits it; empty: on the login node.
        before: a command that runs ``sbatch`` on the login node.
    """

    def __init__(
        self, cluster: VirtualCluster, user: str, sbatch: tuple, arguments: tuple,
        outer: tuple = (), before: tuple = (), /, **env: str,
    ) -> None:  # fmt: skip
        self.cluster, self.user, self.env = cluster, user, env
        self.folder = cluster.folder(user, "j")
        words = ("-c2", "--time=10", f"--output={self.folder}/bigbatch-%j.log", *sbatch, SCRIPT, *arguments)
        values = {"BIGBATCH_PYTHON": sys.executable, "OMP_NUM_THREADS": "1", **env}
        if not outer:
            command = (*before, "sbatch", "--parsable", *words)
            self.id = cluster.run("ctl", *command, user=user, cwd=self.folder, env=values).stdout.strip()
            return
        said = self.folder / "id"
        shell = f"#!/bin/bash\nsbatch --parsable {shlex.join(map(str, words))} > {said}\n"
        shell_id = cluster.sbatch(user, *outer, script=shell, cwd=self.folder, env=values)
        wait_until(lambda: said.exists() and said.read_text(), f"no job of {shell_id}'s shell", START_S, LOOK_EVERY_S)
        self.id = said.read_text().strip()

    @property
    def log(self) -> str:
        path = self.folder / f"bigbatch-{self.id}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    @property
    def files(self) -> Path:
        return self.cluster.home(self.user) / ".bigbatch" / "jobs" / self.id

    @property
    def record(self) -> dict:
        return json.loads((self.files / "job.json").read_text())

    def wait_log(self, pattern: str, timeout_s: float = START_S) -> re.Match:
        def missing() -> str:
            return f"no {pattern!r} in\n{self.everything()}"

        wait_until(lambda: re.search(pattern, self.log) or "→ ended" in self.log, missing, timeout_s, LOOK_EVERY_S)
        match = re.search(pattern, self.log)
        assert match is not None, missing()
        return match

    def wait_end(self, state: str, timeout_s: float = START_S) -> str:
        assert self.cluster.wait_state(self.id, ENDED, timeout_s) == state, self.everything()
        return self.log

    def everything(self) -> str:
        nodes = sorted(self.files.glob("nodes/*.log")) if self.files.exists() else []
        return "\n".join([self.log, *(f"== {p.name}\n{p.read_text(errors='replace')[-2000:]}" for p in nodes)])

    def leftovers(self, *only: str) -> list:
        """Processes, files and ports of the user on any node, or ``only`` on these: none.

        Fails, with a list of them, where some are left after a minute.
        """

        def found() -> list:
            left: list = []
            for node in self.cluster.nodes:
                if self.cluster.is_on(node) and (not only or node in only):
                    left += [(node, line) for _, line in self.cluster.processes(node, self.user)]
                    left += [(node, path) for path in self.cluster.files(node)]
                    left += [(node, s) for s in self.cluster.listening(node) if 20000 <= s.port < 32000]
            return left

        wait_until(lambda: not found(), lambda: f"left over: {found()}", 60, LOOK_EVERY_S)
        return []


def python(*texts: str) -> tuple[str, ...]:
    """A driver that has joined the cluster."""
    join = "import os, sys, time, ray; ray.init(log_to_driver=False, configure_logging=False)"
    return ("--", "python", "-u", "-c", "\n".join([join, *map(textwrap.dedent, texts)]))


WAIT = "print('WAITING', flush=True); time.sleep(600)"


def held_s(job: RayJob) -> float:
    """Device seconds that the study's ledger has counted, over all starts of its job and what each left behind."""
    files = Path(job.record["study_folder"], "ledger").glob("*.json")
    return sum(json.loads(path.read_text())["held_device_s"] for path in files)


def trials_of(job: RayJob) -> list:
    """The study's trials as any Optuna user reads them."""
    import optuna
    from optuna.storages.journal import JournalFileBackend

    folder = Path(job.record["study_folder"])
    copy = job.cluster.shared / f"journal-{job.id}"
    shutil.copy(folder / "optuna.journal", copy)
    storage = optuna.storages.JournalStorage(JournalFileBackend(str(copy)))
    return optuna.load_study(study_name=folder.name, storage=storage).get_trials()
