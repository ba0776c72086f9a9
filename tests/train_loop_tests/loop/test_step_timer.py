"""A timer of a GPU's steps, against a stream of events whose times the test knows."""

from __future__ import annotations

import pytest
import torch

from bigbatch.train_loop.loop.chronometer import StepTimer


class Stream:
    """A device's time line in milliseconds. An event gets its time when the device reaches it, as CUDA's do."""

    def __init__(self) -> None:
        self.now_ms, self.waits = 0.0, 0
        self.given: list[float | Event] = []

    def work(self, ms: float) -> None:
        """Give the device something to do. The host goes on."""
        self.given.append(ms)

    def synchronize(self, *_: object) -> None:
        self.waits += 1
        for item in self.given:
            if isinstance(item, Event):
                item.at_ms = self.now_ms
            else:
                self.now_ms += item
        self.given = []


class Event:
    """As torch.cuda.Event."""

    def __init__(self, *, enable_timing: bool = False) -> None:
        assert enable_timing
        self.at_ms: float | None = None

    def record(self, stream: Stream) -> None:
        stream.given.append(self)

    def elapsed_time(self, end: Event) -> float:
        assert self.at_ms is not None and end.at_ms is not None, "the device has not come so far"
        return end.at_ms - self.at_ms


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> Stream:
    stream = Stream()
    fake = {"Event": Event, "current_stream": lambda _: stream, "synchronize": stream.synchronize}
    for name, value in fake.items():
        monkeypatch.setattr(torch.cuda, name, value)
    return stream


def test_a_gpu_is_waited_for_after_the_last_step_alone(stream: Stream) -> None:
    """The host gives all work at once; the device's times are those of its work, in seconds."""
    timer = StepTimer(torch.device("cuda", 0))
    for number in range(3):
        with timer.step():
            with timer.part("data_s"):
                pass
            for phase, ms in (("transfer", 1.0), ("forward", 8.0), ("backward", 16.0 + number), ("optimizer", 4.0)):
                with timer.phase(phase):
                    stream.work(ms)
            stream.work(2.0)
    assert stream.waits == 0
    steps = timer.take()
    assert stream.waits == 1
    assert [times["backward"] for times in steps] == [0.016, 0.017, 0.018]
    assert [times["step"] for times in steps] == pytest.approx([0.031, 0.032, 0.033])
    assert [times["other"] for times in steps] == pytest.approx([0.002] * 3)
    assert {times["data"] for times in steps} == {0.0}, "the device did not wait for the images that it had"


def test_other_parts_of_an_epoch_are_no_phases(stream: Stream) -> None:
    timer = StepTimer(torch.device("cuda", 0))
    with timer.step(), timer.part("step_s"):
        stream.work(3.0)
    (times,) = timer.take()
    assert times["other"] == pytest.approx(times["step"]) == pytest.approx(0.003)
    assert timer.seconds["step_s"] > 0
