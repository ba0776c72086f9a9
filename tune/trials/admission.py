"""Whether a trial may start: the budget must have room for it, and an epoch must end before the allocation does.

The job around a search (``cluster/``) sets ``BIGBATCH_DEADLINE``: its end in seconds since the epoch, minus a
margin. At the end the job stops running trials by a signal, and they write a checkpoint. So their work is never lost.
But a trial whose first epoch does not fit would waste its start-up, seconds to minutes of every worker.

If even the first trial of a search has no time for an epoch, all allocations are too short for one, and waiting does
not help. Then trials start anyway and continue over several allocations, with checkpoints within an epoch.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence

import optuna
from optuna.trial import FrozenTrial

from bigbatch.base import json_values
from bigbatch.train_loop.config import ConfigError, TrainConfig
from bigbatch.tune.budget.budget import Budget
from bigbatch.tune.budget.confirm_reserve import ConfirmationReserve
from bigbatch.tune.budget.pace import PaceRun, pace_key
from bigbatch.tune.runs.run import CONTINUES_ATTR, Kind, configuration, epochs_before, kind_of
from bigbatch.tune.runs.tables import epoch_of, epoch_s


class Admission:
    """What a manager says to a budget, and asks it.

    Args:
        budget: None: there is no limit.
        workers: of each trial.
        per_gpu: how many trials share each GPU now.
        reserve: what is kept back of the budget for confirmations. None: nothing.
    """

    def __init__(
        self,
        budget: Budget | None = None,
        workers: int = 1,
        reserve: ConfirmationReserve | None = None,
        per_gpu: Callable[[], int] = lambda: 1,
    ) -> None:
        self._budget, self._workers, self._per_gpu = budget, workers, per_gpu
        self._reserve = reserve if budget is not None else None
        self._begun: dict[int, int] = {}
        self._closed = False

    @property
    def _devices(self) -> float:
        """Devices of a trial that starts now."""
        return self._workers / self._per_gpu()

    def admits_any(self) -> bool:
        """Whether any trial at all may start now."""
        return self._budget is None or (not self._closed and self._budget.admits_any())

    def close_until_a_trial_ends(self) -> None:
        """Admit none until then: asking again and again would write to the study each time."""
        self._closed = self._budget is not None

    @property
    def refused(self) -> str | None:
        """Why the last trial was not admitted; None if it was."""
        return None if self._budget is None else self._budget.refused

    def kept(self, study: optuna.Study, trial: optuna.trial.Trial | FrozenTrial, config: TrainConfig) -> list[PaceRun]:
        """The runs for which room is kept behind a trial; none for a confirmation, and without a reserve."""
        if self._reserve is None or kind_of(trial) == Kind.CONFIRMATION:
            return []
        # Optuna would else copy every trial of the study.
        return self._reserve.beside(study.get_trials(deepcopy=False), trial.number, config.to_dict())

    def admits(self, config: TrainConfig, epochs_done: int, kept: Sequence[PaceRun] = ()) -> bool:
        """Whether a trial with ``epochs_done`` trained epochs may start now and leave room for the ``kept`` runs."""
        left = max(1, config.epochs - epochs_done)
        return self._budget is None or self._budget.admits(pace_key(config.to_dict()), left, self._devices, kept)

    def fits(self, study: optuna.Study) -> Callable[[FrozenTrial], bool]:
        """A function of a paused trial: whether the rest of its run may start now."""

        def fits(paused: FrozenTrial) -> bool:
            config = TrainConfig.from_dict(dict(configuration(paused)))
            done = epochs_before(study.get_trials(deepcopy=False), {CONTINUES_ATTR: paused.number})
            return self.admits(config, done, self.kept(study, paused, config))

        return fits

    def lasts(self, study: optuna.Study) -> Callable[[FrozenTrial, float], bool]:
        """A function of a paused trial and a factor: whether the budget lasts so many times the rest of its run."""

        def lasts(paused: FrozenTrial, times: float) -> bool:
            if self._budget is None:
                return True
            config = TrainConfig.from_dict(dict(configuration(paused)))
            done = epochs_before(study.get_trials(deepcopy=False), {CONTINUES_ATTR: paused.number})
            epochs, kept = math.ceil(times * max(1, config.epochs - done)), self.kept(study, paused, config)
            return self._budget.lasts(pace_key(config.to_dict()), epochs, self._devices, kept)

        return lasts

    def may_pause(self, study: optuna.Study, trial: optuna.trial.Trial, config: TrainConfig) -> bool:
        """Whether the budget would let a running trial go on later if it paused now."""
        return self._budget is None or self._budget.could_go_on(trial.number, self.kept(study, trial, config))

    def begins(self, number: int, config: TrainConfig, epochs_done: int) -> None:
        """Note that a trial begins now."""
        self._begun[number] = epochs_done
        if self._budget is not None:
            left = max(1, config.epochs - epochs_done)
            self._budget.begins(number, pace_key(config.to_dict()), left, self._devices)

    def epoch_ended(self, number: int, record: Mapping[str, object]) -> None:
        """Note the record of a trial's epoch. An epoch that was trained before the trial began does not count."""
        if self._budget is not None and epoch_of(record) > self._begun.get(number, 0):
            # The loop or a thread writes a checkpoint; a stop waits for either.
            save_s = max(json_values.number(record, name) for name in ("checkpoint_s", "checkpoint_write_s"))
            self._budget.epoch_ended(number, epoch_s(record), save_s)

    def ends(self, number: int) -> None:
        """Note that a trial does not run any more."""
        self._closed = False
        self._begun.pop(number, None)
        if self._budget is not None:
            self._budget.ends(number)


DEADLINE_VARIABLE = "BIGBATCH_DEADLINE"
END_OF_ALLOCATION = "the allocation ends before another trial could finish an epoch"


class Deadline:
    """Says whether a trial may still start.

    Args:
        ends_at: the end of the allocation in seconds since the epoch; None: it has no end.
        first_result_s: returns the seconds from a trial's start to its first finished epoch. None: nothing is
            measured yet, and a trial may start.
    """

    def __init__(self, ends_at: float | None, first_result_s: Callable[[], float | None]) -> None:
        self._ends_at, self._first_result_s = ends_at, first_result_s
        self._an_epoch_fits: bool | None = None
        self.refused = False
        """Whether the deadline has kept a trial from starting."""

    def allows_a_trial(self) -> bool:
        """Whether a trial that starts now can finish an epoch. Once False, it stays False."""
        if self._ends_at is None:
            return True
        now, needed = time.time(), self._first_result_s() or 0.0
        if self._an_epoch_fits is None:  # the search has only begun
            self._an_epoch_fits = now + needed <= self._ends_at
        if now + (needed if self._an_epoch_fits else 0.0) > self._ends_at:
            self.refused = True
        return not self.refused


def end_of_allocation(env: Mapping[str, str] = os.environ) -> float | None:
    """``BIGBATCH_DEADLINE`` in seconds since the epoch; None if it is not set. Raises ConfigError if it is no
    number."""
    text = env.get(DEADLINE_VARIABLE)
    if not text:
        return None
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"{DEADLINE_VARIABLE} is seconds since the epoch; got {text!r}. Unset it.") from None
