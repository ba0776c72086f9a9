"""The energy of an epoch, from a GPU whose counter the test writes."""

from pathlib import Path

import pytest

from bigbatch.train_loop.loop.train import TrainingStopped
from bigbatch.train_loop.reporter import EpochRecord
from helpers.loop_references import run
from helpers.tiny_training import CONFIG, StopsAt

EPOCH_J, STEP_J = 3, 7


def spend(counter: Path, joules: int) -> None:
    counter.write_text(str(int(counter.read_text()) + joules * 1000))


class Spends(StopsAt):
    """Before each question for a stop the GPU uses STEP_J, and after each report EPOCH_J."""

    def __init__(self, counter: Path, polls: int = 0) -> None:
        super().__init__(polls)
        self._counter = counter

    def stop_requested(self) -> bool:
        spend(self._counter, STEP_J)
        return super().stop_requested()

    def report(self, record: EpochRecord) -> None:
        super().report(record)
        spend(self._counter, EPOCH_J)


def test_a_record_has_the_energy_since_the_one_before_also_of_an_epoch_that_was_resumed(counter, built, tmp_path):
    expected = [4 * STEP_J, 4 * STEP_J + EPOCH_J, 4 * STEP_J + EPOCH_J]
    records = run(CONFIG, reporter=Spends(counter))
    assert [record.gpu_energy_j for record in records] == expected
    with pytest.raises(TrainingStopped):
        run(CONFIG, reporter=Spends(counter, 2), checkpoint_dir=tmp_path)  # of 4 steps
    assert [r.gpu_energy_j for r in run(CONFIG, reporter=Spends(counter), checkpoint_dir=tmp_path)] == expected


def test_without_a_gpu_nothing_is_measured(built):
    assert {record.gpu_energy_j for record in run(CONFIG)} == {None}, "not 0"
