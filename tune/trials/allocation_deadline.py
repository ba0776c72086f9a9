"""Start no trial that cannot finish an epoch before the allocation ends.

The job around a search (``cluster/``) sets ``BIGBATCH_DEADLINE``: its end in seconds since the epoch, minus a
margin. If Slurm moves the end, the job's record says so. At the end the job stops running trials by a signal, and they
write a checkpoint, so their work is never lost. But a trial whose first epoch does not fit would waste its start-up,
seconds to minutes of every worker.

If even the first trial of a search has no time for an epoch, all allocations are too short for one, and waiting does
not help. Then trials start anyway and continue over several allocations, with checkpoints within an epoch.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterable, Mapping

from optuna.trial import FrozenTrial

from bigbatch.base import json_values
from bigbatch.cluster.host.holder import JOB_FOLDER, record_of_job
from bigbatch.train_loop.config import ConfigError
from bigbatch.tune.budget.pace import PaceKey, pace_key
from bigbatch.tune.runs.run import configuration, epoch_records
from bigbatch.tune.runs.tables import epoch_s

DEADLINE_VARIABLE = "BIGBATCH_DEADLINE"
READ_EVERY_S = 5.0
"""Time between two looks at the job's record, which is on a shared file system."""
END_OF_ALLOCATION = "the allocation ends before another trial could finish an epoch"


class Deadline:
    """Says whether a trial may still start.

    Args:
        ends_at: returns the end of the allocation in seconds since the epoch; None: it has no end.
        first_result_s: returns the seconds from a trial's start to its first finished epoch. None: nothing is
            measured yet, and a trial may start.
    """

    def __init__(self, ends_at: Callable[[], float | None], first_result_s: Callable[[], float | None]) -> None:
        self._ends_at, self._first_result_s = ends_at, first_result_s
        self._an_epoch_fits: bool | None = None
        self.refused = False
        """Whether the deadline has kept a trial from starting."""

    def allows_a_trial(self) -> bool:
        """Whether a trial that starts now can finish an epoch. Once False, it stays False."""
        ends_at = self._ends_at()
        if ends_at is None:
            return not self.refused
        now, needed = time.time(), self._first_result_s() or 0.0
        if self._an_epoch_fits is None:  # the search has only begun
            self._an_epoch_fits = now + needed <= ends_at
        if now + (needed if self._an_epoch_fits else 0.0) > ends_at:
            self.refused = True
        return not self.refused


class FirstResultTimes:
    """How long a trial takes from its start to its first finished epoch: a start-up, and an epoch of the slowest kind.

    Both are medians. A maximum would contain the one trial that waited for its place, or was started again after a node
    was lost, and leave the end of each allocation idle for as long.

    Args:
        trials: of the study, with the epochs of earlier drivers.
    """

    def __init__(self, trials: Iterable[FrozenTrial]) -> None:
        self._epochs: dict[PaceKey, list[float]] = {}
        self._start_ups: list[float] = []
        for trial in trials:
            for record in epoch_records(trial):
                self.add_epoch(configuration(trial), record)

    def add_epoch(self, config: object, record: Mapping[str, object], since_start_s: float | None = None) -> None:
        """Take in an epoch of a trial. ``since_start_s``: from the trial's start to the end of its first epoch."""
        seconds = epoch_s(record)
        if seconds > 0:  # a training function of the user's may not say it
            self._epochs.setdefault(pace_key(config), []).append(seconds)
        if since_start_s is not None:
            self._start_ups.append(max(0.0, since_start_s - max(0.0, seconds)))

    def expected_s(self) -> float | None:
        """The expected seconds; None if no epoch was measured."""
        if not self._epochs and not self._start_ups:
            return None
        slowest = max(map(statistics.median_low, self._epochs.values()), default=0.0)
        return slowest + (statistics.median_low(self._start_ups) if self._start_ups else 0.0)


def allocation_end(env: Mapping[str, str] = os.environ) -> Callable[[], float | None]:
    """A function that returns the end of the allocation, as the job's record has it now, else ``end_of_allocation``.

    Raises ConfigError as that does.
    """
    at_first, last = end_of_allocation(env), [0.0]
    known = [at_first]

    def ends_at() -> float | None:
        now = time.monotonic()
        if env.get(JOB_FOLDER) and now >= last[0] + READ_EVERY_S:
            last[0] = now
            record = record_of_job(env)
            if "deadline" in record:  # else it cannot be read at this moment
                known[0] = json_values.number_or_none(record, "deadline")
        return known[0]

    return ends_at


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
