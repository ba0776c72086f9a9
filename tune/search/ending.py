"""The last lines of a search, and its exit code."""

from __future__ import annotations

import os
import sys

from rich.console import Console

from bigbatch.tune.budget.budget import BUDGET_SPENT, NO_ROOM_IN_BUDGET
from bigbatch.tune.console.findings import print_disk_full, quoted_path, resume_command, why_nothing
from bigbatch.tune.runs.observer import TrialView
from bigbatch.tune.search.interrupts import StopRequest
from bigbatch.tune.search.joining import others_at_work
from bigbatch.tune.search.running import SearchRun, is_complete
from bigbatch.tune.storage.store import StudyStore
from bigbatch.tune.trials.admission import END_OF_ALLOCATION

DONE, FAILED = 0, 1
TRY_AGAIN = os.EX_TEMPFAIL
"""Exit code 75: the allocation ended; resume the study in another one."""


def end_search(run: SearchRun, trials: list[TrialView], stop: StopRequest, console: Console, store: StudyStore) -> int:
    """Print the last lines. Returns the exit code."""
    plan, wandb = run.plan, run.wandb
    if store.disk.full:
        print_disk_full(plan, store.disk.full)
        return 128 + stop.signal if stop.signal is not None else FAILED
    fatal = run.bridge.fatal if run.bridge is not None else None
    if wandb is not None and wandb.sync_command():
        ours = f"bigbatch wandb-sync {quoted_path(plan.folder)}"
        console.print("\nSend the W&B runs from a machine with a network:")
        console.print(f"  {ours}", soft_wrap=True)
        console.print("or with W&B's own command:")
        console.print(f"  {wandb.sync_command()}", soft_wrap=True)
    if fatal:
        print(f"error: {fatal}. See {quoted_path(plan.folder / 'logs')}.", file=sys.stderr)
    refused = run.deadline.refused or (run.capacity is not None and run.capacity.lost())
    unfinished = not is_complete(plan, store)
    cut_short, stopped = refused and unfinished, stop.is_set() and unfinished
    if stopped or cut_short:
        is_spent = stop.reason in (BUDGET_SPENT, NO_ROOM_IN_BUDGET)
        command = resume_command(plan, store.ledger.held_s / 3600 if is_spent else None)
        why = "" if fatal else f"Stopped: {stop.reason or END_OF_ALLOCATION}. "
        console.print(f"\n{why}Everything is saved; continue with:")
        console.print(f"  {command}", soft_wrap=True)
    if stop.signal is not None and unfinished:  # else the signal came while the findings were printed
        return 128 + stop.signal
    if cut_short and not fatal:
        return TRY_AGAIN
    if unfinished and not fatal and others_at_work(store):
        console.print("\nThe last trials of the study run in its other drivers.")
        return DONE
    complete = any(t.state == "COMPLETE" for t in trials)
    if not complete:
        why = why_nothing(plan, trials) or "no trial ran to its end."
        print(f"error: {why} The logs: {quoted_path(plan.folder / 'logs')}", file=sys.stderr)
    return DONE if complete and not fatal else FAILED
