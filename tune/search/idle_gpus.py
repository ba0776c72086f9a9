"""Say that the GPUs of a trial hardly compute, before the centre's administrators do."""

from __future__ import annotations

import time
from collections.abc import Callable

from bigbatch.base import json_values
from bigbatch.train_loop.host.device_use import IDLE_BELOW, IDLE_WINDOW_S, SAY_AGAIN_S
from bigbatch.tune.runs.observer import TrialView
from bigbatch.tune.runs.tables import epoch_s


class IdleGpus:
    """An observer that watches ``gpu_utilization`` of the epochs' records, where NVML measures it.

    A trial whose GPU computed in less than IDLE_BELOW of at least IDLE_WINDOW_S of epochs is mentioned, and then none
    for SAY_AGAIN_S.

    Args:
        say: prints a line, and writes it into the driver's log.
        clock: seconds.
    """

    def __init__(self, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._say, self._clock = say, clock
        self._seen: dict[int, tuple[float, float]] = {}
        """By trial: seconds of its epochs, and seconds in which its GPU computed."""
        self._quiet_until = clock()

    def trial_started(self, trial: TrialView) -> None:
        """Do nothing: it has no record yet."""

    def epoch_ended(self, trial: TrialView, record: dict[str, object]) -> None:
        """Look at the epoch's record."""
        busy = json_values.number_or_none(record, "gpu_utilization")
        if busy is None:
            return
        seconds, computed = self._seen.get(trial.number, (0.0, 0.0))
        seconds, computed = seconds + epoch_s(record), computed + busy * epoch_s(record)
        self._seen[trial.number] = seconds, computed
        if seconds < IDLE_WINDOW_S:
            return
        del self._seen[trial.number]
        if computed < IDLE_BELOW * seconds and self._clock() >= self._quiet_until:
            self._quiet_until = self._clock() + SAY_AGAIN_S
            self._say(
                f"a GPU of trial {trial.number} computed in only {100 * computed / seconds:.0f} % of "
                f"{seconds / 60:.0f} minutes. bigbatch train --profile-steps 50 says what it waits for"
            )

    def trial_ended(self, trial: TrialView) -> None:
        """Forget its epochs."""
        self._seen.pop(trial.number, None)
