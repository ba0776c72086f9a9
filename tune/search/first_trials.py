"""The trials that wait in a new study before its strategy proposes any."""

from __future__ import annotations

import optuna

from bigbatch.tune.models.names import capabilities_of
from bigbatch.tune.plan.enqueued import parameters_of_trial
from bigbatch.tune.plan.search_plan import SearchPlan
from bigbatch.tune.plan.warm_start import best_known
from bigbatch.tune.runs.knowledge import LABEL
from bigbatch.tune.runs.run import ENQUEUED_ATTR, GIVEN_ATTR


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
    if capabilities_of(plan.strategy).learns:  # the designs random and qmc stay as they are
        for point in plan.space.initial_points(plan.workload, plan.overrides):
            study.enqueue_trial(point, skip_if_exists=True)
