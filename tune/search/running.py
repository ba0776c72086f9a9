"""The parts of a running search: bridge, recorders, watch, and what ends it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bigbatch.train_loop.config import TrainConfig
from bigbatch.train_loop.launch.trial_task import TrialTask
from bigbatch.tune.budget.budget import Budget
from bigbatch.tune.budget.pace import Pace
from bigbatch.tune.export import wandb_log
from bigbatch.tune.models.protocol import SearchFacts, Strategy, dimensions_of
from bigbatch.tune.plan.own_code import reported_names
from bigbatch.tune.plan.search_plan import SearchPlan
from bigbatch.tune.runs.answer import answer_of
from bigbatch.tune.runs.confirmation import missing_confirmations
from bigbatch.tune.runs.observer import Observer
from bigbatch.tune.runs.run import count_ended, has_enough
from bigbatch.tune.search.budgeting import confirmation_facts, left_to_confirm, reserve_of
from bigbatch.tune.search.interrupts import StopRequest
from bigbatch.tune.storage.frontier_file import frontier_json
from bigbatch.tune.storage.store import StudyStore
from bigbatch.tune.strategies import make_strategy
from bigbatch.tune.trials.admission import Admission, Deadline, end_of_allocation
from bigbatch.tune.trials.configurations import ConfirmationQueue, MissingConfirmations, SpaceConfigurations
from bigbatch.tune.trials.live_trial import SharedGpus

if TYPE_CHECKING:  # it imports Ray
    from bigbatch.tune.trials.bridge import OptunaBridge

CHECKPOINT_EVERY_S = 20.0
"""A killed search loses at most this many seconds of training, or one step if steps take longer."""


@dataclass
class SearchRun:
    """The facts that the last lines of a search need."""

    plan: SearchPlan
    """The plan that was carried out."""
    started: float = field(default_factory=time.monotonic)
    """When the search began, by the monotonic clock."""
    bridge: Any = None
    wandb: Any = None
    capacity: Any = None
    budget: Budget | None = None
    deadline: Deadline = field(default_factory=lambda: Deadline(None, lambda: None))


def facts_of(plan: SearchPlan) -> SearchFacts:
    """What a strategy knows about a plan."""
    return SearchFacts(
        dimensions=dimensions_of(plan.ranges),
        trials=plan.trials,
        max_epochs=plan.max_epochs,
        slots=plan.share.concurrency,
        seed=plan.seed,
        objective=plan.objectives.first,
        frontier=plan.frontier.searched if plan.frontier else None,
        tolerance=plan.tolerance,
        knowledge=plan.warm_start,
        open_ended=plan.open_ended,
    )


def configurations_of(plan: SearchPlan) -> SpaceConfigurations:
    """What makes the configurations of a plan's trials."""
    return SpaceConfigurations(plan.space, plan.workload, plan.overrides, plan.seed, plan.share.workers)


def strategy_of(plan: SearchPlan) -> Strategy:
    """The strategy of a plan."""
    return make_strategy(plan.strategy, plan.stopping, facts_of(plan))


def missing_in(plan: SearchPlan) -> MissingConfirmations | None:
    """Which confirmations a study of this plan lacks; None if none are asked for."""
    facts = confirmation_facts(plan)
    if facts is None:
        return None
    return lambda trials: missing_confirmations(trials, facts)


def is_complete(plan: SearchPlan, store: StudyStore) -> bool:
    """Whether the study has all its trials, its strategy continues none of them, and none is to be confirmed."""
    ended = count_ended(store.study.get_trials(deepcopy=False))
    if not has_enough(store.study, ended, plan.most_trials) or not strategy_of(plan).is_over(store.study):
        return False
    return not ConfirmationQueue(store.study, missing_in(plan)).left()


def search_answer(run: SearchRun, store: StudyStore) -> tuple[Mapping[str, object], tuple[int, float]]:
    """What the search has found so far: the content of frontier.json, empty where there is none; and confirmations that
    are still to be made, with the device hours that they take."""
    plan, trials = run.plan, store.study.get_trials(deepcopy=False)
    answer = answer_of(trials, plan.to_dict(), plan.objectives)
    pace = run.budget.pace if run.budget is not None else None
    unconfirmed = left_to_confirm(plan, store, pace) if plan.confirm.best else (0, 0.0)
    return frontier_json(answer) if answer else {}, unconfirmed


def recorders(run: SearchRun, store: StudyStore, stack: ExitStack) -> list[Observer]:
    """The observers that record the search elsewhere: in Weights & Biases."""
    plan = run.plan
    observers: list[Observer] = []
    if plan.wandb != "disabled":
        run.wandb = wandb_log.WandbObserver(plan.wandb, store.study.study_name, plan.folder, plan.objectives)
        stack.callback(run.wandb.close)
        observers.append(run.wandb)
    return observers


def make_bridge(
    run: SearchRun,
    store: StudyStore,
    ray_storage: Path,
    observers: list[Observer],
    stop: StopRequest,
    sharing: SharedGpus,
) -> OptunaBridge:
    from bigbatch.tune.trials.bridge import OptunaBridge

    plan, capacity = run.plan, run.capacity

    def lost() -> bool:
        if reason := capacity.lost():
            stop.set(reason)
        return reason is not None

    bridge = OptunaBridge(
        store,
        strategy_of(plan),
        configurations_of(plan),
        objectives=plan.objectives,
        trials=plan.most_trials,
        workers=plan.share.workers,
        observers=observers,
        room=capacity.room,
        make_task=partial(_task, run, store, ray_storage),
        ending=stop.is_set,
        admission=Admission(run.budget, plan.share.workers, reserve_of(plan), sharing),
        sharing=sharing,
        cluster=capacity,
        confirm=missing_in(plan),
        may_start=lambda: not stop.is_set() and run.deadline.allows_a_trial() and not lost(),
    )
    pace = run.budget.pace if run.budget is not None else Pace()
    run.deadline = Deadline(end_of_allocation(), lambda: pace.first_result_s)
    return bridge


def _task(run: SearchRun, store: StudyStore, ray_storage: Path, number: int, config: TrainConfig) -> TrialTask:
    """What the processes of trial ``number`` are handed."""
    plan = run.plan
    return TrialTask(
        name=f"trial-{number:04d}",
        config=config,
        workers=plan.share.workers,
        worker_resources=run.capacity.bundle,
        restarts=plan.restarts,
        ray_storage=ray_storage,
        checkpoint_dir=store.checkpoint_folder(number),
        checkpoint_every_s=CHECKPOINT_EVERY_S,
        log_file=store.trial_log(number),
        stop_file=store.stop_file,
        stage_folder=plan.options.stage,
        reported=reported_names(plan.objectives) if plan.trainable else (),
        content="" if plan.scan else plan.data.content,  # of an image folder the trials are handed the list
    )


def over_function(run: SearchRun, store: StudyStore, stop: StopRequest) -> Callable[[], bool]:
    """A function that Tune calls often. It says whether the search should end now."""
    plan, ledger = run.plan, store.ledger

    def over() -> bool:
        # Nodes may have come or gone since the last round.
        ledger.hold(run.capacity.devices(plan.machine))
        if run.budget is not None and run.budget.first_start_s is not None:
            ledger.note(trial_start_s=run.budget.first_start_s)
        if run.budget is not None and (spent := run.budget.spent()):
            stop.set(spent)
        if store.disk.full:
            stop.set(store.disk.full)
        if stop.is_set():
            ledger.ending()
        return stop.is_set()

    return over
