"""Run a plan: start Ray, study, bridge and display, and end them in order."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from optuna.trial import TrialState
from rich.console import Console

from bigbatch.train_loop.config import ConfigError, TrainConfig
from bigbatch.train_loop.errors import RayStartError
from bigbatch.train_loop.host.signals import StopSignals
from bigbatch.train_loop.launch.ray_session import JoinedRay, LocalRay, RayConnection, check_reachable
from bigbatch.train_loop.progress import progress_file
from bigbatch.tune.budget.budget import BUDGET_SPENT, NO_ROOM_IN_BUDGET
from bigbatch.tune.console.display import PlainLines, SearchProgress, make_display
from bigbatch.tune.console.findings import (
    print_disk_full,
    print_findings,
    print_machine,
    print_plan,
    quoted_path,
    refusals_in_words,
    resume_command,
    say_retries,
    why_nothing,
)
from bigbatch.tune.plan.enqueued import enqueue_first_trials
from bigbatch.tune.plan.fitting import absent_nodes, cluster_machine, living_nodes, plan_for_cluster
from bigbatch.tune.plan.machine import devices_held
from bigbatch.tune.plan.option_checks import check_same_values
from bigbatch.tune.plan.search_plan import SearchPlan
from bigbatch.tune.proposers.samplers import quiet_optuna
from bigbatch.tune.runs import retry
from bigbatch.tune.runs.run import Run, count_ended, counted_trials, failed_trials, is_exhausted
from bigbatch.tune.search.budgeting import check_budget, make_budget, refused_at_once
from bigbatch.tune.search.capacity import Capacity
from bigbatch.tune.search.gpu_use import TrialsPerGpu
from bigbatch.tune.search.interrupts import StopRequest, stop_signals
from bigbatch.tune.search.joining import agreement, check_same_model, others_at_work
from bigbatch.tune.search.running import (
    SearchRun,
    is_complete,
    make_bridge,
    over_function,
    recorders,
    search_answer,
)
from bigbatch.tune.search.watch_thread import SearchWatch
from bigbatch.tune.storage.description import provenance, read_description
from bigbatch.tune.storage.journal_file import LineLog
from bigbatch.tune.storage.storage_url import DatabaseLost
from bigbatch.tune.storage.store import StudyStore
from bigbatch.tune.trials.admission import END_OF_ALLOCATION, end_of_allocation

DONE, FAILED = 0, 1
TRY_AGAIN = os.EX_TEMPFAIL
"""Exit code 75: the allocation ended; resume the study in another one."""


NO_OTHER = "The sampler has no other configuration, so the search has ended."


def run_search(plan: SearchPlan) -> int:
    """Search and print the result. Returns the exit code.

    Raises ConfigError if the study's folder, the database or the cluster cannot be used.
    """
    if os.environ.get("COLUMNS") == "0":  # where it is not known, as in some containers; rich would print nothing
        del os.environ["COLUMNS"]
    # rich would read brackets in names as markup, and `FILE.py:car:` as a picture of one.
    console = Console(soft_wrap=not sys.stdout.isatty(), highlight=False, markup=False, emoji=False)
    end_of_allocation()  # checked before anything starts
    check_budget(plan)
    talk = Console(quiet=True) if plan.options.quiet else console
    print_plan(plan, talk)
    if plan.options.dry_run:
        return DONE
    quiet_optuna()
    run, stop = SearchRun(plan), StopRequest()
    try:
        return _run_search(run, stop, console, talk)
    except KeyboardInterrupt:  # another Ctrl-C while findings are printed or Ray is ended
        if stop.signal is None:
            raise
        print("\nStopped at once; the study is saved.", file=sys.stderr)
        return 128 + signal.SIGINT


def _run_search(run: SearchRun, stop: StopRequest, console: Console, talk: Console) -> int:
    """Open the study, search, and print the findings. Returns the exit code. ``talk``: silent with ``--quiet``."""
    plan = run.plan
    with ExitStack() as stack:
        store = _open_store(plan, talk)
        stack.callback(store.close)
        interrupts = stack.enter_context(stop_signals(stop))
        if _has_nothing_to_do(plan, store):
            return _nothing_to_do(run, store, stop, console)
        store.add_session(provenance(), **plan.to_dict())
        outcome = "crashed"
        try:
            _search(run, store, stop, stack, talk, interrupts)
            outcome = "interrupted" if stop.signal else "ended"
        except ConfigError:  # e.g. the cluster is too small: what is refused leaves no study behind
            if not plan.resume:
                store.discard()
            raise
        except KeyboardInterrupt:  # a second Ctrl-C
            outcome = "interrupted"
            console.print("\nStopped at once; continue with:")
            console.print(f"  {resume_command(plan)}", soft_wrap=True)
            return 128 + signal.SIGINT
        except DatabaseLost as error:
            print(
                f"error: {error}. Earlier results are saved; continue with:\n  {resume_command(plan)}", file=sys.stderr
            )
            return FAILED
        except RayStartError:  # Ctrl-C in a terminal also reaches Ray's processes, and may end their start
            if stop.signal is None:
                raise
            outcome = "interrupted"
        except Exception as error:
            if not store.disk.end_because(error):  # a full disk ends the search in order
                raise
        finally:
            store.write_last(outcome, time.monotonic() - run.started)
        _say_findings(run, store, time.monotonic() - run.started, console)
        _say_report(store, stop, console)
        return end_search(run, stop, console, store)


def _say_findings(run: SearchRun, store: StudyStore, elapsed_s: float, console: Console) -> None:
    plan, trials = run.plan, store.study.get_trials(deepcopy=False)
    answer, unconfirmed = search_answer(run, store)
    print_findings(plan, trials, elapsed_s, store.ledger.used(), console, answer, unconfirmed)
    said = [NO_OTHER] if is_exhausted(store.study) else []
    said += refusals_in_words(trials)
    for line in said:
        console.print(line)
    if failed_trials(trials):
        command = f"{resume_command(plan)} --retry-failed"
        console.print("\nTry the failed trials again, when their cause is mended:")
        console.print(f"  {command}", soft_wrap=True)


def _say_report(store: StudyStore, stop: StopRequest, console: Console) -> None:
    """Write the report, not on a full disk. After a signal, say how to get it: whoever sent that may kill soon."""
    if store.disk.full or not (trials := store.study.get_trials(deepcopy=False)):
        return
    if stop.signal is not None:
        console.print("\nFor a report:")
        console.print(f"  bigbatch report {quoted_path(store.folder)}", soft_wrap=True)
        return
    from bigbatch.tune.report.page import report_at_end  # needed only now

    store.ledger.write()  # the report reads it: the last beat may be 10 s ago
    console.print(f"\n{report_at_end(store.folder, trials)}")


def _has_nothing_to_do(plan: SearchPlan, store: StudyStore) -> bool:
    """Whether the study is complete, before and after the repair of what a killed driver left, e.g. a confirmation."""
    if not is_complete(plan, store):
        return False
    with store.in_turn():
        store.recover()
    return is_complete(plan, store)


def _nothing_to_do(run: SearchRun, store: StudyStore, stop: StopRequest, console: Console) -> int:
    """A resumed study with all its trials: print the findings, write the report, and do not start Ray."""
    plan = run.plan
    # Another tolerance or baseline gives another answer, without another trial.
    store.describe({"tolerance": str(plan.tolerance), "baseline": dict(plan.baseline)})
    store.refresh(force=True)
    ended = count_ended(store.study.get_trials(deepcopy=False))
    console.print(f"\nAll {ended} trials have ended; write e.g. --trials {2 * ended} for more.")
    _say_findings(run, store, 0.0, console)
    _say_report(store, stop, console)  # of another answer, or of a driver that was killed before it
    trials = store.study.get_trials(deepcopy=False)
    if any(t.state == TrialState.COMPLETE for t in trials):
        return DONE
    if why := why_nothing(plan, trials):
        print(f"error: {why}", file=sys.stderr)
    return FAILED


def _search(
    run: SearchRun, store: StudyStore, stop: StopRequest, stack: ExitStack, console: Console, interrupts: StopSignals
) -> None:
    """The part of a search that needs Ray. Fills in ``run``."""
    plan = run.plan
    if reason := refused_at_once(plan, store):
        stop.set(reason)
        with store.in_turn():
            store.recover()
        return
    # Before Ray starts: Slurm bills its start as well.
    store.ledger.hold(devices_held(plan.machine, plan.share) if plan.address == "local" else 0)
    connection = _start_ray(plan, store, stack, console)
    interrupts.take()  # starting Ray may have replaced the handler for SIGTERM
    if not connection.local:
        plan = run.plan = _fitted_to_cluster(plan, store, console)
    run.capacity = _capacity(plan, connection.local, partial(_tell, run, console))
    store.ledger.hold(run.capacity.devices(plan.machine))  # only now are the devices known
    sharing = TrialsPerGpu(run, store, partial(_tell, run, console))
    sharing.rise()
    plan = run.plan
    observers = recorders(run, store, stack)
    run.budget = make_budget(plan, store, run.capacity, run.started)
    ray_storage = _ray_storage(plan, connection)
    bridge = run.bridge = make_bridge(run, store, ray_storage, observers, stop, sharing)
    bridge.recover()
    with store.in_turn():
        enqueue_first_trials(plan, store.study)
    counted = counted_trials(store.study.get_trials(deepcopy=False))
    finished = {t.number: Run.of(t) for t in counted if t.state.is_finished()}
    if not is_complete(plan, store) and not stop.is_set():
        log = LineLog(store.log_folder / "driver.log")
        limits = (plan.trial_limit, plan.share.concurrency)
        shown = (
            *limits,
            finished,
            plan.space.source != "built-in",
            run.budget.lasts_s,
            plan.objectives,
            plan.frontier,
            run.started,
        )
        lines = PlainLines(SearchProgress(*shown), log)
        with make_display(SearchProgress(*shown), quiet=plan.options.quiet) as display:
            watch = SearchWatch(bridge.runs, lambda n: progress_file(store.trial_log(n)), [lines, display])
            observers += [watch, lines, display, sharing]
            with watch.running(), stop.acknowledged_by(getattr(display, "acknowledge", None)):
                connection.tell_dashboard(watch.note)
                _fit(run, store, stop, watch, ray_storage)


def _capacity(plan: SearchPlan, own_ray: bool, say: Callable[[str], None]) -> Capacity:
    on_gpus = plan.machine.gpus > 0
    at_once = sys.maxsize if plan.open_ended and on_gpus else plan.trials
    nodes = None if own_ray else living_nodes
    return Capacity(plan.share, at_once, on_gpus, nodes, say, absent_nodes, plan.machine)


def _tell(run: SearchRun, console: Console, line: str) -> None:
    """Show a line: beside the trials, or before there are any."""
    console.print(line) if run.bridge is None else run.bridge.say(line)


def _start_ray(plan: SearchPlan, store: StudyStore, stack: ExitStack, console: Console) -> RayConnection:
    """Start Ray, or join one, until ``stack`` ends. Notes how long a start took: the next budget keeps room for it."""
    is_local, since = plan.address == "local", time.monotonic()
    console.print("Starting Ray …" if is_local else f"Joining Ray at {plan.address} …", style="dim")
    log = store.log_folder / "ray.log"
    local = (plan.machine.cpus, plan.machine.gpus, log)
    connection = stack.enter_context(LocalRay(*local) if is_local else JoinedRay(plan.address, log))
    if is_local:
        store.ledger.note(ray_start_s=time.monotonic() - since)
    return connection


def _fitted_to_cluster(plan: SearchPlan, store: StudyStore, console: Console) -> SearchPlan:
    """The plan for the cluster that was joined. Raises ConfigError if it does not fit there or to the other drivers."""
    plan = plan_for_cluster(plan, cluster_machine())
    print_machine(plan, console)
    if plan.resume:
        check_same_values(plan.frontier, plan.workers, read_description(plan.folder))
    store.describe(plan.to_dict())
    if store.drivers is not None and not plan.resume:
        with store.in_turn():
            check_same_model(plan, store.study)
    return plan


def _fit(run: SearchRun, store: StudyStore, stop: StopRequest, watch: SearchWatch, ray_storage: Path) -> None:
    """Let Ray Tune run until enough trials have ended or something stops the search."""
    # Only now that Ray runs: this loads Ray's core, which reads the token's place once, when it is loaded.
    from bigbatch.tune.search.tuner import run_tuner

    over = over_function(run, store, stop)
    run_tuner(run.plan, run.bridge, run.capacity, store, watch, over, ray_storage)
    store.ledger.ending()
    if run.budget is not None and (reason := run.budget.refused or run.bridge.closed_by):
        stop.set(reason)


def _open_store(plan: SearchPlan, console: Console) -> StudyStore:
    if plan.address != "local":
        check_reachable(plan.address)
    if plan.resume:
        store = StudyStore.open(plan.folder, plan.storage, agreement(plan))
        try:
            check_budget(plan, store)
            _check_waiting(plan, store)
        except ConfigError:
            store.close()
            raise
        if plan.options.retry_failed:
            with store.in_turn():
                retried = retry.retry_failed(store)
            say_retries(retried, console)
        return store
    join = plan.options.join
    return StudyStore.create(plan.folder, plan.study, plan.to_dict(), plan.storage, agreement(plan), join=join)


def _check_waiting(plan: SearchPlan, store: StudyStore) -> None:
    """Raise ConfigError if an interrupted trial does not suit the number of workers of this resume."""
    trials = store.study.get_trials(deepcopy=False)
    failed = retry.trials_to_retry(trials) if plan.options.retry_failed else []
    for trial in [*(t for t in trials if not t.state.is_finished()), *failed]:
        if "config" in trial.user_attrs:
            try:
                TrainConfig.from_dict(trial.user_attrs["config"]).check_workers(plan.workers)
            except ConfigError as error:
                raise ConfigError(
                    f"--workers must suit the interrupted trials; got {plan.workers}. Trial {trial.number}: {error}"
                ) from None


def _ray_storage(plan: SearchPlan, connection: RayConnection) -> Path:
    """The folder for Ray's own files: beside its sockets for a private Ray, else one that every node sees."""
    if connection.local and connection.token_path:
        return Path(connection.token_path).parent / "tune"
    return plan.folder / ".ray"


def end_search(run: SearchRun, stop: StopRequest, console: Console, store: StudyStore) -> int:
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
    trials = store.study.get_trials(deepcopy=False)
    complete = any(t.state == TrialState.COMPLETE for t in trials)
    if not complete:
        why = why_nothing(plan, trials) or "no trial ran to its end."
        print(f"error: {why} The logs: {quoted_path(plan.folder / 'logs')}", file=sys.stderr)
    return DONE if complete and not fatal else FAILED
