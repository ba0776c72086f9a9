"""How busy the GPUs of a running search are, and what follows from it.

A GPU that hardly computes is named, before the centre's administrators do so. With ``--trials-per-gpu`` fewer trials
share a GPU once one has lacked memory.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

from bigbatch.base import json_values
from bigbatch.train_loop.host.device_use import IDLE_BELOW, IDLE_WINDOW_S, SAY_AGAIN_S
from bigbatch.tune.plan.machine import AT_MOST
from bigbatch.tune.runs.observer import TrialView
from bigbatch.tune.runs.tables import epoch_s
from bigbatch.tune.search.capacity import Capacity
from bigbatch.tune.search.running import SearchRun
from bigbatch.tune.storage.store import StudyStore


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


class TrialsPerGpu:
    """How many trials share each GPU, as those that lack memory tell.

    A change holds for trials that begin from then on; those that run keep their part.

    Args:
        say: shows a line.
    """

    def __init__(self, run: SearchRun, store: StudyStore, say: Callable[[str], None]) -> None:
        self._run, self._store, self._say = run, store, say

    @property
    def _capacity(self) -> Capacity:
        found: Capacity = self._run.capacity
        return found

    def __call__(self) -> int:
        """The trials that share a GPU with one that begins now, with itself."""
        return self._capacity.per_gpu

    def lacked_memory(self, per_gpu: int) -> None:
        """A trial ran out of memory where ``per_gpu`` shared a GPU: fewer do from now on, also after a resume."""
        plan = self._run.plan
        sharing = plan.sharing.without(per_gpu)
        self._run.plan = dataclasses.replace(plan, sharing=sharing)
        with self._store.disk.quietly():
            self._store.describe({AT_MOST: sharing.at_most})
        if sharing.at_most < self._capacity.per_gpu:
            now = (
                f"{sharing.at_most} trials share each GPU" if sharing.at_most > 1 else "each trial has a GPU of its own"
            )
            share = self._capacity.share_gpus(sharing.at_most)
            self._run.plan = dataclasses.replace(self._run.plan, share=share)
            with self._store.disk.quietly():
                self._store.describe({"concurrency": share.concurrency})
            self._say(f"{now} from now on: {per_gpu} had too little memory: {share.describe()}")
