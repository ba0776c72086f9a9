"""Ask the budget about the trials of a search: whether a configuration may start, and what its epochs take."""

from __future__ import annotations

from collections.abc import Mapping

from bigbatch.cluster.host import json_values
from bigbatch.train_loop.config import TrainConfig
from bigbatch.tune.study.budget import Budget
from bigbatch.tune.study.pace import pace_key
from bigbatch.tune.study.tables import epoch_s


class Admission:
    """What a conductor says to a budget, and asks it.

    Args:
        budget: None: there is no limit.
        workers: of each trial.
    """

    def __init__(self, budget: Budget | None = None, workers: int = 1) -> None:
        self._budget, self._workers = budget, workers

    def admits_any(self) -> bool:
        """Whether any trial at all may start now."""
        return self._budget is None or self._budget.admits_any()

    def admits(self, config: TrainConfig, epochs_done: int) -> bool:
        """Whether a trial may start now that has trained so many of its epochs."""
        left = max(1, config.epochs - epochs_done)
        return self._budget is None or self._budget.admits(pace_key(config.to_dict()), left, self._workers)

    def begins(self, number: int, config: TrainConfig, epochs_done: int) -> None:
        """Note that a trial begins now."""
        if self._budget is not None:
            left = max(1, config.epochs - epochs_done)
            self._budget.begins(number, pace_key(config.to_dict()), left, self._workers)

    def epoch_ended(self, number: int, record: Mapping[str, object]) -> None:
        """Note the record of a trial's epoch."""
        if self._budget is not None:
            self._budget.epoch_ended(number, epoch_s(record), json_values.number(record, "checkpoint_s"))

    def ends(self, number: int) -> None:
        """Note that a trial does not run any more."""
        if self._budget is not None:
            self._budget.ends(number)
