"""A search with data, model, loss, metric and objective of a user's own on a real Ray: killed and resumed."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from optuna.trial import TrialState

from helpers.paths import ROOT
from helpers.processes import wait_gone
from helpers.searches import Search, load

FILE = ROOT / "examples" / "segmentation.py"
OWN = ("--data", f"{FILE}:data", "--model", f"{FILE}:net", "--loss", f"{FILE}:dice", "--metric", f"{FILE}:miou")


@pytest.mark.exhaustive
def test_a_killed_search_for_a_metric_of_ones_own_goes_on(tmp_path: Path) -> None:
    words = ("--objective", "val_miou:max", "--study", "s", "--trials", 2, "--max-epochs", 20, "--batch", 32)
    search = Search(*OWN, *words, "--stopping", "none", "--set", "data.options.size=16", cwd=tmp_path)
    search.wait_for(r"epoch 2/20")
    search.process.kill()
    search.end()
    wait_gone(search.ray_folder)
    study = tmp_path / "runs" / "s"
    before = {t.number: t.intermediate_values for t in load(study).trials}
    assert any(before.values())

    again = Search("--resume", "--study", "s", cwd=tmp_path)
    assert again.end() == 0, again.stderr()
    trials = [t for t in load(study).trials if t.state != TrialState.WAITING]  # published recipes that had no turn
    assert [t.state for t in trials] == [TrialState.COMPLETE] * 2
    rows = pq.read_table(study / "epochs.parquet").to_pylist()
    for trial in trials:
        own = [row for row in rows if row["trial"] == trial.number]
        assert [row["epoch"] for row in own] == [*range(1, 21)]
        miou = [dict(row["metrics"])["val_miou"] for row in own]
        assert trial.value == miou[-1] and trial.intermediate_values == dict(enumerate(miou, start=1))
        assert before.get(trial.number, {}).items() <= trial.intermediate_values.items()
        assert {row["val_top1"] for row in own} == {None}
    assert max(t.value for t in trials) > 0.33  # a third: everything is background
    assert "validation miou" in "\n".join(again.lines)
