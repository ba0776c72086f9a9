"""Confirmations and the budget: what is kept back for them, and what is said where that is too little."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from optuna.trial import FrozenTrial

from bigbatch.train_loop.config import ConfigError
from bigbatch.tune.budget.confirm_reserve import ConfirmationReserve
from bigbatch.tune.budget.pace import Pace
from bigbatch.tune.plan.search_plan import SearchPlan
from bigbatch.tune.runs.confirmation import (
    AFFORDABLE_SHARE,
    ConfirmationFacts,
)
from bigbatch.tune.runs.frontier import frontier_facts
from bigbatch.tune.runs.observer import TrialView
from bigbatch.tune.runs.run import epoch_records, planned_epochs
from bigbatch.tune.runs.tables import epoch_s
from bigbatch.tune.search.budgeting import MARGIN, budget_unit, devices_at_least, more_than
from bigbatch.tune.storage.description import read_description
from bigbatch.tune.storage.store import StudyStore


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
