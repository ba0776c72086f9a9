"""The last lines of a search, and its exit code."""

from __future__ import annotations

import os
import sys

from rich.console import Console

from bigbatch.tune.budget.budget import BUDGET_SPENT, NO_ROOM_IN_BUDGET, NO_ROOM_IN_TIME, TIME_SPENT
from bigbatch.tune.console.findings import print_disk_full, quoted_path, resume_command, why_nothing
from bigbatch.tune.runs.observer import TrialView
from bigbatch.tune.search.budgeting import devices_at_least, run_that_lacked_room_s
from bigbatch.tune.search.interrupts import StopRequest
from bigbatch.tune.search.joining import others_at_work
from bigbatch.tune.search.running import SearchRun, is_complete
from bigbatch.tune.storage.store import StudyStore
from bigbatch.tune.trials.admission import END_OF_ALLOCATION

BUDGET_REASONS = (BUDGET_SPENT, NO_ROOM_IN_BUDGET, NO_ROOM_IN_TIME, TIME_SPENT)
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
        command = resume_command(plan, _hours_needed(run, trials, store) if is_spent else None)
        why = "" if fatal else f"Stopped: {stop.reason or END_OF_ALLOCATION}. "
        console.print(f"\n{why}Everything is saved; continue with:")
        console.print(f"  {command}", soft_wrap=True)
    if stop.signal is not None and unfinished:  # else the signal came while the findings were printed
        return 128 + stop.signal
    if cut_short and not fatal:
        return TRY_AGAIN
    if unfinished and not fatal and (others := others_at_work(store)):
        console.print(f"\nThe last trials of the study run in its other drivers: {others}.")
        return DONE
    complete = any(t.state == "COMPLETE" for t in trials)
    if not complete:
        why = why_nothing(plan, trials) or f"no trial ran to its end{_beyond_the_budget(run, trials, stop)}."
        print(f"error: {why} The logs: {quoted_path(plan.folder / 'logs')}", file=sys.stderr)
    return DONE if complete and not fatal else FAILED


def _beyond_the_budget(run: SearchRun, trials: list[TrialView], stop: StopRequest) -> str:
    """Why no run fitted into the budget, where that has ended the search."""
    if run.budget is None or stop.reason not in BUDGET_REASONS:
        return ""
    run_s = run_that_lacked_room_s(run.budget, trials)
    return ": no epoch ended within the budget" if run_s is None else f": a whole run takes about {run_s:.0f} s"


def _hours_needed(run: SearchRun, trials: list[TrialView], store: StudyStore) -> float:
    """Device hours that the study has used, and those of a first whole run if it has none."""
    used_h = store.ledger.held_s / 3600
    if run.budget is None or any(trial.state == "COMPLETE" for trial in trials):
        return used_h
    return used_h + devices_at_least(run.plan) * (run_that_lacked_room_s(run.budget, trials) or 0.0) / 3600
