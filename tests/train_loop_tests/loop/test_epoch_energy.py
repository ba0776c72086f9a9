"""The energy of an epoch, from a machine whose counters the test writes."""

from pathlib import Path

import pytest
import torch

from bigbatch.train_loop.loop import worker_use
from bigbatch.train_loop.loop.train import TrainingStopped, train
from bigbatch.train_loop.reporter import EpochRecord, ListReporter
from helpers.tiny_training import CONFIG, StopsAt

EPOCH_J, STEP_J = 3, 7


def spend(counter: Path, joules: int) -> None:
    counter.write_text(str(int(counter.read_text()) + joules * 1_000_000))


class SpendsAtReports(ListReporter):
    """After each report the machine uses EPOCH_J."""

    def __init__(self, counter: Path) -> None:
        super().__init__()
        self._counter = counter

    def report(self, record: EpochRecord) -> None:
        super().report(record)
        spend(self._counter, EPOCH_J)


class SpendsAtSteps(StopsAt):
    """Before each question for a stop the machine uses STEP_J."""

    def __init__(self, counter: Path, polls: int) -> None:
        super().__init__(polls)
        self._counter = counter

    def stop_requested(self) -> bool:
        spend(self._counter, STEP_J)
        return super().stop_requested()


def trained(reporter: ListReporter, folder: Path | None = None) -> list[EpochRecord]:
    return list(train(CONFIG, reporter=reporter, checkpoint_dir=folder, device=torch.device("cpu")).history)


def test_a_record_has_the_energy_since_the_one_before(counter, built):
    records = trained(SpendsAtReports(counter))
    assert [record.cpu_energy_j for record in records] == [0.0, EPOCH_J, EPOCH_J]
    assert [record.gpu_energy_j for record in records] == [None] * 3, "no GPU: not measured, not 0"


def test_a_resumed_epoch_keeps_the_energy_of_its_first_part(counter, built, tmp_path):
    with pytest.raises(TrainingStopped):
        trained(SpendsAtSteps(counter, 2), tmp_path / "run")  # of 4 steps
    first = trained(SpendsAtSteps(counter, 1000), tmp_path / "run")[0]
    assert first.cpu_energy_j == 4 * STEP_J


def test_a_machine_without_counters_measures_nothing(built, monkeypatch):
    monkeypatch.setattr(worker_use, "open_processor_energy", lambda: None)
    assert {record.cpu_energy_j for record in trained(ListReporter())} == {None}
