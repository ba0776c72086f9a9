"""The budget of a running search: what it may use, whether that lasts for an epoch, what is kept for confirmations."""

from __future__ import annotations

import math
import time
from dataclasses import replace

from bigbatch.train_loop.config import ConfigError
from bigbatch.train_loop.config.words import amount
from bigbatch.tune.budget.budget import Budget, Limits
from bigbatch.tune.budget.confirm_reserve import ConfirmationReserve
from bigbatch.tune.budget.ledger import owns_cluster
from bigbatch.tune.budget.pace import Pace, SessionTimes, read_session_times
from bigbatch.tune.plan.machine import devices_held
from bigbatch.tune.plan.search_plan import SearchPlan
from bigbatch.tune.runs.confirm_rule import AFFORDABLE_SHARE
from bigbatch.tune.runs.confirmation import ConfirmationFacts
from bigbatch.tune.runs.frontier import frontier_facts
from bigbatch.tune.search.capacity import Capacity
from bigbatch.tune.storage.store import StudyStore

MARGIN = 1.1
"""An error advises this multiple of the least budget: the next start may take a little longer."""


def make_budget(plan: SearchPlan, store: StudyStore, capacity: Capacity, began: float) -> Budget:
    """The budget of a search whose cluster is known. ``began``: when the session did, by the monotonic clock."""
    hours, times = plan.budget_gpu_hours, read_session_times(plan.folder)

    def devices() -> float | None:
        """With those of the study's other drivers, which are billed to the same budget."""
        here = capacity.devices(plan.machine)
        return None if here is None else here + store.ledger.devices_elsewhere

    return Budget(
        Limits(None if hours is None else hours * 3600, plan.time_budget_s),
        Pace(store.study.get_trials(deepcopy=False), times.trial_start_s),
        held_s=lambda: store.ledger.held_s,
        devices=devices,
        clock=time.monotonic,
        ending_s=times.ending_s,
        began=began,
    )


def _times_of(plan: SearchPlan) -> SessionTimes:
    """How long the parts of a session take in the plan's study. A Ray that already runs needs no start."""
    times = read_session_times(plan.folder)
    return times if plan.address == "local" else replace(times, ray_start_s=0.0)


def check_budget(plan: SearchPlan, store: StudyStore | None = None) -> None:
    """Raise ConfigError if the whole budget is below the start of a search, one epoch and the end.

    Args:
        store: the study that is resumed, whose shortest epoch is known. None: nothing has started yet.
    """
    times, devices = _times_of(plan), devices_at_least(plan)
    epoch_s = (Pace(store.study.get_trials(deepcopy=False)).shortest_s or 0.0) if store else 0.0
    used_h = store.ledger.held_s / 3600 if store else 0.0
    least_s = times.ray_start_s + times.trial_start_s + epoch_s + times.ending_s
    # On a cluster of another's only trials are counted, not Ray's start and end (docs/decisions/029).
    billed_s = least_s if owns_cluster(local=plan.address == "local") else times.trial_start_s + epoch_s
    least_h, unit = billed_s * devices / 3600, "GPU hours" if plan.machine.gpus else "worker hours"
    words = f"the start takes about {times.ray_start_s + times.trial_start_s:.0f} s, an epoch {epoch_s:.2g} s and the "
    words += f"end {times.ending_s:.0f} s, on {amount(devices, 'device')}"
    if plan.budget_gpu_hours is not None and plan.budget_gpu_hours < least_h:
        raise ConfigError(
            f"at least {more_than(least_h)} {unit} are needed: {words}; got --budget-gpu-hours "
            f"{plan.budget_gpu_hours:g}. Write --budget-gpu-hours {more_than(used_h + MARGIN * least_h)} or more."
        )
    if plan.time_budget_s is not None and plan.time_budget_s < least_s:
        raise ConfigError(
            f"at least {math.ceil(least_s)} s are needed: {words}; got --time-budget {plan.time_budget_s:g}s. Write "
            f"--time-budget {math.ceil(MARGIN * least_s)}s or more."
        )


def refused_at_once(plan: SearchPlan, store: StudyStore) -> str | None:
    """Why the rest of the budget is not worth starting Ray for; None if an epoch fits into it."""
    if plan.budget_gpu_hours is None:
        return None
    times = _times_of(plan)
    budget = Budget(
        Limits(plan.budget_gpu_hours * 3600),
        # Ray does not run yet, so its start comes before that of a trial.
        Pace(store.study.get_trials(deepcopy=False), times.ray_start_s + times.trial_start_s),
        held_s=lambda: store.ledger.held_s,
        devices=lambda: devices_at_least(plan),
        clock=time.monotonic,
        ending_s=times.ending_s,
    )
    return None if budget.admits_any() else budget.refused


def devices_at_least(plan: SearchPlan) -> int:
    """The devices that the search will hold, as far as they are known before its cluster is."""
    known = plan.address == "local" and plan.machine.nodes
    return max(devices_held(plan.machine, plan.share) if known else 0, plan.workers)


def more_than(hours: float) -> str:
    """``hours`` in two digits, rounded up."""
    if hours <= 0:
        return "0"
    digit = math.floor(math.log10(hours)) - 1
    return f"{float(f'{math.ceil(hours / 10**digit)}e{digit}'):g}"


def confirmation_facts(plan: SearchPlan) -> ConfirmationFacts | None:
    """What decides which trials a search of this plan confirms; None if it confirms none."""
    if not plan.confirm.best:
        return None
    budgets_s = []
    if plan.budget_gpu_hours is not None:
        budgets_s.append(plan.budget_gpu_hours * 3600)
    if plan.time_budget_s is not None:
        budgets_s.append(plan.time_budget_s * plan.share.concurrency * plan.share.devices)
    return ConfirmationFacts(
        plan.confirm,
        plan.seed,
        frontier_facts(plan.to_dict(), plan.objectives.first),
        AFFORDABLE_SHARE * min(budgets_s) if budgets_s else None,
    )


def reserve_of(plan: SearchPlan) -> ConfirmationReserve | None:
    """What is kept back of the plan's budget for confirmations; None without any."""
    facts = confirmation_facts(plan)
    return None if facts is None else ConfirmationReserve(facts)


def left_to_confirm(plan: SearchPlan, store: StudyStore, pace: Pace | None = None) -> tuple[int, float]:
    """How many confirmations of the finished trials are still to be made, and the device hours that they take.

    Args:
        pace: what this session has measured. The study alone does not know how long trials start.
    """
    reserve, trials = reserve_of(plan), store.study.get_trials(deepcopy=False)
    if reserve is None:
        return 0, 0.0
    pace, runs = pace or Pace(trials), reserve.of_finished(trials)
    return len(runs), sum(map(pace.run_s, runs)) * plan.share.devices / 3600
