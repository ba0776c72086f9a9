"""Loss, right answers and pace of the steps between two logged ones, without a wait for the device.

After a step that is logged, the sums on the device are copied there and the device notes the time. The host reads both
at the ranks' next meeting, where it waits for the device anyway. Nothing here costs anything unless the reporter has
``log_every_steps``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from bigbatch.train_loop.distributed import World
from bigbatch.train_loop.loop.checkpoint import RunState
from bigbatch.train_loop.loop.chronometer import DeviceClock
from bigbatch.train_loop.loop.metrics import NAMES
from bigbatch.train_loop.progress import StepInterval, StepRecord

IMAGES = NAMES.index("images")
Point = torch.cuda.Event | float


@dataclass(frozen=True)
class _Pending:
    """A logged step whose sums the host has not read."""

    record: StepRecord
    sums: torch.Tensor
    """Of this rank since the logged step before: ``NAMES``, then the images whose time is known."""
    began: Point
    ended: Point


class StepLog:
    """What is logged every few steps.

    Args:
        interval: None: nothing.
        sums: the sums of the epoch, ``MetricSums.values``.
        before: sums since the last logged step from before this process began; on rank 0 alone.
    """

    def __init__(
        self,
        interval: StepInterval | None,
        world: World,
        sums: torch.Tensor,
        before: Sequence[float] = (),
    ) -> None:
        self._interval, self._world, self._sums = interval, world, sums
        self._clock = DeviceClock(world.device)
        self._pending: list[_Pending] = []
        self._carried = torch.zeros_like(sums)
        if before and world.rank == 0:
            self._carried += sums.new_tensor(before)
        self.epoch_begins()

    def epoch_begins(self) -> None:
        """Call before the first step of an epoch, or of its rest: the pace does not count what came before."""
        if self._interval is not None:
            self._mark()

    def step_done(self, progress: RunState, steps_per_epoch: int) -> None:
        """Call after each step, which ``progress`` counts already."""
        epoch, step = progress.epoch, progress.step
        if self._interval is None or not self._interval.due(epoch, step, steps_per_epoch):
            return
        number = epoch * steps_per_epoch + step
        record = StepRecord(number, epoch + 1, step, steps_per_epoch, None, None, progress.learning_rate, 0.0)
        images = (self._sums - self._base)[IMAGES:]
        began, ended = self._began, self._clock.now()
        self._pending.append(_Pending(record, torch.cat((self._open(), images)), began, ended))
        self._carried = torch.zeros_like(self._sums)
        self._mark()

    def epoch_ends(self) -> None:
        """Call after the last step of an epoch, before its sums begin at 0 again."""
        if self._interval is not None:
            self._carried, self._base = self._open(), torch.zeros_like(self._sums)

    def take(self) -> list[StepRecord]:
        """The steps that were logged since the last call. All ranks call it after they have waited for the device."""
        if not self._pending:
            return []
        pending, self._pending = self._pending, []
        sums = self._world.sum(torch.stack([one.sums for one in pending])).tolist()
        return [_record(one, self._clock, *values) for one, values in zip(pending, sums, strict=True)]

    def not_logged(self) -> list[float]:
        """The sums over all ranks since the last logged step, for a checkpoint. All ranks call it."""
        if self._interval is None:
            return []
        values: list[float] = self._world.sum(self._open()).tolist()
        return values

    def _open(self) -> torch.Tensor:
        return self._carried + self._sums - self._base

    def _mark(self) -> None:
        self._base, self._began = self._sums.clone(), self._clock.now()


def _record(one: _Pending, clock: DeviceClock, loss: float, correct: float, images: float, timed: float) -> StepRecord:
    seconds = max(clock.between(one.began, one.ended), 1e-9)
    return replace(
        one.record,
        train_loss=_finite(loss / images),
        train_top1=_finite(correct / images),
        images_per_s=timed / seconds,
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
