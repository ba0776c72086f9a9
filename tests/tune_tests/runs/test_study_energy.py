"""The energy of trials and studies: summed over epochs, and missing where nobody measured it."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from optuna.trial import TrialState, create_trial

from bigbatch.cluster.host.optuna_journal import State
from bigbatch.tune.runs import tables
from bigbatch.tune.runs.energy import J_PER_KWH, energy_in_words, energy_of
from bigbatch.tune.runs.objectives import Objectives
from bigbatch.tune.runs.run import Run


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


def test_a_study_counts_each_run_once() -> None:
    """A continuation's records begin with those of the trial that it continues."""
    measured = {f"epoch/{epoch:05d}": {"epoch": epoch, "gpu_energy_j": J_PER_KWH} for epoch in (1, 2)}
    lacking = {"epoch/00001": {"epoch": 1, "gpu_energy_j": None}}
    trials = [
        Run(0, State.PRUNED, user_attrs={"paused_in_epoch": 1, "epoch/00001": measured["epoch/00001"]}),
        Run(1, State.COMPLETE, user_attrs={"continues": 0, **measured}),
    ]
    assert energy_in_words(trials) == "2 kWh of its trials' GPUs"
    other = Run(2, State.FAIL, user_attrs=lacking)
    assert energy_in_words([*trials, other]) == "2 kWh of its trials' GPUs in 2 of 3 epochs"
    assert energy_in_words([other]) == "not measured"
