"""``--join``: several drivers on one study in a database. Each must carry out the same plan.

The database keeps what defines the study, because a driver does not see the folder of another one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import optuna

from bigbatch.base import json_values
from bigbatch.train_loop.config import ConfigError
from bigbatch.tune.plan.option_checks import NotSameStudy, check_same_study
from bigbatch.tune.plan.search_plan import SearchPlan
from bigbatch.tune.storage.store import StudyStore

PLAN_ATTR = "plan"
"""The study's user attribute with ``shared_identity`` of its first driver."""


def shared_identity(plan: SearchPlan) -> dict[str, object]:
    """The facts in which all drivers of a study agree: also the workers, since any of them may continue a trial."""
    return {**plan.identity(), "workers": plan.workers}


def agreement(plan: SearchPlan) -> Callable[[optuna.Study], None]:
    """A function that a new driver calls on the study in the database, while no other driver decides.

    It raises ConfigError if the plan is not the study's, and writes the plan into a study that has none.
    """

    def agree(study: optuna.Study) -> None:
        stored = study.user_attrs.get(PLAN_ATTR)
        if plan.resume:
            _check_workers(plan, study, stored or {})
        elif stored:
            check_same_model(plan, study)
        elif study.get_trials(deepcopy=False):
            raise ConfigError(
                f"--join needs a study that bigbatch began; got {plan.study!r}, which it did not. Write --study OTHER."
            )
        else:
            study.set_user_attr(PLAN_ATTR, shared_identity(plan))

    return agree


def others_at_work(store: StudyStore) -> bool:
    """Whether the study's other drivers run its trials."""
    trials = store.study.get_trials(deepcopy=False)
    return store.drivers is not None and store.drivers.runs_elsewhere(trials) > 0


def _check_workers(plan: SearchPlan, study: optuna.Study, stored: Mapping[str, object]) -> None:
    """Keep the workers of a resume in the study. Raises ConfigError if other drivers work with another number."""
    from bigbatch.tune.storage.drivers import entries, holding  # SQLAlchemy, which a study in a journal does not load

    workers = json_values.whole_number(stored, "workers", plan.workers)
    others = [one for one in holding(entries(study.user_attrs).values()) if one.get("folder") != str(plan.folder)]
    if workers != plan.workers and others:
        raise ConfigError(
            f"--workers must be that of the study's other drivers; got {plan.workers}. Write --workers {workers}."
        )
    study.set_user_attr(PLAN_ATTR, {**shared_identity(plan), **stored, "workers": plan.workers})


def check_same_model(plan: SearchPlan, study: optuna.Study) -> None:
    """Compare the plan with the study's. On a cluster the network is known only once the cluster is joined.

    Raises ConfigError.
    """
    stored, identity = dict(study.user_attrs[PLAN_ATTR]), shared_identity(plan)
    if stored.get("model") is None and identity["model"] is not None:
        stored["model"] = identity["model"]
        study.set_user_attr(PLAN_ATTR, stored)
    if identity["model"] is None:
        del identity["model"]
    try:
        check_same_study(identity, stored)
    except NotSameStudy as error:
        raise ConfigError(
            f"--join works on a study as its first driver planned it: {error.what}. Write the same, or --study OTHER."
        ) from None
