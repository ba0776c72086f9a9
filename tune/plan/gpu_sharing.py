"""``--trials-per-gpu``: how many trials of a search share each GPU, as far as it is known before the search."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from bigbatch.train_loop.config import ConfigError
from bigbatch.train_loop.host.ranks import memory_part
from bigbatch.tune.plan.machine import Machine, Share

AUTO = "auto"
MOST = 4
"""No more trials share a GPU: each has a CUDA context, a process and loader processes of its own."""
AT_MOST = "trials_per_gpu_at_most"
"""The key of study.json with ``GpuSharing.at_most``."""


@dataclass(frozen=True)
class GpuSharing:
    """What was asked for, and what the study has found out."""

    asked: int | None = 1
    """None: ``auto``."""
    at_most: int = MOST
    """Fewer than ``MOST`` once a trial ran out of memory beside another one. A resume keeps it."""

    @property
    def at_first(self) -> int:
        """With how many the search begins."""
        return max(1, min(self.asked or 1, self.at_most))

    def without(self, too_many: int) -> GpuSharing:
        """The same where so many are known to be too many."""
        return dataclasses.replace(self, at_most=max(1, min(self.at_most, too_many - 1)))

    def words(self, machine: Machine, share: Share) -> str:
        """A sentence for the plan, with how many and why; empty where nobody asked, or ``auto`` has no GPU to share."""
        if self.asked == 1 or (self.asked is None and machine.nodes and not machine.gpus):
            return ""
        if machine.nodes and not machine.gpus:
            return f"there is no GPU to share: --trials-per-gpu {self.asked} changes nothing"
        if share.workers > 1:
            return f"1 trial on each GPU: the {share.workers} workers of a trial need one GPU each"
        if self.at_most < (self.asked or 2):
            trials = f"{self.at_first} trial{'s' * (self.at_first != 1)}"
            return f"{trials} on each GPU: in this study {self.at_most + 1} had too little memory"
        if self.asked is None:
            return (
                f"1 trial on each GPU at first, later up to {self.at_most}: as many as have room in memory, computing "
                "time and cores by the records of the trials that have ended (--trials-per-gpu auto)"
            )
        part = 100 * memory_part(self.at_first)
        return (
            f"{self.at_first} trials share each GPU (--trials-per-gpu): each has at most {part:.0f} % of its memory, "
            f"and counts 1/{self.at_first} of its hours and energy. If one has too little memory, fewer share"
        )


def read_trials_per_gpu(text: str | None, workers: int) -> int | None:
    """The number, 1 if none is given; None for ``auto``. Raises ConfigError.

    Args:
        workers: of each trial. Several need GPUs of their own: Ray may give parts of one GPU to two of them, and NCCL
            refuses two ranks on the same GPU.
    """
    if text is None or text.strip() == AUTO:
        return None if text else 1
    if text.strip() not in map(str, range(1, MOST + 1)):
        raise ConfigError(
            f"--trials-per-gpu must be {AUTO} or a number from 1 to {MOST}; got {text!r}. Write --trials-per-gpu 2."
        )
    number = int(text)
    if number > 1 and workers > 1:
        raise ConfigError(
            f"--trials-per-gpu {number} is for trials of one worker: NCCL wants each worker of a trial on a GPU of its "
            f"own; got --workers {workers}. Leave one of the two out."
        )
    return number
