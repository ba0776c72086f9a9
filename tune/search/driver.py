"""Run a plan: start Ray, study, bridge and display, and end them in order."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from bigbatch.train_loop.config import ConfigError, TrainConfig
from bigbatch.train_loop.errors import RayStartError
from bigbatch.train_loop.host.signals import say_from_handler
from bigbatch.train_loop.launch.ray_session import JoinedRay, LocalRay, RayConnection, check_reachable
from bigbatch.train_loop.launch.trial_task import TrialTask
from bigbatch.train_loop.progress import progress_file
from bigbatch.tune.plan.joined import cluster_machine, living_nodes, plan_for_cluster
from bigbatch.tune.plan.machine import devices_held
from bigbatch.tune.plan.search_plan import SearchPlan
from bigbatch.tune.strategies.samplers import MODEL_BASED, make_pruner, quiet_optuna, sampler_factory
from bigbatch.tune.study import retry
from bigbatch.tune.study.patient_journal import LineLog
from bigbatch.tune.study.provenance import provenance
from bigbatch.tune.study.storage_url import DatabaseLost
from bigbatch.tune.study.store import StudyStore
from bigbatch.tune.trials.allocation_deadline import END_OF_ALLOCATION, Deadline, end_of_allocation
from bigbatch.tune.trials.capacity import Capacity
from bigbatch.tune.watch import wandb_log
from bigbatch.tune.watch.columns import columns_of
from bigbatch.tune.watch.display import PlainLines, SearchProgress, make_display
from bigbatch.tune.watch.findings import (
    print_disk_full,
    print_findings,
    print_machine,
    print_plan,
    quoted_path,
    resume_command,
    say_retries,
)
from bigbatch.tune.watch.interrupts import Interrupts, StopRequest
from bigbatch.tune.watch.observer import Observer, TrialView
from bigbatch.tune.watch.progress_file import ProgressFileWriter
from bigbatch.tune.watch.views import ended_trials, trial_views
from bigbatch.tune.watch.watch_thread import ClusterLost, SearchWatch, end_process_unless_done, make_watch

if TYPE_CHECKING:  # it imports Ray
    from bigbatch.tune.trials.bridge import OptunaBridge

DONE, FAILED = 0, 1
TRY_AGAIN = os.EX_TEMPFAIL
"""Exit code 75: the allocation ended; resume the study in another one."""
BUDGET_SPENT = "the budget of GPU hours is spent"
CHECKPOINT_EVERY_S = 20.0
"""A killed search loses at most this many seconds of training, or one step if steps take longer."""


def run_search(plan: SearchPlan) -> int:
    """Search and print the result. Returns the exit code.

    Raises ConfigError if the study's folder, the database or the cluster cannot be used.
    """
    console = Console(soft_wrap=not sys.stdout.isatty(), highlight=False)
    end_of_allocation()  # checked before anything starts
    print_plan(plan, console)
    if plan.options.dry_run:
        return DONE
    quiet_optuna()
    stop = StopRequest()
    try:
        return _run_search(plan, stop, console)
    except KeyboardInterrupt:  # another Ctrl-C while findings are printed or Ray is ended
        if stop.signal is None:
            raise
        print("\nStopped at once; the study is saved.", file=sys.stderr)
        return 128 + signal.SIGINT


def _run_search(plan: SearchPlan, stop: StopRequest, console: Console) -> int:
    """Open the study, search, and print the findings. Returns the exit code."""
    started = time.monotonic()
    with ExitStack() as stack:
        if plan.address != "local":
            check_reachable(plan.address)
        store = _open_store(plan, console)
        stack.callback(store.close)
        interrupts = stack.enter_context(Interrupts(stop))
        store.disk.stopped = stop.is_set
        if _finished(store) >= plan.trials:
            return _nothing_to_do(plan, store, console)
        store.add_session(provenance(), **plan.to_dict())
        outcome, ended = "crashed", _Ended(plan)
        try:
            _search(ended, store, stop, stack, console, interrupts)
            outcome = "interrupted" if stop.signal else "ended"
        except ClusterLost:
            pass  # the findings show what is saved
        except ConfigError:
            if not plan.resume:
                store.discard()
            raise
        except KeyboardInterrupt:  # a second Ctrl-C
            outcome = "interrupted"
            console.print(f"\nStopped at once; continue with:\n  {resume_command(plan)}", markup=False, soft_wrap=True)
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
            if not store.disk.end_because(error):
                raise
        finally:
            ended.in_order = True
            store.write_last(outcome, time.monotonic() - started)
        trials = _views(store)
        print_findings(ended.plan, trials, time.monotonic() - started, store.ledger.used(), console)
        return _end(ended, trials, stop, console, store)


@dataclass
class _Ended:
    """The facts that the last lines of a search need."""

    plan: SearchPlan
    """The plan that was carried out."""
    in_order: bool = False
    """Whether the driver's thread has left the search and will print the last lines itself."""
    bridge: Any = None
    wandb: Any = None
    capacity: Any = None
    deadline: Deadline = field(default_factory=lambda: Deadline(None, lambda: None))


def _finished(store: StudyStore) -> int:
    return retry.count_ended(store.study.get_trials(deepcopy=False))


def _nothing_to_do(plan: SearchPlan, store: StudyStore, console: Console) -> int:
    """A resumed study with all its trials: print the findings again and do not start Ray."""
    store.recover()
    store.refresh(force=True)
    ended = _finished(store)
    console.print(f"\nAll {ended} trials have ended; write e.g. --trials {2 * ended} for more.", markup=False)
    trials = _views(store)
    print_findings(plan, trials, 0.0, store.ledger.used(), console)
    return DONE if any(t.state == "COMPLETE" for t in trials) else FAILED


def _search(
    ended: _Ended, store: StudyStore, stop: StopRequest, stack: ExitStack, console: Console, interrupts: Interrupts
) -> None:
    """The part of a search that needs Ray. Fills in ``ended``."""
    plan = ended.plan
    if store.ledger.has_spent(plan.budget_gpu_hours):
        stop.set(BUDGET_SPENT)
        store.recover()
        return
    store.ledger.hold(devices_held(plan.machine, plan.share) if plan.address == "local" else 0)
    console.print("Starting Ray …" if plan.address == "local" else f"Joining Ray at {plan.address} …", style="dim")
    connection = stack.enter_context(_session(plan, store))
    interrupts.take_again()  # starting Ray has replaced the handler for SIGTERM
    if not connection.local:
        plan = ended.plan = plan_for_cluster(plan, cluster_machine())
        print_machine(plan, console)
        store.describe(plan.to_dict())
    _say_dashboard(connection, console)
    nodes = None if connection.local else living_nodes
    on_gpus = plan.machine.gpus > 0
    ended.capacity = Capacity(plan.share, plan.trials, on_gpus, nodes, lambda line: ended.bridge.say(line))
    store.ledger.hold(ended.capacity.devices(plan.machine))
    observers = _recorders(ended, store, stack)
    store.study.pruner = make_pruner(plan.scheduler, plan.max_epochs, plan.seed)
    ray_storage = _ray_storage(plan, connection)
    bridge = ended.bridge = _make_bridge(ended, store, ray_storage, observers, stop)
    bridge.recover()
    if plan.sampler in MODEL_BASED:  # the designs random and qmc stay as they are
        for point in plan.space.initial_points(plan.workload, plan.overrides):
            store.study.enqueue_trial(point, skip_if_exists=True)
    finished = {view.number: view for view in ended_trials(_views(store))}
    if bridge.finished < plan.trials and not stop.is_set():
        log = LineLog(store.log_folder / "driver.log")
        columns = columns_of(plan.space, plan.workload, plan.overrides, plan.ranges)
        lines = PlainLines(SearchProgress(plan.trials, plan.share.concurrency, finished, columns), log)
        with make_display(SearchProgress(plan.trials, plan.share.concurrency, finished, columns)) as display:
            watch = _watch_over(ended, store, connection, [lines, display], stop)
            observers += [watch, lines, display]
            with interrupts.shown_by(display), watch.running():
                _fit(ended, store, stop, watch, ray_storage)


def _recorders(ended: _Ended, store: StudyStore, stack: ExitStack) -> list[Observer]:
    """The observers that record the search elsewhere: in Weights & Biases, or beside a study that is in a database."""
    plan = ended.plan
    observers: list[Observer] = []
    if plan.wandb != "disabled":
        ended.wandb = wandb_log.WandbObserver(plan.wandb, plan.study, plan.folder / "wandb")
        stack.callback(ended.wandb.close)
        observers.append(ended.wandb)
    if plan.storage is not None:
        observers.append(ProgressFileWriter(plan.folder, _views(store)))
    return observers


def _watch_over(
    ended: _Ended, store: StudyStore, connection: RayConnection, tellers: list[Any], stop: StopRequest
) -> SearchWatch:
    """The watch over ``ended.bridge``. If the search can never continue, it ends the search, or else the process."""

    def last_resort() -> None:
        if not ended.in_order:
            ended.bridge.release()
            say_from_handler(f"\nerror: {ended.bridge.fatal}. Continue with:\n  {resume_command(ended.plan)}\n")

    def give_up(reason: str) -> None:
        ended.bridge.fatal = reason
        stop.set(reason)
        if watch.lost:
            end_process_unless_done(last_resort)

    watch = make_watch(
        ended.bridge,
        lambda number: progress_file(store.trial_log(number)),
        tellers,
        give_up,
        own_ray=connection.local,
        address=connection.address,
    )
    return watch


def _make_bridge(
    ended: _Ended, store: StudyStore, ray_storage: Path, observers: list[Observer], stop: StopRequest
) -> OptunaBridge:
    from bigbatch.tune.trials.bridge import OptunaBridge

    plan, capacity = ended.plan, ended.capacity
    searched = {name: found.prior for name, found in plan.ranges.items() if found.kind != "derived"}

    def make_task(number: int, config: TrainConfig) -> TrialTask:
        return TrialTask(
            name=f"trial-{number:04d}",
            config=config,
            workers=plan.share.workers,
            worker_resources=capacity.bundle(number),
            restarts=plan.restarts,
            ray_storage=ray_storage,
            checkpoint_dir=store.checkpoint_folder(number),
            checkpoint_every_s=CHECKPOINT_EVERY_S,
            log_file=store.trial_log(number),
            stop_file=store.stop_file,
            stage_folder=plan.options.stage,
        )

    def lost() -> bool:
        if reason := capacity.lost():
            stop.set(reason)
        return reason is not None

    bridge = OptunaBridge(
        store,
        plan.space,
        plan.workload,
        overrides=plan.overrides,
        seed=plan.seed,
        trials=plan.trials,
        room=capacity.room,
        make_sampler=sampler_factory(plan.sampler, plan.seed, plan.trials, searched, searched),
        workers=plan.share.workers,
        make_task=make_task,
        observers=observers,
        ending=stop.is_set,
        may_start=lambda: not stop.is_set() and ended.deadline.allows_a_trial() and not lost(),
    )
    ended.deadline = Deadline(end_of_allocation(), bridge.first_result_s)
    return bridge


def _fit(ended: _Ended, store: StudyStore, stop: StopRequest, watch: SearchWatch, ray_storage: Path) -> None:
    """Let Ray Tune run until enough trials have ended or something stops the search."""
    # Only now that Ray runs: this loads Ray's core, which reads the token's place once, when it is loaded.
    from bigbatch.tune.trials.tuner import run_tuner

    over = _deadline(ended, store, stop)
    run_tuner(ended.plan, ended.bridge, ended.capacity, store, watch, over, ray_storage)


def _deadline(ended: _Ended, store: StudyStore, stop: StopRequest) -> Callable[[], bool]:
    """A function that Tune calls often. It says whether the search should end now."""
    plan, ledger = ended.plan, store.ledger
    ends_at = time.monotonic() + plan.time_budget_s if plan.time_budget_s else None

    def over() -> bool:
        if ends_at is not None and time.monotonic() >= ends_at:
            stop.set("the time budget is spent")
        ledger.hold(ended.capacity.devices(plan.machine))
        if ledger.has_spent(plan.budget_gpu_hours):
            stop.set(BUDGET_SPENT)
        if store.disk.full:
            stop.set(store.disk.full)
        return stop.is_set()

    return over


def _views(store: StudyStore) -> list[TrialView]:
    return trial_views(store.study.get_trials(deepcopy=False))


def _end(ended: _Ended, trials: list[TrialView], stop: StopRequest, console: Console, store: StudyStore) -> int:
    """Print the last lines. Returns the exit code."""
    plan, wandb = ended.plan, ended.wandb
    if store.disk.full:
        print_disk_full(plan, store.disk.full)
        return 128 + stop.signal if stop.signal is not None else FAILED
    fatal = ended.bridge.fatal if ended.bridge is not None else None
    say = partial(console.print, markup=False, soft_wrap=True)
    if wandb is not None and wandb.sync_command():
        say(f"\nSend the W&B runs from a machine with a network:\n  {wandb.sync_command()}")
    if fatal:
        print(f"error: {fatal}. See {quoted_path(plan.folder / 'logs')}.", file=sys.stderr)
    refused = ended.deadline.refused or (ended.capacity is not None and ended.capacity.lost())
    unfinished = len(ended_trials(trials)) < plan.trials
    cut_short, stopped = refused and unfinished, stop.is_set() and unfinished
    if stopped or cut_short:
        command = resume_command(plan, store.ledger.held_s / 3600 if stop.reason == BUDGET_SPENT else None)
        why = "" if fatal else f"Stopped: {stop.reason or END_OF_ALLOCATION}. "
        say(f"\n{why}Everything is saved; continue with:\n  {command}")
    if stop.signal is not None and unfinished:  # else the signal came while the findings were printed
        return 128 + stop.signal
    if cut_short and not fatal:
        return TRY_AGAIN
    complete = any(t.state == "COMPLETE" for t in trials)
    if not complete:
        print(f"error: no trial ran to its end. The logs: {quoted_path(plan.folder / 'logs')}", file=sys.stderr)
    return DONE if complete and not fatal else FAILED


def _open_store(plan: SearchPlan, console: Console) -> StudyStore:
    if plan.resume:
        store = StudyStore.open(plan.folder, plan.storage)
        _check_waiting(plan, store)
        if plan.options.retry_failed:
            say_retries(retry.retry_failed(store), console)
        return store
    return StudyStore.create(plan.folder, plan.study, plan.to_dict(), plan.storage)


def _check_waiting(plan: SearchPlan, store: StudyStore) -> None:
    """Raise ConfigError if an interrupted trial does not suit the number of workers of this resume."""
    trials = store.study.get_trials(deepcopy=False)
    failed = retry.trials_to_retry(trials) if plan.options.retry_failed else []
    for trial in [*(t for t in trials if not t.state.is_finished()), *failed]:
        if "config" in trial.user_attrs:
            try:
                TrainConfig.from_dict(trial.user_attrs["config"]).batch.split(plan.workers)
            except ConfigError as error:
                store.close()
                raise ConfigError(
                    f"--workers must suit the interrupted trials; got {plan.workers}. Trial {trial.number}: {error}"
                ) from None


def _session(plan: SearchPlan, store: StudyStore) -> LocalRay | JoinedRay:
    log = store.log_folder / "ray.log"
    if plan.address == "local":
        return LocalRay(plan.machine.cpus, plan.machine.gpus, log)
    return JoinedRay(plan.address, log)


def _ray_storage(plan: SearchPlan, connection: RayConnection) -> Path:
    """The folder for Ray's own files: beside its sockets for a private Ray, else one that every node sees."""
    if connection.local and connection.token_path:
        return Path(connection.token_path).parent / "tune"
    return plan.folder / ".ray"


def _say_dashboard(connection: RayConnection, console: Console) -> None:
    if connection.dashboard_url:
        token = f" (token in {connection.token_path})" if connection.token_path else ""
        console.print(f"Ray dashboard: {connection.dashboard_url}{token}\n", markup=False, soft_wrap=True)
