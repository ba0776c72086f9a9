"""Let the driver save its trials in the time that Slurm leaves."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

from bigbatch.cluster.host.waits import (
    CANCELLED_SAVE_S,
    GIVE_UP_REST_S,
    KILLED_REST_S,
    LIMIT_REST_S,
    MARGIN_REST_S,
    SAVE_S,
    SILENT_S,
)
from bigbatch.cluster.job.driver import Driver
from bigbatch.cluster.job.early_signal import EarlySignal
from bigbatch.cluster.job.node_steps import NodeSteps
from bigbatch.cluster.job.policy import Cause
from bigbatch.cluster.job.watch import POLL_S, JobWatch


class TimeLeft:
    """The time that is left of an allocation.

    Args:
        end_time: when Slurm ends the job, seconds since the epoch; None: no limit.
        margin_s: trials begin to save this many seconds before the end.
        kill_wait_s: seconds from Slurm's SIGTERM to its SIGKILL.
    """

    def __init__(self, end_time: float | None, margin_s: float, kill_wait_s: float) -> None:
        self.end_time, self._margin_s, self._kill_wait_s = end_time, margin_s, kill_wait_s

    def deadline(self, early: EarlySignal | None = None) -> float:
        """When trials must save, seconds since the epoch; 0 without a limit.

        ``early``: the early signal of the last start. If it is known to come again, this is its time.
        """
        if not self.end_time:
            return 0.0
        signalled = self.end_time - early.left_s if early is not None and early.sure else 0.0
        return signalled if signalled > time.time() else self.end_time - self._margin_s

    def environment(self, early: EarlySignal | None) -> dict[str, str]:
        """Variables that tell the driver how much time it has."""
        words = {"BIGBATCH_SAVE_S": f"{self.save_s:.0f}"}
        deadline = self.deadline(early)
        return words | ({"BIGBATCH_DEADLINE": f"{deadline:.0f}"} if deadline else {})

    def patience_s(self) -> float:
        """Seconds to wait for a silent controller."""
        left = self.end_time - time.time() - GIVE_UP_REST_S if self.end_time else SILENT_S
        return max(0.0, min(SILENT_S, left))

    @property
    def save_s(self) -> float:
        """Seconds for the driver near the time limit. A longer ``--margin`` gives trials with long steps more time."""
        return max(SAVE_S, self._margin_s - MARGIN_REST_S)

    def to_save_s(self, watch: JobWatch) -> float:
        """Seconds for the driver; fewer if Slurm's SIGKILL is near."""
        if watch.cause is Cause.CANCELLED:
            return CANCELLED_SAVE_S
        if watch.killed_soon or watch.cause is Cause.UNEXPLAINED:
            return max(2.0, self._kill_wait_s - KILLED_REST_S)
        left = self.end_time - time.time() - LIMIT_REST_S if self.end_time else SAVE_S
        return max(2.0, min(self.save_s, left))


def end_driver(
    driver: Driver, watch: JobWatch, nodes: NodeSteps, signals: list[int], left: TimeLeft, say: Callable[[str], None]
) -> int | None:
    """Let the driver save, and end it. Returns its exit code; None if it was killed."""
    if watch.cause is Cause.HEAD_DIED:
        driver.kill()  # the head is gone: the driver would wait a minute for it
        return None
    code = driver.exit_code()
    if code is None:
        nodes.hold()
        signals.clear()
        driver.terminate()
        code = _await_end(driver, watch, signals, left)
        say("driver killed" if code is None else f"driver saved and ended with exit code {code}")
    driver.kill()
    return code


def _await_end(driver: Driver, watch: JobWatch, signals: list[int], left: TimeLeft) -> int | None:
    code = None
    ends = time.monotonic() + left.to_save_s(watch)
    while code is None and time.monotonic() < ends:
        time.sleep(POLL_S)
        code = driver.exit_code()
        if watch.explain():
            later = time.monotonic() + left.to_save_s(watch)
            ends = min(ends, later) if watch.killed_soon else later  # SIGKILL does not wait
        if watch.cause is not Cause.CANCELLED and signal.SIGTERM in signals:
            watch.classify("SIGTERM while saving")  # a scancel does not wait
            signals.clear()
            ends = min(ends, time.monotonic() + left.to_save_s(watch))
    return code
