"""``bigbatch wandb-sync STUDY``: sends offline W&B runs from a machine with a network, also while the search runs."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from bigbatch.cluster.host.command_line import DONE, FAILED, INTERRUPTED, WRONG_INPUT, OneLineParser
from bigbatch.train_loop.config import ConfigError
from bigbatch.train_loop.config.words import epochs_text
from bigbatch.tune.study.summary import DEFAULT_RUNS, QUEUED, RUNNING, ask_queue, find_study, summarize
from bigbatch.tune.watch.wandb_server_lines import wandb_key, wandb_url
from bigbatch.tune.watch.wandb_uploads import LIVE_SINCE, UploadRound, WandbUploads, wandb_release

JOBS, EVERY_S = 5, 60.0


def wandb_sync_parser() -> argparse.ArgumentParser:
    """The options of ``bigbatch wandb-sync``."""
    p = OneLineParser(
        prog="bigbatch wandb-sync",
        description="Send the offline W&B runs of a study. A run that the server has is not sent again.",
        allow_abbrev=False,
    )
    add = p.add_argument
    add("study", metavar="STUDY|PATH", help="a study's name in --output, or its folder")
    add("--follow", action="store_true", help="go on until the search has ended, and send the runs as they grow")
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
    """The study's folder. Raises ConfigError."""
    folder = find_study(args.study, Path(args.output))
    if args.jobs < 1:
        raise ConfigError(f"--jobs must be at least 1; got {args.jobs}. Write e.g. {JOBS}.")
    if args.every <= 0:
        raise ConfigError(f"--every must be more than 0; got {args.every:g}. Write e.g. {EVERY_S:g}.")
    if not args.follow and not any((folder / "wandb").glob("offline-run-*")):
        raise ConfigError(
            f"wandb-sync sends offline runs; {str(folder)!r} has none. Search with --wandb offline, or write --follow."
        )
    if wandb_key() is None:
        raise ConfigError(f"wandb-sync needs a key for {wandb_url()}; none is set. Run `wandb login`.")
    return folder


def _sync(folder: Path, args: argparse.Namespace) -> int:
    uploads = WandbUploads(folder, args.jobs)
    if args.follow and wandb_release() < LIVE_SINCE:
        print(f"W&B {version('wandb')} sends a run only when it has ended; {_live_release()} as it grows.", flush=True)
    while True:
        began = time.monotonic()
        is_running = _is_running(folder)
        done = uploads.upload(is_running=is_running)
        _tell(done, args)
        if not args.follow or not (is_running or done.missing or uploads.pending()):
            return FAILED if done.missing else DONE
        uploads.stop.wait(max(0.0, args.every - (time.monotonic() - began)))


def _is_running(folder: Path) -> bool:
    """Whether the search runs or waits in Slurm's queue."""
    found = summarize(folder, details=False)
    ask_queue([found])
    return found.state in (RUNNING, QUEUED)


def _tell(done: UploadRound, args: argparse.Namespace) -> None:
    for run in done.uploaded:
        epochs = (
            epochs_text(run.lines) + ("" if run.has_ended else ", so far")
            if run.lines
            else f"no epoch{'' if run.has_ended else ' yet'}"
        )
        print(f"sent {run.run_id}: {epochs}", flush=True)
    if done.missing:
        names = ", ".join(run.run_id for run in done.missing)
        then = f"they are tried again in {args.every:g} s" if args.follow else "call it again"
        print(f"not sent: {names}. {wandb_url()} did not take them; {then} (logs/wandb-sync.log)", file=sys.stderr)
    elif not done.uploaded and not done.too_early and not args.follow:
        print("The server has all runs.", flush=True)
    if done.too_early and not args.follow:
        names = ", ".join(run.run_id for run in done.too_early)
        print(
            f"not yet: {names} still train, and W&B {version('wandb')} sends a run only when it has ended. "
            f"Call it again then, or install W&B {_live_release()} or newer.",
            flush=True,
        )


def _live_release() -> str:
    return ".".join(map(str, LIVE_SINCE))
