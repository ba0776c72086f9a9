"""Let the driver save its trials in the time that Slurm leaves."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

from bigbatch.cluster.job.driver import Driver
from bigbatch.cluster.job.grant import TimeLeft
from bigbatch.cluster.job.node_steps import NodeSteps
from bigbatch.cluster.job.policy import Cause
from bigbatch.cluster.job.watch import POLL_S, JobWatch


def end_driver(
    driver: Driver, watch: JobWatch, nodes: NodeSteps, signals: list[int], left: TimeLeft, say: Callable[[str], None]
) -> int | None:
    """Let the driver save, and end it. Returns its exit code; None if it was killed."""
    if watch.cause is Cause.HEAD_DIED:
        driver.kill()  # the head is gone: the driver would wait a minute for it
        return None
    code = driver.exit_code()
    if code is None:
        # Slurm sends its SIGTERM to the steps, too: unheld, the nodes would end Ray under trials that still save.
        nodes.hold()
        # From here on a SIGTERM is news: a scancel, or the end of a grace time.
        signals.clear()
        driver.terminate()
        code = _await_end(driver, watch, signals, left)
        say("driver killed" if code is None else f"driver saved and ended with exit code {code}")
    driver.kill()
    return code


def _await_end(driver: Driver, watch: JobWatch, signals: list[int], left: TimeLeft) -> int | None:
    code = None
    ends = time.monotonic() + left.to_save_s(watch.cause, watch.killed_soon)
    while code is None and time.monotonic() < ends:
        time.sleep(POLL_S)
        code = driver.exit_code()
        # A controller that was silent has answered: the cause that is now known has another time to save.
        if watch.explain():
            later = time.monotonic() + left.to_save_s(watch.cause, watch.killed_soon)
            ends = min(ends, later) if watch.killed_soon else later  # SIGKILL does not wait
        if watch.cause is not Cause.CANCELLED and signal.SIGTERM in signals:
            watch.classify("SIGTERM while saving")  # a scancel does not wait
            signals.clear()
            ends = min(ends, time.monotonic() + left.to_save_s(watch.cause, watch.killed_soon))
    return code
