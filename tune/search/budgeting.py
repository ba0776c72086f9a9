"""The budget of a running search: what it may use, whether that lasts for an epoch, and what more would bring."""

from __future__ import annotations

import math
import time

from bigbatch.train_loop.config import ConfigError
from bigbatch.tune.plan.machine import devices_held
from bigbatch.tune.plan.search_plan import SearchPlan
from bigbatch.tune.search.capacity import Capacity
from bigbatch.tune.study.budget import Budget, Limits
from bigbatch.tune.study.forecast import forecast_words, more_hours
from bigbatch.tune.study.objective import Objective
from bigbatch.tune.study.pace import Pace
from bigbatch.tune.study.store import StudyStore
from bigbatch.tune.study.target import TimeToTarget


def make_budget(plan: SearchPlan, store: StudyStore, capacity: Capacity) -> Budget:
    """The budget of a search whose cluster is known. The time budget begins now."""
    hours = plan.budget_gpu_hours

    def devices() -> float | None:
        """Those of the study's other drivers are billed to the same budget."""
        here = capacity.devices(plan.machine)
        return None if here is None else here + store.ledger.devices_elsewhere

    return Budget(
        Limits(None if hours is None else hours * 3600, plan.time_budget_s),
        Pace(store.study.get_trials(deepcopy=False)),
        held_s=lambda: store.ledger.held_s,
        devices=devices,
        clock=time.monotonic,
        ending_s=store.ledger.last_ending_s,
    )


def check_budget_lasts(plan: SearchPlan, store: StudyStore) -> None:
    """Raise ConfigError, and close the study, if the whole budget is below one epoch that the study has measured."""
    try:
        _check_budget_lasts(plan, store)
    except ConfigError:
        store.close()
        raise


def _check_budget_lasts(plan: SearchPlan, store: StudyStore) -> None:
    shortest_s = Pace(store.study.get_trials(deepcopy=False)).shortest_s
    if shortest_s is None:
        return
    devices = devices_at_least(plan)
    least_h = shortest_s * devices / 3600
    if plan.budget_gpu_hours is not None and plan.budget_gpu_hours < least_h:
        raise ConfigError(
            f"--budget-gpu-hours must last for an epoch; got {plan.budget_gpu_hours:g}, and the shortest epoch of this "
            f"study took {shortest_s:.2g} s of {devices} device{'s' * (devices != 1)} = {least_h:.2g} hours. "
            f"Write {more_than(store.ledger.held_s / 3600 + 10 * least_h)} or more: the study has used "
            f"{store.ledger.held_s / 3600:.3g}."
        )
    if plan.time_budget_s is not None and plan.time_budget_s < shortest_s:
        raise ConfigError(
            f"--time-budget must last for an epoch; got {plan.time_budget_s:g} s, and the shortest epoch of this study "
            f"took {shortest_s:.2g} s. Write e.g. --time-budget {max(1, round(10 * shortest_s))}s."
        )


def refused_at_once(plan: SearchPlan, store: StudyStore) -> str | None:
    """Why the rest of the budget is not worth starting Ray for; None if an epoch fits into it."""
    if plan.budget_gpu_hours is None:
        return None
    budget = Budget(
        Limits(plan.budget_gpu_hours * 3600),
        Pace(store.study.get_trials(deepcopy=False)),
        held_s=lambda: store.ledger.held_s,
        devices=lambda: devices_at_least(plan),
        clock=time.monotonic,
        ending_s=store.ledger.last_ending_s,
    )
    return None if budget.admits_any() else budget.refused


def devices_at_least(plan: SearchPlan) -> int:
    """The devices that the search will hold, as far as they are known before its cluster is."""
    known = plan.address == "local" and plan.machine.nodes
    return max(devices_held(plan.machine, plan.share) if known else 0, plan.workers)


def more_than(hours: float) -> str:
    """``hours`` in two digits, rounded up."""
    return f"{float(f'{1.06 * hours:.1e}'):g}"


def what_more_would_bring(plan: SearchPlan, store: StudyStore, objective: Objective) -> str:
    """A sentence for the end of a search with a budget; empty without one, and for a time to a target.

    A trial that missed its target has no time, so such values have no common scale.
    """
    if (plan.budget_gpu_hours is None and plan.time_budget_s is None) or isinstance(objective, TimeToTarget):
        return ""
    if plan.objectives.several or isinstance(objective, TimeToTarget) or math.isnan(objective.worst):
        return ""  # the forecast is made from the values of one metric, and one of a diverged trial
    used_h = store.ledger.held_s / 3600
    hours = more_hours(used_h if plan.budget_gpu_hours is None else plan.budget_gpu_hours)
    unit = "GPU hours" if plan.machine.gpus else "worker hours"
    return forecast_words(store.study.get_trials(deepcopy=False), objective, used_h, hours, unit)
