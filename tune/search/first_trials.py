"""What a search does before its strategy proposes any trial: range tests (``--find-lr``), and the trials that wait.

The range tests run on the resources of a trial's worker.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from pathlib import Path

import optuna
from rich.console import Console

from bigbatch.train_loop.config import TrainConfig
from bigbatch.train_loop.data.sets.scan import FolderScan
from bigbatch.train_loop.launch.lr_find import default_range, lr_find, write_range_test
from bigbatch.train_loop.launch.ray_worker import use_assigned_cores
from bigbatch.tune.budget.budget import BUDGET_SPENT, TIME_SPENT
from bigbatch.tune.console.wrapped import say
from bigbatch.tune.models.names import LEARNING
from bigbatch.tune.plan.enqueued import parameters_of_trial
from bigbatch.tune.plan.prior import plan_with_tests, range_test_file, wanted_tests
from bigbatch.tune.plan.search_plan import SearchPlan
from bigbatch.tune.plan.warm_start import best_known
from bigbatch.tune.runs.knowledge import LABEL
from bigbatch.tune.runs.run import ENQUEUED_ATTR, GIVEN_ATTR
from bigbatch.tune.search.interrupts import StopRequest
from bigbatch.tune.search.running import SearchRun
from bigbatch.tune.storage.store import StudyStore

STEPS = 100
POLL_S = 0.5


def find_rates(run: SearchRun, store: StudyStore, stop: StopRequest, console: Console) -> bool:
    """Make the range tests that the study lacks, and change ``run.plan`` to search around their rates.

    A study that has trials keeps its prior. A test that fails is said, and leaves its optimizer's rates as they are.
    Returns False if the search was asked to end before the tests had ended; ``--resume`` makes the others.
    """
    plan = run.plan
    tests = wanted_tests(plan)
    if not tests or store.study.get_trials(deepcopy=False):
        return True
    missing = {name: config for name, config in tests.items() if not range_test_file(store.folder, name).exists()}
    if missing:
        say(console, f"Range tests before the first trial: {', '.join(missing)} …", style="dim")
        _run_tests(run, store, stop, console, missing)
        if stop.is_set():
            return False
    plan = plan_with_tests(plan, list(tests))
    for name in tests:
        factor = plan.workload.lr_factors.get(name)
        text = "no rate was found; it is searched as without a test" if factor is None else f"× {factor:.3g}"
        say(console, text, f"{f'prior[{name}]':24} ")
    store.describe(plan.to_dict())
    run.plan = plan
    return True


def _run_tests(
    run: SearchRun,
    store: StudyStore,
    stop: StopRequest,
    console: Console,
    tests: Mapping[str, TrainConfig],
) -> None:
    """Run the tests, as many at a time as fit, until all have ended or the search should stop."""
    import ray

    plan, bundle = run.plan, dict(run.plan.share.worker_resources)
    if "GPU" in bundle:  # also where trials share it: a test has no other number to fall back to
        bundle["GPU"] = 1.0
    task = ray.remote(
        num_cpus=bundle.pop("CPU", 0), num_gpus=bundle.pop("GPU", 0), memory=bundle.pop("memory", None),
        resources=bundle or None, max_retries=1,
    )(run_range_test)  # fmt: skip
    waiting = {
        task.remote(config.to_dict(), str(range_test_file(store.folder, name)), plan.scan): name
        for name, config in tests.items()
    }
    owned = run.capacity.devices(plan.machine)
    while waiting:
        # On a cluster that the search does not own, it holds what its tests use.
        store.ledger.hold(
            owned if owned is not None else min(len(waiting), plan.machine.gpus or plan.share.concurrency)
        )
        ended, _ = ray.wait(list(waiting), num_returns=1, timeout=POLL_S)
        for reference in ended:
            name = waiting.pop(reference)
            try:
                ray.get(reference)
            except Exception as error:  # Ray raises the test's own errors, and its own
                reason = (str(error).strip().splitlines() or ["no message"])[-1]
                say(console, f"The range test of {name} failed: {reason}")
        if store.ledger.has_spent(plan.budget_gpu_hours):  # the search's own budget is made when the rates are known
            stop.set(BUDGET_SPENT)
        if plan.time_budget_s is not None and time.monotonic() - run.started >= plan.time_budget_s:
            stop.set(TIME_SPENT)
        if stop.is_set():
            for reference in waiting:
                with contextlib.suppress(ray.exceptions.RayError):
                    ray.cancel(reference, force=True)
            break
    store.ledger.hold(owned)


def run_range_test(config: dict[str, object], file: str, scan: FolderScan | None) -> None:
    """A Ray task: the range test of a configuration. Writes its result to ``file``."""
    use_assigned_cores()
    tested = TrainConfig.from_dict(config)
    first, last = default_range(tested.optimizer)
    write_range_test(Path(file), tested, lr_find(tested, first=first, last=last, steps=STEPS, scan=scan))


def enqueue_first_trials(plan: SearchPlan, study: optuna.Study) -> None:
    """Let the best of ``--warm-start`` wait in the study, then ``--enqueue``, then the space's initial points.

    What is in the study already is not repeated, so this also completes what a kill interrupted.
    """
    there = {trial.user_attrs.get(ENQUEUED_ATTR) for trial in study.get_trials(deepcopy=False)}
    for found, params in best_known(plan):
        if LABEL + found not in there:
            study.enqueue_trial(params, user_attrs={ENQUEUED_ATTR: LABEL + found})
    for trial in plan.enqueued:
        if trial.label not in there:
            config = trial.config.replace_keys({"model.name": plan.model})  # a joined cluster may have decided it
            attrs = {ENQUEUED_ATTR: trial.label, GIVEN_ATTR: config.to_dict()}
            study.enqueue_trial(parameters_of_trial(trial, plan), user_attrs=attrs)
    if plan.strategy in LEARNING:  # the designs random and qmc stay as they are
        for point in plan.space.initial_points(plan.workload, plan.overrides):
            study.enqueue_trial(point, skip_if_exists=True)
