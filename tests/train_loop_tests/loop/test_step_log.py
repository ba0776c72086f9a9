"""``--log-every-steps``: loss, right answers and rates of the steps between two lines; each step once."""

import dataclasses
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from bigbatch.train_loop.config import ConfigError, ScheduleConfig
from bigbatch.train_loop.distributed import World
from bigbatch.train_loop.loop.metrics import MetricSums
from bigbatch.train_loop.loop.step_log import StepLog
from bigbatch.train_loop.loop.train import TrainingStopped
from bigbatch.train_loop.optim.schedules import learning_rate
from bigbatch.train_loop.progress import StepInterval, StepRecord, StepsFile, StepsReader, read_interval, steps_file
from bigbatch.train_loop.reporter import EpochRecord, PrintReporter
from helpers.loop_references import run
from helpers.tiny_training import CONFIG, install

STEPS = 4  # of an epoch, three epochs


class Logs(PrintReporter):
    """Keeps what is logged; asks for a stop when it is asked for the n-th time."""

    def __init__(self, every: str, steps: StepsFile | None = None, polls: int = 0) -> None:
        super().__init__(file=io.StringIO(), log_every_steps=every, steps=steps)
        self.logged: list[StepRecord] = []
        self.records: list[EpochRecord] = []
        self.left = polls

    def steps_logged(self, records: Sequence[StepRecord]) -> None:
        self.logged += records
        super().steps_logged(records)

    def report(self, record: EpochRecord) -> None:
        self.records.append(record)
        super().report(record)

    def stop_requested(self) -> bool:
        self.left -= 1
        return self.left == 0

    @property
    def lines(self) -> list[str]:
        assert isinstance(self._file, io.StringIO)
        return [line for line in self._file.getvalue().splitlines() if ": step" in line]


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, int, int]]:
    """(loss × images, right answers, images) of each micro-batch, as the loop got them."""
    install(monkeypatch.setattr)
    found: list[tuple[float, int, int]] = []
    real = MetricSums.add

    def add(self: MetricSums, loss: torch.Tensor, logits: Any, labels: Any) -> None:
        if torch.is_grad_enabled():  # no validation
            right = int((logits.argmax(1) == labels).sum())
            found.append((loss.double().item() * len(labels), right, len(labels)))
        real(self, loss, logits, labels)

    monkeypatch.setattr(MetricSums, "add", add)
    return found


def check(logged: Sequence[StepRecord], numbers: Sequence[int], seen: Sequence[tuple[float, int, int]]) -> None:
    """The records are of the steps ``numbers``, each over the steps since the one before: two micro-batches a step."""
    assert [record.number for record in logged] == list(numbers)
    before = 0
    for record in logged:
        assert (record.epoch, record.step) == ((record.number - 1) // STEPS + 1, (record.number - 1) % STEPS + 1)
        loss, right, images = (sum(column) for column in zip(*seen[2 * before : 2 * record.number], strict=True))
        assert record.train_loss == pytest.approx(loss / images, rel=1e-12)
        assert record.train_top1 == pytest.approx(right / images, rel=1e-12)
        expected = learning_rate(
            record.number - 1, total_steps=12, steps_per_epoch=STEPS, peak_lr=0.2, schedule=ScheduleConfig("linear")
        )
        assert record.learning_rate == expected and record.images_per_s > 0 and record.steps == STEPS
        before = record.number


@pytest.mark.parametrize(
    ("every", "numbers"),
    [
        ("5", [5, 10]),
        ("50%", range(2, 13, 2)),
        ("10%", range(1, 13)),  # an epoch has but four steps
        ("100%", [4, 8, 12]),
        ("7", [7]),
        ("0", []),
        ("", []),
    ],
)
def test_each_line_is_over_the_steps_since_the_one_before(every: str, numbers: Sequence[int], seen: Any) -> None:
    reporter = Logs(every)
    run(CONFIG, reporter=reporter)
    check(reporter.logged, numbers, seen)
    assert len(reporter.lines) == len(numbers)
    if every == "100%":  # an epoch's own record
        for logged, record in zip(reporter.logged, reporter.records, strict=True):
            assert logged.train_loss == pytest.approx(record.train_loss, rel=1e-12)
            assert logged.train_top1 == pytest.approx(record.train_top1, rel=1e-12)


@pytest.mark.parametrize(("every", "polls"), [*(("3", polls) for polls in range(3, 9)), ("50%", 1), ("50%", 6)])
def test_a_stopped_run_goes_on_to_the_same_lines(every: str, polls: int, seen: Any, tmp_path: Path) -> None:
    file = tmp_path / "train.steps"
    first = Logs(every, StepsFile(file), polls)
    with pytest.raises(TrainingStopped):
        run(CONFIG, reporter=first, checkpoint_dir=tmp_path)
    second = Logs(every, StepsFile(file))
    run(CONFIG, reporter=second, checkpoint_dir=tmp_path)
    numbers = range(3, 13, 3) if every == "3" else range(2, 13, 2)
    check(first.logged + second.logged, numbers, seen)
    assert [record.number for record in StepsReader(file).new()] == list(numbers)


def test_what_a_checkpoint_had_not_logged_goes_to_the_gpu() -> None:
    """Without one: torch computes no values here, but refuses to add what lies on two devices."""
    with FakeTensorMode():
        sums = torch.zeros(3, dtype=torch.float64, device="cuda:0")
        log = StepLog(None, World(0, 1, sums.device), sums, before=[2.5, 3.0, 8.0])
    assert log._carried.device == sums.device


def test_a_killed_run_trains_steps_again_and_logs_none_twice(seen: Any, tmp_path: Path) -> None:
    class Killed(Logs):
        def steps_logged(self, records: Sequence[StepRecord]) -> None:
            super().steps_logged(records)
            if records[-1].number == 7:
                raise KeyboardInterrupt  # the only checkpoint is from the end of epoch 1, step 4

    file = tmp_path / "train.steps"
    first = Killed("1", StepsFile(file))
    with pytest.raises(KeyboardInterrupt):
        run(CONFIG, reporter=first, checkpoint_dir=tmp_path, checkpoint_every_s=0)
    with file.open("a") as lines:
        lines.write('{"number": 8, "epo')  # what the kill cut off
    second = Logs("1", StepsFile(file))
    run(CONFIG, reporter=second, checkpoint_dir=tmp_path, checkpoint_every_s=0)
    assert [record.number for record in second.logged] == list(range(5, 13)), "the loop does not know the file"
    assert [record.number for record in StepsReader(file).new()] == list(range(1, 13))
    steps = [int(line.partition("step ")[2].split()[0]) for line in first.lines + second.lines]
    assert steps == [1, 2, 3, 4] * 3


def test_targets_that_are_no_classes_and_losses_that_are_not_finite_have_no_value(tmp_path: Path) -> None:
    record = StepRecord(10, 1, 10, 40, None, None, 0.1, 812.0)
    assert str(record) == "epoch 1: step 10 of 40  lr 0.1  812 images/s"
    assert str(dataclasses.replace(record, train_loss=1.5, train_top1=0.25)) == (
        "epoch 1: step 10 of 40  train loss 1.5000 top-1 25.00%  lr 0.1  812 images/s"
    )
    file = steps_file(tmp_path / "trial-0001.log")
    assert StepsFile(file).append([record]) == [record] and file.name == "trial-0001.steps"
    assert json.loads(file.read_text())["train_loss"] is None
    assert StepsReader(file).new() == [record]


def test_a_reader_takes_each_record_once_and_leaves_what_is_being_written(tmp_path: Path) -> None:
    file = tmp_path / "a.steps"
    reader, records = StepsReader(file), [StepRecord(n, 1, n, 9, 1.0, 0.5, 0.1, 10.0) for n in range(1, 4)]
    assert reader.new() == []
    writer = StepsFile(file)
    writer.append(records[:2])
    assert reader.new() == records[:2] and reader.new() == []
    with file.open("a") as lines:
        lines.write('{"numb')
    assert reader.new() == []
    assert StepsFile(file).append(records) == records[2:]
    assert reader.new() == records[2:]


@pytest.mark.parametrize("steps", [10, 15, 97, 1251])
def test_a_tenth_gives_ten_lines_and_the_last_at_the_epochs_end(steps: int) -> None:
    due = [step for step in range(1, steps + 1) if StepInterval(part=0.1).due(3, step, steps)]
    assert len(due) == 10 and due[-1] == steps


@pytest.mark.parametrize("text", ["-5", "2.5", "often", "0%", "150%", "nan", "1e3"])
def test_another_value_is_refused_in_one_line(text: str) -> None:
    rule = "--log-every-steps must be a number of steps or a part.*Write e.g. 50, or 10%"
    with pytest.raises(ConfigError, match=rule):
        read_interval(text)
