"""Searches in processes of their own, and the studies that they leave."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import optuna
import psutil
from optuna.storages.journal import JournalFileBackend

from helpers.paths import TUNE
from helpers.processes import clean_environment
from helpers.waiting import wait_until

TINY = ("--model", "shufflenet_v2_x0_5", "--set", "image_size=16", "--seed", "1")


class Search:
    """A search, or another ``program``, in a process of its own, whose output can be followed."""

    program: tuple[object, ...] = (TUNE,)

    def __init__(self, *arguments: object, cwd: Path, **env: str) -> None:
        self.lines: list[str] = []
        self.ray_folder = ""
        """Of its private Ray, since a line came while Ray ran."""
        self.errors = (cwd / "stderr.txt").open("w+")
        self.process = subprocess.Popen(
            [sys.executable, *map(str, (*self.program, *arguments))], cwd=cwd,
            env={**clean_environment(), **env}, stdout=subprocess.PIPE, stderr=self.errors,
            text=True, start_new_session=True,
        )  # fmt: skip

    def wait_for(self, pattern: str, count: int = 1) -> re.Match[str]:
        """Read on until ``pattern`` has matched ``count`` lines; returns the last match."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            match = re.search(pattern, line)
            if match:
                self.ray_folder = self.ray_folder or ray_folder_below(self.process.pid)
                count -= 1
                if count == 0:
                    return match
        raise AssertionError(f"ended before {pattern!r}:\n{''.join(self.lines)}{self.stderr()}")

    def end(self, timeout_s: float = 240) -> int:
        assert self.process.stdout is not None
        self.lines += self.process.stdout.readlines()
        return self.process.wait(timeout_s)

    def stderr(self) -> str:
        self.errors.seek(0)
        return self.errors.read()

    def workers(self) -> dict[psutil.Process, dict[str, str]]:
        """This search's training workers and their environments, as soon as there are some: a trial may just end."""
        found: dict[psutil.Process, dict[str, str]] = {}

        def look() -> bool:
            for process in psutil.Process(self.process.pid).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    if "ray::RayTrainWorker" in " ".join(process.cmdline()):
                        found[process] = process.environ()
            return bool(found)

        wait_until(look, "the search has no training worker")
        return found

    def started(self, word: str) -> bool:
        """Whether a process below the driver has ``word`` in its command line."""
        below = psutil.Process(self.process.pid).children(recursive=True)
        with contextlib.suppress(psutil.NoSuchProcess):
            return any(word in " ".join(process.cmdline()) for process in below)
        return False

    def kill_tree(self) -> None:
        """kill -9 of the driver and of everything that it has started."""
        victims = [self.process.pid, *(p.pid for p in psutil.Process(self.process.pid).children(recursive=True))]
        for pid in victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(120)


def ray_folder_below(pid: int) -> str:
    """The folder of the private Ray that a process has started; empty if there is none yet."""
    with contextlib.suppress(psutil.NoSuchProcess):
        for process in psutil.Process(pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if found := re.search(r"=(/\S+/bb-ray-[0-9a-f]+)/", " ".join(process.cmdline())):
                    return found[1]
    return ""


def load(folder: Path) -> optuna.Study:
    """The study as any Optuna user opens it."""
    return optuna.load_study(study_name=folder.name, storage=journal_of(folder))


def journal_of(folder: Path) -> optuna.storages.JournalStorage:
    return optuna.storages.JournalStorage(JournalFileBackend(str(folder / "optuna.journal")))
