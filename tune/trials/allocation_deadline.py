"""Start no trial that cannot finish an epoch before the allocation ends.

The job around a search (``cluster/``) sets ``BIGBATCH_DEADLINE``: its end in seconds since the epoch, minus a
margin. At the end it stops running trials by a signal, and they write a checkpoint, so their work is never lost.
But a trial whose first epoch does not fit would waste its start-up, seconds to minutes of every worker.

If even the first trial of a search has no time for an epoch, all allocations are too short for one, and waiting does
not help. Then trials start anyway and continue over several allocations, with checkpoints within an epoch.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping

from bigbatch.train_loop.config import ConfigError

DEADLINE_VARIABLE = "BIGBATCH_DEADLINE"
END_OF_ALLOCATION = "the allocation ends before another trial could finish an epoch"


class Deadline:
    """Says whether a trial may still start.

    Args:
        ends_at: end of the allocation in seconds since the epoch; None: it has no end.
        first_result_s: returns the measured seconds from a trial's start to its first finished epoch. None: nothing is
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
