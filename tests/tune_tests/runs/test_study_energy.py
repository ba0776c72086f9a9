"""The energy of trials and studies: read, summed over sessions, and missing where nobody measured it."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from optuna.trial import TrialState, create_trial

from bigbatch.train_loop.host.device_use import ProcessorEnergy
from bigbatch.tune.budget.ledger import Ledger, read_ledger
from bigbatch.tune.runs import tables
from bigbatch.tune.runs.energy import J_PER_KWH, StudyEnergy, energy_of
from bigbatch.tune.runs.objectives import Objectives
from bigbatch.tune.storage.drivers import DriverEntry, entries
from helpers.conducted import MemoryStore, curve_search, record_of


@pytest.fixture
def counter(tmp_path: Path) -> Path:
    """A processor's counter, as /sys/class/powercap shows it."""
    folder = tmp_path / "powercap" / "intel-rapl:0"
    folder.mkdir(parents=True)
    for name, text in (("name", "package-0"), ("max_energy_range_uj", "1000000000"), ("energy_uj", "0")):
        (folder / name).write_text(f"{text}\n")
    return folder / "energy_uj"


def session(folder: Path, counter: Path | None) -> Ledger:
    ledger = Ledger(folder)
    ledger.watch_processors(ProcessorEnergy(counter.parent.parent) if counter else None)
    ledger.hold(2)
    return ledger


def test_sessions_add_up(tmp_path: Path, counter: Path) -> None:
    for number, joules in enumerate((5.0, 7.5)):
        ledger = session(tmp_path / "ledger", counter)
        counter.write_text(str(int(counter.read_text()) + int(joules * 1e6)))
        ledger.epoch_ended(0, {"gpu_energy_j": 100.0})
        ledger.epoch_ended(number, {"gpu_energy_j": 10.0})
        ledger.close()
        counter.write_text(str(int(counter.read_text()) + 77_000_000))  # between sessions nothing is the study's
    energy = read_ledger(tmp_path / "ledger").energy
    assert energy.processors_j == 12.5
    assert energy.trials_gpu_j == {0: 210.0, 1: 10.0}
    assert (energy.epochs, energy.epochs_measured) == (4, 4)
    assert Ledger(tmp_path / "ledger").used().energy == energy, "the next session knows it"


def test_a_kill_loses_only_what_was_not_written(tmp_path: Path, counter: Path) -> None:
    """The first entry of a session is written at once."""
    ledger = session(tmp_path / "ledger", counter)
    counter.write_text("3000000")
    assert ledger.used().energy.processors_j == 3.0
    killed = read_ledger(tmp_path / "ledger").energy
    assert killed.processors_j == 0.0 and killed.trials_gpu_j == {}


def test_what_nobody_measured_is_not_invented(tmp_path: Path, counter: Path) -> None:
    ledger = session(tmp_path / "ledger", None)
    ledger.epoch_ended(0, {"gpu_energy_j": None})
    ledger.close()
    assert read_ledger(tmp_path / "ledger").energy.words() == "energy: not measured"
    measured = session(tmp_path / "ledger", counter)
    counter.write_text("5000000")
    measured.epoch_ended(1, {"gpu_energy_j": J_PER_KWH})
    measured.close()
    energy = read_ledger(tmp_path / "ledger").energy
    assert energy.processors_j is None, "one session's are not the study's"
    assert energy.words() == "energy: 1 kWh of its trials' GPUs in 1 of 2 epochs"


def test_sessions_of_older_versions_say_nothing_of_energy(tmp_path: Path, counter: Path) -> None:
    folder = tmp_path / "ledger"
    folder.mkdir()
    old = {"schema_version": 1, "held_device_s": 10.0, "trial_device_s": {"0": 8.0}}
    (folder / "0001.json").write_text(json.dumps(old))
    (folder / "job-7.0.json").write_text(json.dumps({**old, "trial_device_s": {}}))
    assert read_ledger(folder).energy.processors_j is None
    (folder / "0001.json").unlink()
    session(folder, counter).close()
    assert read_ledger(folder).energy.processors_j == 0.0, "a job's own entry is no session of a driver"


def test_another_drivers_energy_comes_with_its_entry() -> None:
    ledger = read_ledger(Path("never-made"))
    ledger.energy.epoch_ended(4, {"gpu_energy_j": 2.0})
    entry = DriverEntry("k", "r", 1, "folder", "words", 1.0, False, 0.0, ledger)
    (read,) = entries({"driver/k": json.loads(json.dumps(entry.to_dict()))})
    assert read.used.energy.trials_gpu_j == {4: 2.0}


@pytest.mark.parametrize(
    ("joules", "total"), [([1.0, 2.5], 3.5), ([1.0, None], None), ([None, None], None), ([], None), ([0.0], 0.0)]
)
def test_a_trials_energy_is_that_of_all_its_epochs(
    joules: list[float | None], total: float | None, tmp_path: Path
) -> None:
    records = [{"epoch": number, "val_top1": 0.5, "gpu_energy_j": value} for number, value in enumerate(joules, 1)]
    assert energy_of("gpu_energy_j", records) == total
    attrs = {f"epoch/{record['epoch']:05d}": record for record in records}
    trial = create_trial(state=TrialState.COMPLETE, value=0.5, user_attrs=attrs)
    tables.write_trials([trial], tmp_path / "trials.parquet", Objectives())
    (row,) = pq.read_table(tmp_path / "trials.parquet").to_pylist()
    assert row["gpu_energy_j"] == total and row["cpu_energy_j"] is None


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
    energy = StudyEnergy({0: 3.6e6, 1: 1.8e6}, 5, 5, 7.2e5)
    assert energy.words() == (
        "energy: 1.5 kWh of its trials' GPUs, 0.2 kWh of this machine's processors, whoever used them"
    )
