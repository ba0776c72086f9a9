"""How busy the GPUs of a running search are, and how many trials may share each of them. With ``--trials-per-gpu auto``
more trials share a GPU if the records of ended trials allow it. Fewer do if one runs out of memory. It was not measured
yet whether that rule and its constants make a search faster.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

from optuna.trial import FrozenTrial, TrialState

from bigbatch.base import json_values
from bigbatch.train_loop.host.ranks import SPARE
from bigbatch.tune.plan.machine import AT_MOST, Machine
from bigbatch.tune.runs.run import Kind, Run, devices_of, epoch_records, of_kind, trials_per_gpu_of
from bigbatch.tune.runs.tables import epoch_s
from bigbatch.tune.search.capacity import Capacity
from bigbatch.tune.search.running import SearchRun
from bigbatch.tune.storage.store import StudyStore

LEAST_TRIALS = 2
"""So many trials must have ended before the number rises."""
ROOM = 1.25
"""A trial gets this multiple of the largest peak: its tensors lie in blocks, and other trials may take more."""
LEAST_CORES = 2
"""Of each trial: one trains, one reads images."""


class TrialsPerGpu:
    """How many trials share each GPU. It hears of ended trials, as an observer, and of those that ran out of memory.

    A change holds for trials that begin from then on; those that run keep their part.

    Args:
        say: shows a line.
    """

    def __init__(self, run: SearchRun, store: StudyStore, say: Callable[[str], None]) -> None:
        self._run, self._store, self._say = run, store, say
        self._capacity: Capacity = run.capacity

    def __call__(self) -> int:
        """The trials that share a GPU with one that begins now, with itself."""
        return self._capacity.per_gpu

    def trial_ended(self, trial: Run) -> None:
        """Let more trials share a GPU, if ``auto`` was asked for and the ended trials have shown room for them."""
        self.rise()

    def rise(self) -> None:
        """As ``trial_ended``; also at the start of a search that goes on."""
        plan = self._run.plan
        if plan.sharing.asked is not None or plan.workers > 1 or not plan.machine.gpus:
            return
        room = room_on_a_gpu(self._store.study.get_trials(deepcopy=False), plan.machine, plan.trial_limit)
        number = min([*room.values(), plan.sharing.at_most], default=1)
        if room and number > self._capacity.per_gpu:
            why = ", ".join(f"{what} for {most}" for what, most in room.items())
            self._change(number, f"{number} trials share each GPU from now on; there is room by {why}")

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
            self._change(sharing.at_most, f"{now} from now on: {per_gpu} had too little memory")

    def _change(self, number: int, why: str) -> None:
        share = self._capacity.share_gpus(number)
        self._run.plan = dataclasses.replace(self._run.plan, share=share)
        with self._store.disk.quietly():
            self._store.describe({"concurrency": share.concurrency})
        self._say(f"{why}: {share.describe()}")


def room_on_a_gpu(trials: Sequence[FrozenTrial], machine: Machine, planned: int | None) -> dict[str, int]:
    """How many trials have room on each GPU, by each thing that bounds them; empty before enough is known.

    - By memory: as many as fit into a GPU's memory without SPARE, each with the largest peak of a trial, times ROOM.
      Only one, if the memory of a trial was not measured.
    - By use: a trial keeps the GPU or the cores busy for a part of its time, from its start to its end; as many as
      together keep them busy all the time. In an epoch the GPU is busy while it computes, by NVML (without it, all the
      time), and at least while training waits for data: other trials would take the cores from it.
    - By cores: each trial has LEAST_CORES.
    - By the number of trials: at most a quarter of them run at once, or 2, so that early stopping learns.

    Args:
        planned: trials of the search; None: as many as a budget allows.
    """
    ended = (TrialState.COMPLETE, TrialState.PRUNED)
    # What a continuation or a retry has trained before is in its records, but not in its time.
    whole = [t for t in of_kind(trials, Kind.SEARCH, Kind.CONFIRMATION) if t.user_attrs.get("attempts", 1) == 1]
    measured = [t for t in whole if t.state in ended and epoch_records(t) and t.user_attrs.get("gpu_hours")]
    if len(measured) < LEAST_TRIALS:
        return {}
    peaks = [json_values.number(record, "memory_bytes", math.inf) for t in measured for record in epoch_records(t)]
    memory = (1 - SPARE) * machine.device_memory_bytes / (ROOM * max(1.0, *peaks))
    time_s = sum(3600 * json_values.number(t.user_attrs, "gpu_hours") / devices_of(t) for t in measured)
    busy_s = sum(_busy_s(record) / trials_per_gpu_of(t) for t in measured for record in epoch_records(t))
    cores = min(node.cpus // node.gpus for node in machine.nodes if node.gpus)
    room = {"memory": memory, "use": time_s / busy_s if busy_s else 1.0, "cores": cores / LEAST_CORES}
    if planned is not None:
        room["number of trials"] = max(2, planned // 4) / machine.gpus
    return {what: max(1, int(most)) for what, most in room.items()}


def _busy_s(record: Mapping[str, object]) -> float:
    """Seconds of an epoch in which the GPU computed, or training waited for data."""
    computed_s = json_values.number(record, "gpu_utilization", 1.0) * epoch_s(record)
    return max(computed_s, json_values.number(record, "data_s"))
