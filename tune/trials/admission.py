"""Ask the budget about the trials of a search: whether a configuration may start, and what its epochs take."""

from __future__ import annotations

from collections.abc import Mapping

from bigbatch.cluster.host import json_values
from bigbatch.train_loop.config import TrainConfig
from bigbatch.tune.study.budget import Budget
from bigbatch.tune.study.pace import pace_key
from bigbatch.tune.study.tables import epoch_of, epoch_s


class Admission:
    """What a conductor says to a budget, and asks it.

    Args:
        budget: None: there is no limit.
        workers: of each trial.
    """

    def __init__(self, budget: Budget | None = None, workers: int = 1) -> None:
        self._budget, self._workers = budget, workers
        self._begun: dict[int, tuple[TrainConfig, int]] = {}
        self._closed = False

    def admits_any(self) -> bool:
        """Whether any trial at all may start now."""
        return self._budget is None or (not self._closed and self._budget.admits_any())

    def close_until_a_trial_ends(self) -> None:
        """Admit none until then: asking again and again would write to the study each time."""
        self._closed = self._budget is not None

    def admits(self, config: TrainConfig, epochs_done: int) -> bool:
        """Whether a trial may start now that has trained so many of its epochs."""
        left = max(1, config.epochs - epochs_done)
        return self._budget is None or self._budget.admits(pace_key(config.to_dict()), left, self._workers)

    def begins(self, number: int, config: TrainConfig, epochs_done: int) -> None:
        """Note that a trial begins now."""
        self._begun[number] = (config, epochs_done)
        if self._budget is not None:
            left = max(1, config.epochs - epochs_done)
            self._budget.begins(number, pace_key(config.to_dict()), left, self._workers)

    def begins_later(self, number: int) -> None:
        """Note that a trial has only waited so far, and begins now."""
        if number in self._begun:
            self.begins(number, *self._begun[number])

    def epoch_ended(self, number: int, record: Mapping[str, object]) -> None:
        """Note the record of a trial's epoch. One that was trained before the trial began counts nothing."""
        _, done = self._begun.get(number, (None, 0))
        if self._budget is not None and epoch_of(record) > done:
            self._budget.epoch_ended(number, epoch_s(record), json_values.number(record, "checkpoint_s"))

    def ends(self, number: int) -> None:
        """Note that a trial does not run any more."""
        self._closed = False
        self._begun.pop(number, None)
        if self._budget is not None:
            self._budget.ends(number)
