"""The budget of a running search: what it may use, whether that lasts for a first epoch, and what more would bring.

Of confirmations: what is kept back for them, and what is said where that is too little.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from optuna.trial import FrozenTrial

from bigbatch.train_loop.config import ConfigError
from bigbatch.tune.budget.budget import Budget, Limits
from bigbatch.tune.budget.confirm_reserve import ConfirmationReserve
from bigbatch.tune.budget.forecast import forecast_words, more_hours
from bigbatch.tune.budget.ledger import owns_cluster
from bigbatch.tune.budget.pace import Pace, SessionTimes, pace_key, read_session_times
from bigbatch.tune.plan.machine import devices_held
from bigbatch.tune.plan.search_plan import SearchPlan
from bigbatch.tune.runs.confirm_rule import AFFORDABLE_SHARE
from bigbatch.tune.runs.confirmation import ConfirmationFacts
from bigbatch.tune.runs.frontier import frontier_facts
from bigbatch.tune.runs.objective import Objective, TimeToTarget
from bigbatch.tune.runs.observer import TrialView
from bigbatch.tune.runs.run import epoch_records, planned_epochs
from bigbatch.tune.runs.tables import epoch_s
from bigbatch.tune.search.capacity import Capacity
from bigbatch.tune.storage.description import read_description
from bigbatch.tune.storage.store import StudyStore

MARGIN = 1.1
"""What is advised is this multiple of the least: the next start may take a little longer."""


def make_budget(plan: SearchPlan, store: StudyStore, capacity: Capacity, began: float) -> Budget:
    """The budget of a search whose cluster is known. ``began``: when the session did, by the monotonic clock."""
    hours, times = plan.budget_gpu_hours, read_session_times(plan.folder)

    def devices() -> float | None:
        """Those of the study's other drivers are billed to the same budget."""
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


# What it must at least last for


def check_budget_starts(plan: SearchPlan) -> None:
    """Raise ConfigError if the whole budget is below the start of a search and its end. Nothing has started yet."""
    _check_lasts(plan, _times_of(plan), devices_at_least(plan))


def check_budget_lasts(plan: SearchPlan, store: StudyStore) -> None:
    """As ``check_budget_starts``, with the shortest epoch of the study. Closes the study if it raises."""
    shortest_s = Pace(store.study.get_trials(deepcopy=False)).shortest_s or 0.0
    try:
        _check_lasts(plan, _times_of(plan), devices_at_least(plan), shortest_s, store.ledger.held_s)
    except ConfigError:
        store.close()
        raise


def check_rest_lasts(plan: SearchPlan, store: StudyStore, capacity: Capacity, elapsed_s: float) -> None:
    """Raise ConfigError if the start of Ray has left a new search no room for its first trial.

    A study that goes on is not refused for what it has used before: it ends in order.
    """
    if plan.resume:
        return
    devices = capacity.devices(plan.machine)
    started_s = store.ledger.held_s / devices if devices else elapsed_s
    _check_lasts(plan, replace(_times_of(plan), ray_start_s=started_s), devices or plan.workers)


def _times_of(plan: SearchPlan) -> SessionTimes:
    """What the sessions of the plan's study take. A Ray that runs already has its start behind it."""
    times = read_session_times(plan.folder)
    return times if plan.address == "local" else replace(times, ray_start_s=0.0)


def _check_lasts(
    plan: SearchPlan, times: SessionTimes, devices: int, epoch_s: float = 0.0, used_s: float = 0.0
) -> None:
    """Raise ConfigError if the whole budget is below the start of a search, one epoch and the end.

    Args:
        used_s: device seconds that the study has used before.
    """
    start_s = times.ray_start_s + times.trial_start_s
    least_s = start_s + epoch_s + times.ending_s
    # On a cluster of another's only trials are counted, not Ray's start and end (docs/decisions/029).
    billed_s = least_s if owns_cluster(local=plan.address == "local") else times.trial_start_s + epoch_s
    first = f", the shortest epoch of this study {epoch_s:.2g} s" if epoch_s else ""
    words = (
        f"starting {'Ray and ' if times.ray_start_s else ''}the first trial takes about {start_s:.0f} s{first} and the "
        f"end {times.ending_s:.0f} s, on {devices} device{'s' * (devices != 1)}"
    )
    least_h = billed_s * devices / 3600
    if plan.budget_gpu_hours is not None and plan.budget_gpu_hours < least_h:
        raise ConfigError(
            f"at least {more_than(least_h)} {budget_unit(plan)} are needed: {words}; got --budget-gpu-hours "
            f"{plan.budget_gpu_hours:g}. Write --budget-gpu-hours {more_than(MARGIN * (used_s / 3600 + least_h))} or "
            f"more{_used_in_words(used_s)}."
        )
    if plan.time_budget_s is not None and plan.time_budget_s < least_s:
        raise ConfigError(
            f"at least {math.ceil(least_s)} s are needed: {words}; got --time-budget {plan.time_budget_s:g}s. Write "
            f"--time-budget {math.ceil(MARGIN * least_s)}s or more."
        )


def _used_in_words(used_s: float) -> str:
    return f": the study has used {used_s / 3600:.3g}" if used_s else ""


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


def run_that_lacked_room_s(budget: Budget, trials: Sequence[TrialView]) -> float | None:
    """Seconds of the shortest whole run of these trials, with its start; None before an epoch was measured."""
    configs = [trial.config for trial in trials if trial.config is not None]
    runs_s = [budget.pace.run_s((pace_key(config.to_dict()), config.epochs)) for config in configs]
    return min(filter(None, runs_s), default=None)


def budget_unit(plan: SearchPlan) -> str:
    """The unit of the plan's budget."""
    return "GPU hours" if plan.machine.gpus else "worker hours"


def more_than(hours: float) -> str:
    """``hours`` in two digits, rounded up."""
    if hours <= 0:
        return "0"
    digit = math.floor(math.log10(hours)) - 1
    return f"{float(f'{math.ceil(hours / 10**digit)}e{digit}'):g}"


def what_more_would_bring(plan: SearchPlan, store: StudyStore, objective: Objective) -> str:
    """A sentence for the end of a search with a budget; empty without one, and for a time to a target.

    A trial that missed its target has no time, so such values have no common scale.
    """
    if plan.budget_gpu_hours is None and plan.time_budget_s is None:
        return ""
    if plan.objectives.several or isinstance(objective, TimeToTarget) or math.isnan(objective.worst):
        return ""  # the forecast is made from the values of one metric, and one of a diverged trial
    used_h = store.ledger.held_s / 3600
    hours = more_hours(used_h if plan.budget_gpu_hours is None else plan.budget_gpu_hours)
    return forecast_words(store.study.get_trials(deepcopy=False), objective, used_h, hours, budget_unit(plan))


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
    return None if facts is None else ConfirmationReserve(facts, plan.max_epochs)


# Beforehand


def check_confirm_fits(plan: SearchPlan, store: StudyStore) -> None:
    """Raise ConfigError, and close the study, if ``--confirm`` is certainly larger than the whole budget.

    A study that has begun with these very options goes on: it may be a job that Slurm has started again. What it then
    says, and confirms, is as in a search that learns of it while it runs (``ConfirmBudgetNote``).
    """
    shortest_s = min(map(_run_s, store.study.get_trials(deepcopy=False)), default=math.inf)
    least_h = least_confirm_h(plan, shortest_s)
    stored = read_description(plan.folder)
    begun = stored.get("confirm") == str(plan.confirm) and stored.get("budget_gpu_hours") == plan.budget_gpu_hours
    if begun or plan.budget_gpu_hours is None or not plan.budget_gpu_hours < least_h < math.inf:
        return
    store.close()
    raise ConfigError(
        f"--confirm must fit into --budget-gpu-hours; got {plan.confirm}, at least {least_h:.2g} hours by this study's "
        f"epochs, and {plan.budget_gpu_hours:g} hours. Write --budget-gpu-hours "
        f"{more_than(MARGIN * (store.ledger.held_s / 3600 + least_h))} or more, or a smaller --confirm."
    )


def least_confirm_h(plan: SearchPlan, run_s: float) -> float:
    """Device hours that the confirmations that the user asks for take at least: those of one value of the frontier.

    Args:
        run_s: of the shortest run.
    """
    if plan.confirm.affordable or not plan.confirm.best:
        return 0.0
    runs, devices = plan.confirm.best * plan.confirm.seeds, devices_at_least(plan)
    together = max(1, devices * plan.share.per_gpu // plan.workers)
    return math.ceil(runs / together) * run_s * together * plan.share.devices / 3600


def _run_s(trial: FrozenTrial) -> float:
    """Seconds of a whole run by its fastest epoch; infinite if none was measured."""
    epochs = planned_epochs(trial)
    measured = [seconds for record in epoch_records(trial) if (seconds := epoch_s(record)) > 0]
    return epochs * min(measured) if epochs and measured else math.inf


def cost_in_words(plan: SearchPlan, store: StudyStore) -> str:
    """What the confirmations of a resumed study will take, as far as its epochs tell; empty if nothing is known."""
    runs, hours = left_to_confirm(plan, store)
    return (
        f"Confirmations: {_runs(runs)}, about {hours:.2g} {budget_unit(plan)} by the epochs of this study."
        if hours
        else ""
    )


# While it runs


class ConfirmBudgetNote:
    """An observer that says once, after the first epochs, that ``--confirm`` is larger than the budget."""

    def __init__(self, plan: SearchPlan, say: Callable[[str], None]) -> None:
        self._plan, self._say, self._said = plan, say, False

    def trial_started(self, trial: TrialView) -> None:
        """Nothing is known yet."""

    def epoch_ended(self, trial: TrialView, record: Mapping[str, object]) -> None:
        """Compare, from a trial's second epoch on: the first one may be slow."""
        plan, measured = self._plan, [epoch_s(one) for one in trial.records]
        if self._said or plan.budget_gpu_hours is None or len(measured) < min(2, trial.epochs):
            return
        least_h = least_confirm_h(plan, trial.epochs * min(measured))
        if least_h > plan.budget_gpu_hours:
            self._said = True
            self._say(
                f"--confirm {plan.confirm} takes at least {least_h:.2g} {budget_unit(plan)} by these epochs, more than "
                f"the whole budget of {plan.budget_gpu_hours:g}: as much is confirmed as half of the budget allows"
            )

    def trial_ended(self, trial: TrialView) -> None:
        """Nothing new is known."""


# At the end


def left_to_confirm(plan: SearchPlan, store: StudyStore, pace: Pace | None = None) -> tuple[int, float]:
    """How many confirmations of the finished trials are still to be made, and the device hours that they take.

    Args:
        pace: what this session has measured. The study alone does not know how long trials start.
    """
    reserve, trials = reserve_of(plan), store.study.get_trials(deepcopy=False)
    if reserve is None:
        return 0, 0.0
    pace, runs = pace or Pace(trials), reserve.of_finished(trials).runs()
    return len(runs), sum(map(pace.run_s, runs)) * plan.share.devices / 3600


def _runs(count: int) -> str:
    return f"{count} run{'s' * (count != 1)}"
