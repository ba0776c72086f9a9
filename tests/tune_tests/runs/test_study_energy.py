"""The energy of trials and studies: read, summed over sessions, and missing where nobody measured it."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from optuna.trial import TrialState, create_trial

from bigbatch.tune.budget.ledger import DeviceSeconds, Ledger, read_ledger
from bigbatch.tune.runs import tables
from bigbatch.tune.runs.energy import J_PER_KWH, StudyEnergy, energy_of
from bigbatch.tune.runs.objectives import Objectives
from helpers.conducted import MemoryStore, curve_search, record_of


def session(folder: Path) -> Ledger:
    ledger = Ledger(folder)
    ledger.hold(2)
    return ledger


def test_sessions_add_up(tmp_path: Path) -> None:
    for number in range(2):
        ledger = session(tmp_path / "ledger")
        ledger.epoch_ended(0, {"gpu_energy_j": 100.0})
        ledger.epoch_ended(number, {"gpu_energy_j": 10.0})
        ledger.close()
    energy = read_ledger(tmp_path / "ledger").energy
    assert energy.trials_gpu_j == {0: 210.0, 1: 10.0}
    assert (energy.epochs, energy.epochs_measured) == (4, 4)
    assert Ledger(tmp_path / "ledger").used().energy == energy, "the next session knows it"


def test_what_nobody_measured_is_not_invented(tmp_path: Path) -> None:
    folder = tmp_path / "ledger"
    ledger = session(folder)
    ledger.epoch_ended(0, {"gpu_energy_j": None})
    ledger.close()
    # A job's own entry has no energy.
    (folder / "job-7.0.json").write_text('{"schema_version": 1, "held_device_s": 10.0, "trial_device_s": {}}')
    assert read_ledger(folder).energy.words() == "not measured"
    measured = session(folder)
    measured.epoch_ended(1, {"gpu_energy_j": J_PER_KWH})
    measured.close()
    assert read_ledger(folder).energy.words() == "1 kWh of its trials' GPUs in 1 of 2 epochs"


def test_another_drivers_energy_comes_with_its_entry() -> None:
    used = read_ledger(Path("never-made"))
    used.energy.epoch_ended(4, {"gpu_energy_j": 2.0})
    read = DeviceSeconds.from_dict(json.loads(json.dumps(used.to_dict())))
    assert read is not None and read.energy.trials_gpu_j == {4: 2.0}


@pytest.mark.parametrize(
    ("joules", "total"), [([1.0, 2.5], 3.5), ([1.0, None], None), ([None, None], None), ([], None), ([0.0], 0.0)]
)
def test_a_trials_energy_is_that_of_all_its_epochs(
    joules: list[float | None], total: float | None, tmp_path: Path
) -> None:
    records = [{"epoch": number, "val_top1": 0.5, "gpu_energy_j": value} for number, value in enumerate(joules, 1)]
    assert energy_of(records) == total
    attrs = {f"epoch/{record['epoch']:05d}": record for record in records}
    trial = create_trial(state=TrialState.COMPLETE, value=0.5, user_attrs=attrs)
    tables.write_trials([trial], tmp_path / "trials.parquet", Objectives())
    (row,) = pq.read_table(tmp_path / "trials.parquet").to_pylist()
    assert row["gpu_energy_j"] == total


def test_the_manager_counts_each_reported_epoch_once(tmp_path: Path) -> None:
    search = curve_search("random", "none", lambda: MemoryStore(tmp_path, None))
    search.step()
    live = search.busy["A"].live
    for epoch in (1, 2, 2):  # a resumed run sends its past epochs again
        search.manager.take_in(
            "A", {**record_of({**live.trial.params, "lr_multiplier": 1.0}, epoch), "gpu_energy_j": 8.0}
        )
    assert search.store.ledger.used().energy.trials_gpu_j == {live.trial.number: 16.0}


def test_words_have_units() -> None:
    assert StudyEnergy({0: 3.6e6, 1: 1.8e6}, 5, 5).words() == "1.5 kWh of its trials' GPUs"
