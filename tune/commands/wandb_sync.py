"""``bigbatch wandb-sync FOLDER``: sends offline W&B runs from a machine with a network, also while a search runs.

Each run is sent by a process ``wandb sync``. It was sent if that process ends in order, says no error and leaves
wandb's mark; else the mark goes, so that the next look, or call, sends the run again from its first line on. The server
puts each line where it was. A run that trains waits for its end: ``wandb sync`` would end it on the server, as failed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from bigbatch.base.command_line import DONE, FAILED, INTERRUPTED, WRONG_INPUT, OneLineParser
from bigbatch.train_loop.config import ConfigError
from bigbatch.train_loop.launch.wandb_run import ENDED, OFFLINE_RUNS, has_key, wandb_url
from bigbatch.tune.storage.description import STUDY_FILE
from bigbatch.tune.storage.summary import DEFAULT_RUNS, QUEUED, RUNNING, ask_queue, find_study, summarize, who_runs

JOBS, EVERY_S = 5, 60.0
UPLOAD_S, LOOK_S = 900.0, 0.1
"""An upload that takes longer is ended and tried again."""
RETRIES = {
    f"WANDB_X_{part}_RETRY_{limit}": value
    for part in ("GRAPHQL", "FILE_STREAM", "FILE_TRANSFER")
    for limit, value in (("MAX", "4"), ("WAIT_MIN_SECONDS", "1"), ("WAIT_MAX_SECONDS", "5"))
}
"""wandb tries for hours if the network is cut. Here it gives up soon, and the next look begins again."""
ERROR = "ERROR "
"""How a line of wandb about an upload that failed begins. Its exit code is 0 then, and it may leave its mark."""


def wandb_sync_parser() -> argparse.ArgumentParser:
    """The options of ``bigbatch wandb-sync``."""
    p = OneLineParser(
        prog="bigbatch wandb-sync",
        description="Send the offline W&B runs of a study or a full run. What was sent is not sent again.",
    )
    add = p.add_argument
    add("study", metavar="STUDY|PATH", help="a study's name in --output, its folder, or that of a full run")
    add("--follow", action="store_true", help="go on until the search has ended, and send each run when it ends")
    add("--jobs", type=int, default=JOBS, metavar="N", help=f"runs at a time ({JOBS})")
    add("--every", type=float, default=EVERY_S, metavar="S", help=f"seconds between looks with --follow ({EVERY_S:g})")
    add("--output", metavar="DIR", default=DEFAULT_RUNS, help="the folder of studies (default: runs)")
    return p


def wandb_sync_main(argv: Sequence[str]) -> int:
    """Send the runs. Returns the exit code: 0, 1 if a run could not be sent, 2 for wrong input, 130 after Ctrl-C."""
    args = wandb_sync_parser().parse_args(argv)
    try:
        folder = _checked(args)
        return _sync(folder, args)
    except ConfigError as error:
        print(f"bigbatch wandb-sync: error: {error}", file=sys.stderr)
        return WRONG_INPUT
    except KeyboardInterrupt:
        print("bigbatch wandb-sync: stopped; what was not sent is sent by the next call", file=sys.stderr)
        return INTERRUPTED


def _checked(args: argparse.Namespace) -> Path:
    """The folder that holds ``wandb/``. Raises ConfigError."""
    given = Path(args.study)
    folder = (given if _has_runs(given) else find_study(args.study, Path(args.output))).absolute()
    if args.jobs < 1:
        raise ConfigError(f"--jobs must be at least 1; got {args.jobs}. Write e.g. {JOBS}.")
    if args.every <= 0:
        raise ConfigError(f"--every must be more than 0; got {args.every:g}. Write e.g. {EVERY_S:g}.")
    if not args.follow and not _has_runs(folder):
        raise ConfigError(
            f"wandb-sync sends offline runs; {str(folder)!r} has none. Search with --wandb offline, or write --follow."
        )
    if not has_key():
        raise ConfigError(f"wandb-sync needs a key for {wandb_url()}; none is set. Run `wandb login`.")
    return folder


def _has_runs(folder: Path) -> bool:
    # False also for a folder that may not be entered.
    return os.path.isdir(folder) and any(folder.glob(OFFLINE_RUNS))


def _sync(folder: Path, args: argparse.Namespace) -> int:
    log = folder / "logs" / "wandb-sync.log"
    try:
        log.parent.mkdir(exist_ok=True)
        log.open("a").close()
    except OSError as error:
        raise ConfigError(
            f"wandb-sync notes in the runs' folder what it has sent; got {str(log)!r} ({error.strerror}). "
            "Make it writable, or call wandb-sync as its owner."
        ) from None
    then = f"tried again in {args.every:g} s" if args.follow else "call it again"
    while True:
        until = time.monotonic() + args.every
        is_running = _is_running(folder)
        runs = latest_runs(folder)
        growing = [run for run in runs if is_running and not run.has_ended]
        failures = send([run for run in runs if run not in growing and not run.is_sent], args.jobs, log)
        if failures:
            why = next(iter(failures.values()))
            print(f"not sent: {', '.join(sorted(failures))} ({why}); {then}. See {log}", file=sys.stderr, flush=True)
        elif not args.follow:
            names = ", ".join(run.name for run in growing)
            print(f"W&B has all other runs; --follow sends {names} too." if growing else "W&B has all runs.")
        if not args.follow or not (is_running or failures):
            return FAILED if failures else DONE
        time.sleep(max(0.0, until - time.monotonic()))


def _is_running(folder: Path) -> bool:
    """Whether the search or the full run goes on, or waits in Slurm's queue."""
    if who_runs(folder) or not (folder / STUDY_FILE).exists():
        return bool(who_runs(folder))
    found = summarize(folder, details=False)
    ask_queue([found])
    return found.state in (RUNNING, QUEUED)


@dataclass(frozen=True)
class OfflineRun:
    """A run as W&B's offline file has it."""

    file: Path
    size: int
    """Of the file in bytes, when it was looked at."""

    @property
    def name(self) -> str:
        """``<study>-<number>``."""
        return self.file.stem.removeprefix("run-")

    @property
    def mark(self) -> Path:
        """wandb's own mark that the file was sent. It holds the size that the file had then: times are too coarse."""
        return self.file.with_suffix(".wandb.synced")

    @property
    def is_sent(self) -> bool:
        """Whether all that is in the file was sent."""
        return self.mark.exists() and self.mark.read_text() == str(self.size)

    @property
    def has_ended(self) -> bool:
        """Whether its trial ended or was interrupted in order."""
        return (self.file.parent / ENDED).exists()


def latest_runs(folder: Path) -> list[OfflineRun]:
    """Each run's largest file. Each attempt of a trial writes one with all epochs from the first on.

    The other ones are marked as sent: a later ``wandb sync`` of the folder would put them over the whole run.
    """
    found: dict[str, list[OfflineRun]] = {}
    for file in sorted(folder.glob(f"{OFFLINE_RUNS}/run-*.wandb")):
        run = OfflineRun(file, file.stat().st_size)
        found.setdefault(run.name, []).append(run)
    latest = []
    for runs in found.values():
        runs.sort(key=lambda run: run.size)  # of equal ones the last one
        for earlier in runs[:-1]:
            earlier.mark.write_text(str(earlier.size))
        latest.append(runs[-1])
    return latest


def send(runs: Sequence[OfflineRun], jobs: int, log: Path) -> dict[str, str]:
    """Send each run, so many at a time, with a line for each. Returns name → why it was not sent."""
    waiting, sending, failures = list(runs), dict[OfflineRun, Sending](), dict[str, str]()
    try:
        while waiting or sending:
            while waiting and len(sending) < jobs:
                run = waiting.pop(0)
                sending[run] = Sending(run)
            for run in [run for run, one in sending.items() if one.is_over()]:
                one = sending.pop(run)
                if why := one.failure(log):
                    failures[run.name] = why
                else:
                    run.mark.write_text(str(run.size))
                    print(f"sent {run.name}", flush=True)
            time.sleep(LOOK_S)
    finally:
        for one in sending.values():
            one.end()
    return failures


class Sending:
    """A process of W&B's own command that sends a run, with what it starts."""

    def __init__(self, run: OfflineRun) -> None:
        self._run, self._until = run, time.monotonic() + UPLOAD_S
        run.mark.unlink(missing_ok=True)
        kept = {name: value for name, value in os.environ.items() if name not in ("WANDB_MODE", "WANDB_RUN_ID")}
        # A file: nobody reads along, and a full pipe would stop the process.
        self._said: IO[bytes] = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "wandb", "sync", "--include-synced", str(run.file)],
            # A session of its own, so that end() reaches what wandb starts.
            stdin=subprocess.DEVNULL, stdout=self._said, stderr=self._said, start_new_session=True,
            env={**RETRIES, **kept},
        )  # fmt: skip

    def is_over(self) -> bool:
        """Whether it has ended, or has had all its time."""
        return self._process.poll() is not None or time.monotonic() > self._until

    def end(self) -> None:
        """End the process and what it has started; a finished one too, whose children may live."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def failure(self, log: Path) -> str:
        """End it. Returns why the run was not sent, empty: it was. What it has said goes to ``log``."""
        self.end()
        self._said.seek(0)
        said = self._said.read().decode(errors="replace")
        with log.open("a") as file:
            file.write(said)
        lines = [line.removeprefix("wandb: ") for line in said.splitlines()] or ["it said nothing"]
        why = next((line.removeprefix(ERROR) for line in lines if line.startswith(ERROR)), "")
        code = self._process.returncode
        if code or not self._run.mark.exists():  # e.g. not authenticated
            why = why or f"{lines[-1]}, exit code {code}"
        if why:
            self._run.mark.unlink(missing_ok=True)
        return " ".join(why.split())[:300]
