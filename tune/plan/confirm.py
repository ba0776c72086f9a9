"""Check ``--confirm`` against the objective of the search."""

from __future__ import annotations

from bigbatch.train_loop.config import ConfigError
from bigbatch.tune.study.confirm_rule import AFFORDABLE, NOTHING, ConfirmRule, confirm_rule
from bigbatch.tune.study.objectives import Objectives


def checked_confirm(text: str | None, trials: int, objectives: Objectives) -> ConfirmRule:
    """The rule of ``--confirm``. Raises ConfigError for a wrong one, or if the search optimises no accuracy."""
    rule = confirm_rule(text, trials)
    if objectives.first.has_interval and not objectives.several:
        return rule
    if rule not in (AFFORDABLE, NOTHING):
        raise ConfigError(
            f"--confirm compares accuracies over seeds; got --confirm {rule} with the objective {objectives.text}. "
            "Leave --confirm out."
        )
    return NOTHING
