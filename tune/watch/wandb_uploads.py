"""Upload offline W&B runs in parallel, each until the server has all of it.

The upload itself is ``wandb sync``, a process for some runs at a time. It sends a run from its first line on, and the
server puts each line where it was, so a repeated upload changes nothing. Which runs have arrived is asked from the
server and noted in ``synced.json``; wandb's own mark is taken back where a run has not arrived. A run that still
trains is sent by ``wandb beta sync --live``, which is ended once the run has arrived: ``wandb sync`` would end the run
on the server, as failed. ``wandb sync`` of W&B before 0.30 sends one run after the other: there each run has a process
of its own. Releases before 0.31 write a run that grows in blocks of 32 KiB, which is dozens of epochs: there a run
waits until it has ended.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from bigbatch.cluster.host import json_values
from bigbatch.cluster.host.atomic_files import read_json, write_json
from bigbatch.tune.watch.wandb_files import OfflineRun, OfflineRuns
from bigbatch.tune.watch.wandb_server_lines import lines_on_server

SYNCED_FILE = "synced.json"
PARALLEL_SINCE, LIVE_SINCE = (0, 30), (0, 31)
"""The first releases of W&B whose ``wandb sync`` has ``-n``, and whose files of a run that grows are up to date."""
UPLOAD_S, LIVE_S = 900.0, 120.0
"""An upload that takes longer is ended and tried again. A live one does not end by itself when it has failed."""
ARRIVE_S, ASK_EVERY_S = 30.0, 1.0
"""How long the server may take to count what it was sent."""
RETRIES = {
    f"WANDB_X_{part}_RETRY_{limit}": value
    for part in ("GRAPHQL", "FILE_STREAM", "FILE_TRANSFER")
    for limit, value in (("MAX", "4"), ("WAIT_MIN_SECONDS", "1"), ("WAIT_MAX_SECONDS", "5"))
}
"""wandb tries for hours if the network is cut. Here it gives up soon, and the next round begins again."""


@dataclass
class UploadRound:
    """What became of the runs that had something new."""

    uploaded: list[OfflineRun] = field(default_factory=list)
    missing: list[OfflineRun] = field(default_factory=list)
    """The server does not have all of them."""
    too_early: list[OfflineRun] = field(default_factory=list)
    """They still train, and this release of W&B sends a run only when it has ended."""


class WandbUploads:
    """The uploads of one study. ``stop`` may be set by another thread or a signal handler."""

    def __init__(self, study_folder: Path, jobs: int, say: Callable[[str], None] = print) -> None:
        study_folder = study_folder.absolute()  # W&B's programs run in it, where a relative path is another one
        self._folder = study_folder / "wandb"
        self._runs, self._jobs, self._say = OfflineRuns(self._folder), jobs, say
        self._log = study_folder / "logs" / "wandb-sync.log"
        self.stop = threading.Event()

    def pending(self) -> list[OfflineRun]:
        """The runs of which the server has not everything that the files have."""
        noted = read_json(self._folder / SYNCED_FILE)
        return [
            run
            for run in self._runs.latest()
            if json_values.whole_number(json_values.mapping(noted, run.key), "bytes") != run.size_bytes
        ]

    def upload(self, *, is_running: bool) -> UploadRound:
        """Upload what is pending.

        Args:
            is_running: whether the search goes on. Else a run without an end was killed, and W&B shows it as failed.
        """
        pending = self.pending()
        done = UploadRound()
        for live in (False, True):
            some = [run for run in pending if live == (is_running and not run.has_ended)]
            if live and wandb_release() < LIVE_SINCE:
                done.too_early += some
                break
            for first in range(0, len(some), self._jobs):
                if self.stop.is_set():
                    break
                self._upload(some[first : first + self._jobs], live, done)
        return done

    def _upload(self, runs: Sequence[OfflineRun], live: bool, done: UploadRound) -> None:
        errors = self._send(runs, live)
        left = self._wait_until_there([run for run in runs if not _names(errors, run)])
        for run in runs:
            if run in left or _names(errors, run):
                done.missing.append(run)
                with contextlib.suppress(OSError):  # else a later `wandb sync` would pass over it
                    _mark_of(run.path).unlink()
            else:
                done.uploaded.append(run)
                self._note(run)

    def _send(self, runs: Sequence[OfflineRun], live: bool) -> list[str]:
        """Run ``wandb sync`` to its end; with ``live`` until the runs have arrived. Returns the errors that it said."""
        self._log.parent.mkdir(parents=True, exist_ok=True)
        environment = {name: value for name, value in os.environ.items() if name not in ("WANDB_MODE", "WANDB_RUN_ID")}
        with self._log.open("ab") as log:
            before = log.tell()
            processes = [
                subprocess.Popen(
                    [sys.executable, "-m", "wandb", *words],
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                    cwd=self._folder.parent, env={**environment, **RETRIES},
                ) for words in sync_commands([str(run.path) for run in runs], live)
            ]  # fmt: skip
        deadline = time.monotonic() + (LIVE_S if live else UPLOAD_S)
        left = list(runs)
        try:
            while _any_runs(processes) and time.monotonic() < deadline and left and not self.stop.is_set():
                self.stop.wait(ASK_EVERY_S if live else 0.2)
                left = [run for run in left if not _has_arrived(run)] if live else left
            ends = [process.poll() for process in processes]
        finally:
            for process in processes:
                _end(process)
        with self._log.open("rb") as log:
            log.seek(before)
            said = log.read().decode(errors="replace").splitlines()
        errors = [line for line in said if " ERROR " in line]
        return errors if live or not any(ends) and None not in ends else [*errors, f"wandb sync ended with {ends}"]

    def _wait_until_there(self, runs: Sequence[OfflineRun]) -> list[OfflineRun]:
        """The runs that have not arrived in time."""
        deadline = time.monotonic() + ARRIVE_S
        left = [run for run in runs if not _has_arrived(run)]
        while left and time.monotonic() < deadline and not self.stop.wait(ASK_EVERY_S):
            if all(lines_on_server(run.project, run.entity, run.run_id) is None for run in left[:1]):
                break  # it does not answer; the next round asks again
            left = [run for run in left if not _has_arrived(run)]
        return left

    def _note(self, run: OfflineRun) -> None:
        for earlier in self._runs.others_of(run):  # else a later `wandb sync` would put them over the whole run
            _mark_of(earlier).touch()
        noted = read_json(self._folder / SYNCED_FILE)
        noted[run.key] = {"run": run.run_id, "bytes": run.size_bytes, "lines": run.lines, "ended": run.has_ended}
        write_json(self._folder / SYNCED_FILE, noted, indent=1)


def wandb_release() -> tuple[int, ...]:
    """The first two numbers of the installed release of W&B."""
    return tuple(int(number) for number in re.findall(r"\d+", version("wandb"))[:2])


def sync_commands(files: Sequence[str], live: bool) -> list[list[str]]:
    """The words after ``wandb`` of each process that sends some of the files, also those that are marked as sent."""
    if live:
        return [["beta", "sync", "--live", "--no-skip-synced", "-n", str(len(files)), *files]]
    if wandb_release() < PARALLEL_SINCE:
        return [["sync", "--include-synced", file] for file in files]
    return [["sync", "--include-synced", "-n", str(len(files)), *files]]


def _any_runs(processes: Sequence[subprocess.Popen[bytes]]) -> bool:
    return any(process.poll() is None for process in processes)


def _mark_of(path: Path) -> Path:
    """wandb's own mark that a file was sent."""
    return path.with_suffix(".wandb.synced")


def _names(errors: Sequence[str], run: OfflineRun) -> bool:
    """Whether an error is about this run, or about no run in particular."""
    return any(f"/{run.run_id}]" in line or not re.search(r"\[[^\]]+/[^\]]+\]", line) for line in errors)


def _has_arrived(run: OfflineRun) -> bool:
    lines = lines_on_server(run.project, run.entity, run.run_id)
    return lines is not None and lines >= run.lines


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process and what it has started; a finished one too, whose children may live."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
