"""The end of the allocation: no trial is started that could not finish an epoch before it.

A job that runs the search (``cluster/``) says when it will end in ``BIGBATCH_DEADLINE``, in seconds since the
epoch, with its own margin taken off. Trials that run by then are stopped by its signal, with a checkpoint,
so a rung that has begun is never lost; but a trial whose first epoch does not fit would spend its start-up,
seconds to minutes of every worker, for nothing.

Where not even the first trial of a search has time for an epoch, the allocations are shorter than one, and to wait
for the next would not help: there trials start all the same, and go on from one allocation to the next by checkpoints
within their epochs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping

from bigbatch.train_loop.config import ConfigError

VARIABLE = "BIGBATCH_DEADLINE"
END_OF_ALLOCATION = "the allocation ends before another trial could finish an epoch"


class Deadline:
    """Says whether a trial may still start.

    Args:
        ends_at: seconds since the epoch; None where there is no end.
        first_result_s: seconds from a trial's start to its first finished epoch, as measured so far; None
            before anything was measured: then a trial may start.
    """

    def __init__(self, ends_at: float | None, first_result_s: Callable[[], float | None]) -> None:
        self._ends_at, self._first_result_s = ends_at, first_result_s
        self._an_epoch_fits: bool | None = None
        self.refused = False
        """Whether a trial was not started because of it."""

    def allows_a_trial(self) -> bool:
        if self._ends_at is None:
            return True
        now, needed = time.time(), self._first_result_s() or 0.0
        if self._an_epoch_fits is None:  # the search has only begun
            self._an_epoch_fits = now + needed <= self._ends_at
        if now + (needed if self._an_epoch_fits else 0.0) > self._ends_at:
            self.refused = True
        return not self.refused


def end_of_allocation(env: Mapping[str, str] = os.environ) -> float | None:
    """``BIGBATCH_DEADLINE``. Raises ConfigError if it is no number."""
    text = env.get(VARIABLE)
    if not text:
        return None
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"{VARIABLE} is seconds since the epoch; got {text!r}. Unset it.") from None
