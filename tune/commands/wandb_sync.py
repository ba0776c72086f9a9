"""``bigbatch wandb-sync FOLDER``: sends offline W&B runs from a machine with a network, also while a search runs.

Each run is sent by a process ``wandb sync``. The run was sent if that process exits with 0, reports no error and leaves
wandb's mark. Else the mark is removed, and the next look, or call, sends the whole run again; the server puts each line
in its old place. A run that trains is sent after its end: ``wandb sync`` would end it on the server, as failed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bigbatch.base.command_line import DONE, FAILED, INTERRUPTED, WRONG_INPUT, OneLineParser
from bigbatch.train_loop.config import ConfigError
from bigbatch.train_loop.launch.wandb_run import ENDED, OFFLINE_RUNS
from bigbatch.tune.storage.description import STUDY_FILE
from bigbatch.tune.storage.summary import DEFAULT_RUNS, QUEUED, RUNNING, ask_queue, find_study, summarize, who_runs

UPLOAD_S = 900.0
"""An upload that takes longer is ended and tried again."""
RETRIES = {
    f"WANDB_X_{part}_RETRY_{limit}": value
    for part in ("GRAPHQL", "FILE_STREAM", "FILE_TRANSFER")
    for limit, value in (("MAX", "4"), ("WAIT_MIN_SECONDS", "1"), ("WAIT_MAX_SECONDS", "5"))
}
"""wandb tries for hours if the network is cut. Here it gives up soon, and the next look begins again."""
ERROR = "wandb: ERROR "
"""wandb's line about a failed upload begins with this. Its exit code is then 0, and it may still leave its mark."""


def wandb_sync_main(argv: Sequence[str]) -> int:
    """Send the runs. Returns the exit code: 0, 1 if a run could not be sent, 2 for wrong input, 130 after Ctrl-C."""
    parser = OneLineParser(
        prog="bigbatch wandb-sync",
        description="Send the offline W&B runs of a study or a full run. What was sent is not sent again.",
    )
    add = parser.add_argument
    add("study", metavar="STUDY|PATH", help="a study's name in --output, its folder, or that of a full run")
    add("--follow", action="store_true", help="go on until the search has ended, and send each run when it ends")
    add("--jobs", type=int, default=5, metavar="N", help="runs at a time (5)")
    add("--every", type=float, default=60.0, metavar="S", help="seconds between looks with --follow (60)")
    add("--output", metavar="DIR", default=DEFAULT_RUNS, help="the folder of studies (default: runs)")
    args = parser.parse_args(argv)
    try:
        return _sync(_checked(args), args)
    except (ConfigError, OSError) as error:
        print(f"bigbatch wandb-sync: error: {error}", file=sys.stderr)
        return WRONG_INPUT
    except KeyboardInterrupt:
        print("bigbatch wandb-sync: stopped; what was not sent is sent by the next call", file=sys.stderr)
        return INTERRUPTED


def _checked(args: argparse.Namespace) -> Path:
    """The folder that holds ``wandb/``. Raises ConfigError."""
    given = Path(args.study)
    folder = (given if _has_runs(given) else find_study(args.study, Path(args.output))).absolute()
    if args.jobs < 1 or args.every <= 0:
        raise ConfigError(f"--jobs and --every must be more than 0; got {args.jobs} and {args.every:g}.")
    if not args.follow and not _has_runs(folder):
        raise ConfigError(
            f"wandb-sync sends offline runs; {str(folder)!r} has none. Search with --wandb offline, or write --follow."
        )
    return folder


def _has_runs(folder: Path) -> bool:
    # False also for a folder that may not be entered.
    return os.path.isdir(folder) and any(folder.glob(OFFLINE_RUNS))


def _sync(folder: Path, args: argparse.Namespace) -> int:
    then = f"tried again in {args.every:g} s" if args.follow else "call it again"
    while True:
        is_running = _is_running(folder)
        waiting = [run for run in latest_runs(folder) if not _is_sent(run)]
        growing = [run for run in waiting if is_running and not (run.parent / ENDED).exists()]
        due = [run for run in waiting if run not in growing]
        several = ThreadPoolExecutor(args.jobs)
        try:
            reasons = dict(zip(due, several.map(_send, due), strict=True))
        finally:
            several.shutdown(cancel_futures=True)  # Ctrl-C also ends those that are being sent, and begins no other
        failures = {_name(run): why for run, why in reasons.items() if why}
        if failures:
            why = next(iter(failures.values()))
            print(f"not sent: {', '.join(sorted(failures))} ({why}); {then}", file=sys.stderr, flush=True)
        elif not args.follow:
            print("W&B has all other runs; --follow sends those that run too." if growing else "W&B has all runs.")
        if not args.follow or not (is_running or failures):
            return FAILED if failures else DONE
        time.sleep(args.every)


def _is_running(folder: Path) -> bool:
    """Whether the search or the full run goes on, or waits in Slurm's queue."""
    if who_runs(folder) or not (folder / STUDY_FILE).exists():
        return bool(who_runs(folder))
    found = summarize(folder, details=False)
    ask_queue([found])
    return found.state in (RUNNING, QUEUED)


def _name(run: Path) -> str:
    return run.stem.removeprefix("run-")


def _mark(run: Path) -> Path:
    """wandb's own mark that the file was sent. It holds the size that the file had then: times are too coarse."""
    return run.with_suffix(".wandb.synced")


def _is_sent(run: Path) -> bool:
    return _mark(run).exists() and _mark(run).read_text() == str(run.stat().st_size)


def latest_runs(folder: Path) -> list[Path]:
    """Each run's largest file. Each attempt of a trial writes one with all epochs from the first on.

    The other ones are marked as sent: a later ``wandb sync`` of the folder would put them over the whole run.
    """
    latest: dict[str, tuple[int, Path]] = {}
    for size, run in sorted((run.stat().st_size, run) for run in folder.glob(f"{OFFLINE_RUNS}/run-*.wandb")):
        if _name(run) in latest:
            smaller, other = latest[_name(run)]
            _mark(other).write_text(str(smaller))
        latest[_name(run)] = (size, run)
    return [run for _, run in latest.values()]


def _send(run: Path) -> str:
    """Send a run by W&B's own command. Returns why it was not sent; empty: it was."""
    size, mark = run.stat().st_size, _mark(run)
    mark.unlink(missing_ok=True)
    env = {name: value for name, value in os.environ.items() if name not in ("WANDB_MODE", "WANDB_RUN_ID")}
    command = [sys.executable, "-m", "wandb", "sync", "--include-synced", str(run)]
    with tempfile.TemporaryFile() as said:  # no pipe, which what wandb starts would keep open
        try:
            code = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, env=RETRIES | env, timeout=UPLOAD_S
            ).returncode
        except subprocess.TimeoutExpired:
            code = -1
        said.seek(0)
        lines = said.read().decode(errors="replace").splitlines() or ["it said nothing"]
    why = next((line.removeprefix(ERROR) for line in lines if line.startswith(ERROR)), "")
    if code or not mark.exists():  # e.g. not authenticated
        why = why or f"{lines[-1]}, exit code {code}"
    if why:
        mark.unlink(missing_ok=True)
        return " ".join(why.split())[:300]
    mark.write_text(str(size))
    print(f"sent {_name(run)}", flush=True)
    return ""
