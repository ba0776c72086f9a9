"""Check ``--confirm`` against the objective of the search."""

from __future__ import annotations

from bigbatch.train_loop.config import ConfigError
from bigbatch.tune.study.confirm_rule import AFFORDABLE, NOTHING, ConfirmRule, confirm_rule
from bigbatch.tune.study.objectives import Objectives


def checked_confirm(text: str | None, trials: int, objectives: Objectives) -> ConfirmRule:
    """The rule of ``--confirm``; without one, accuracies are confirmed as far as that costs little.

    Raises ConfigError for a wrong one, and if the search has several objectives or a target.
    """
    rule = confirm_rule(text, trials)
    if objectives.first.metric.is_proportion and not objectives.several:
        return rule
    if rule in (AFFORDABLE, NOTHING):
        return NOTHING
    if not objectives.one_metric:
        raise ConfigError(
            f"--confirm compares means of one metric; got --confirm {rule} with the objective {objectives.text}. "
            "Leave --confirm out."
        )
    return rule
