"""How long a driver may save itself, with a clock of the test's own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from bigbatch.cluster.job import watch as watch_module
from bigbatch.cluster.job.grant import TimeLeft
from bigbatch.cluster.job.policy import Cause
from bigbatch.cluster.job.watch import POLL_S, end_driver


class Clock:
    """In place of the module ``time``: a sleep moves it on and lasts no time."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    time = monotonic

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@dataclass
class Watch:
    """Slurm's word on a signal: ``cause`` from ``answers_after_s`` on, unexplained until then."""

    clock: Clock
    answers_after_s: float
    answer: Cause
    killed_soon: bool
    cause: Cause = Cause.UNEXPLAINED
    began: float = field(init=False)

    def __post_init__(self) -> None:
        self.began = self.clock.now

    def explain(self) -> bool:
        if self.cause is not Cause.UNEXPLAINED or self.clock.now - self.began < self.answers_after_s:
            return False
        self.cause = self.answer
        return True


class NeverSaves:
    """A driver that goes on saving."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self.killed_at = clock, 0.0

    def exit_code(self) -> None:
        return None

    def terminate(self) -> None:
        pass

    def kill(self) -> None:
        self.killed_at = self._clock.now


class Nodes:
    def hold(self) -> None:
        pass


@pytest.mark.parametrize("answers_after_s", [0.5, 4.0, 7.0, 1e9])
def test_a_late_answer_does_not_give_the_driver_time_that_slurm_does_not_give(
    answers_after_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm kills 12 s after its signal: four seconds before, the driver is ended, whenever Slurm explains itself."""
    clock = Clock()
    monkeypatch.setattr(watch_module, "time", clock)
    driver, watch = NeverSaves(clock), Watch(clock, answers_after_s, Cause.PREEMPTED, killed_soon=True)
    said: list[str] = []
    parts: tuple[Any, ...] = (driver, watch, Nodes(), [], TimeLeft(None, 120.0, 12.0), said.append)
    assert end_driver(*parts) is None
    assert said == ["driver killed"]
    assert 8.0 <= driver.killed_at - 1000.0 < 8.0 + 3 * POLL_S


def test_a_driver_that_slurm_does_not_kill_soon_has_its_whole_time_from_the_answer_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    monkeypatch.setattr(watch_module, "time", clock)
    driver, watch = NeverSaves(clock), Watch(clock, 4.0, Cause.TIME_LIMIT, killed_soon=False)
    parts: tuple[Any, ...] = (driver, watch, Nodes(), [], TimeLeft(None, 120.0, 12.0), print)
    assert end_driver(*parts) is None
    assert 4.0 + 60.0 <= driver.killed_at - 1000.0 < 4.0 + 60.0 + 3 * POLL_S
