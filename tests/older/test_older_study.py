"""Studies that commit 6dde4d6 searched: they open in another place, are read, and the interrupted one is finished."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import optuna
import pyarrow.parquet as pq
import pytest
import torch
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from bigbatch.cluster.record import study_progress
from bigbatch.search_spaces import registry
from bigbatch.search_spaces.registry import BUILT_IN
from bigbatch.train_loop.config import ConfigError, TrainConfig
from bigbatch.tune.plan.checked_plan import make_plan
from bigbatch.tune.plan.options import SearchOptions
from bigbatch.tune.study.store import StudyStore
from bigbatch.tune.watch.views import trial_views
from helpers.paths import ROOT
from helpers.processes import clean_environment

PRIORS = ROOT / "search_spaces" / "priors_6dde4d6.txt"
TUNE = ROOT / "tune" / "run.py"
STATES = {"finished": ["COMPLETE", "PRUNED", "COMPLETE"], "interrupted": ["COMPLETE", "COMPLETE", "WAITING"]}
"""As the searches left them: by Optuna's trial numbers."""


def study_of(folder: Path) -> optuna.Study:
    """The study as any Optuna user opens it."""
    journal = JournalFileBackend(str(folder / "optuna.journal"))
    return optuna.load_study(study_name=folder.name, storage=JournalStorage(journal))


@pytest.mark.parametrize("name", STATES)
def test_it_opens_in_another_place_with_all_its_trials(copy_of: Callable[[str], Path], name: str) -> None:
    folder = copy_of("runs") / name
    before = study_of(folder)
    store = StudyStore.open(folder, None)
    try:
        assert [trial.state.name for trial in store.study.trials] == STATES[name]
        assert store.study.trials == before.trials, "opening changes nothing"
        shown = trial_views(store.study.get_trials(deepcopy=False))
        assert [len(view.records) for view in shown] == [len(t.intermediate_values) for t in before.trials]
        assert all(view.config is not None for view in shown)
        held_s = json.loads((folder / "ledger" / "0001.json").read_text())["held_device_s"]
        assert store.ledger.held_s == pytest.approx(held_s)
    finally:
        store.close()
    assert (
        sum(state in ("COMPLETE", "PRUNED") for state in STATES[name])
        == study_progress.read_study_progress(folder).finished
    )


@pytest.mark.parametrize("name", STATES)
def test_its_tables_are_written_again_from_the_journal(copy_of: Callable[[str], Path], name: str) -> None:
    folder = copy_of("runs") / name
    tables = ("trials.parquet", "epochs.parquet")
    stored = {table: pq.read_table(folder / table) for table in tables}
    best = (folder / "best.json").read_text()
    for path in (folder / "best.json", *(folder / table for table in tables)):
        path.unlink()
    store = StudyStore.open(folder, None)
    try:
        store.refresh(force=True)
    finally:
        store.close()
    for table, old in stored.items():
        columns = [column for column in old.column_names if not column.startswith("config.")]
        assert pq.read_table(folder / table).select(columns).to_pylist() == old.select(columns).to_pylist(), table
    configs = [TrainConfig.from_dict(json.loads(text)) for text in (best, (folder / "best.json").read_text())]
    assert configs[0] == configs[1]


@pytest.mark.parametrize("name", STATES)
def test_its_best_configuration_is_one(copy_of: Callable[[str], Path], name: str) -> None:
    folder = copy_of("runs") / name
    best = TrainConfig.from_dict(json.loads((folder / "best.json").read_text()))
    trial = study_of(folder).best_trial
    assert (best.model.name, best.data.name, best.batch.global_size) == ("mnasnet_tiny", "digits", 128)
    assert best.optimizer.peak_lr == pytest.approx(0.05 * trial.params["lr_multiplier"])
    assert best == TrainConfig.from_dict(trial.user_attrs["config"])


def test_every_configuration_of_its_trials_is_read(copy_of: Callable[[str], Path]) -> None:
    for folder in copy_of("runs").iterdir():
        table = pq.read_table(folder / "trials.parquet")
        for trial, rate in zip(study_of(folder).trials, table["config.optimizer.peak_lr"].to_pylist(), strict=True):
            assert TrainConfig.from_dict(trial.user_attrs["config"]).optimizer.peak_lr == rate


def test_a_resume_takes_over_its_plan(copy_of: Callable[[str], Path], tiny_network: Path) -> None:
    """Also where the study was moved to: its folder is where it is now. The space is still taken for the same."""
    runpy.run_path(str(tiny_network / "tiny_network.py"))["register"]()
    folder = copy_of("runs") / "interrupted"
    stored = json.loads((folder / "study.json").read_text())
    assert "/" not in json.dumps([value for key, value in stored.items() if key != "sessions"]), "no path is kept"
    plan = make_plan(SearchOptions(study="interrupted", output=str(folder.parent), resume=True))
    assert plan.folder == folder
    for key in ("trials", "max_epochs", "seed", "model"):
        assert getattr(plan, key) == stored[key], key
    assert (plan.strategy, plan.stopping) == (stored["sampler"], stored["scheduler"]), "under their earlier names"


def test_a_space_in_other_words_is_the_same(
    copy_of: Callable[[str], Path], tiny_network: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a commit that rewords the file of a built-in space; another space is still refused."""
    runpy.run_path(str(tiny_network / "tiny_network.py"))["register"]()
    folder = copy_of("runs") / "interrupted"
    resume = SearchOptions(study="interrupted", output=str(folder.parent), resume=True)
    reworded = {name: dataclasses.replace(space, fingerprint="f" * 64) for name, space in BUILT_IN.items()}
    monkeypatch.setattr(registry, "BUILT_IN", reworded)
    assert make_plan(resume).space.fingerprint == "f" * 64
    description = json.loads((folder / "study.json").read_text())
    (folder / "study.json").write_text(json.dumps({**description, "space_fingerprint": "0" * 64}))
    with pytest.raises(ConfigError, match="the space's file has changed"):
        make_plan(resume)


def test_a_users_own_space_that_uses_the_priors_is_the_same_when_they_are_reworded(
    stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "own.py"
    path.write_text((stored / "own_space.txt").read_text())
    # What commit 6dde4d6 noted: SHA-256 of the file and of the priors' file after it.
    noted = hashlib.sha256((path.read_text() + PRIORS.read_text()).encode()).hexdigest()
    monkeypatch.setattr(registry, "_priors_text", lambda: "in other words")
    space = registry.load_space(str(path))
    assert space.fingerprint != noted and noted in space.earlier_fingerprints


@pytest.mark.slow
def test_the_interrupted_trial_goes_on_from_its_checkpoint(
    copy_of: Callable[[str], Path], tiny_network: Path, tmp_path: Path
) -> None:
    folder = copy_of("runs") / "interrupted"
    at = torch.load(folder / "checkpoints" / "trial-0002" / "latest.pt", weights_only=True)["progress"]
    before = study_of(folder).trials
    assert at["epoch"] >= 3 and at["step"] > 0, "in the middle of an epoch"
    done = subprocess.run(
        [sys.executable, str(TUNE), "--resume", "--study", folder.name, "--output", str(folder.parent)],
        cwd=tmp_path,
        env={**clean_environment(), "PYTHONPATH": str(tiny_network)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"trial 2 resumed after epoch {at['epoch']}" in done.stdout
    assert "3 of 3 trials ran to their end" in done.stdout
    after = study_of(folder).trials
    assert [trial.state.name for trial in after] == ["COMPLETE"] * 3
    assert after[:2] == before[:2], "what was finished is as it was"
    epochs = {key: value for key, value in after[2].user_attrs.items() if key.startswith("epoch/")}
    assert len(epochs) == 8
    for key, record in before[2].user_attrs.items():
        if key.startswith("epoch/"):
            assert epochs[key] == record, "no epoch is trained again"
    assert {epochs[f"epoch/{n:05d}"]["resumed_from_epoch"] for n in range(at["epoch"] + 1, 9)} == {at["epoch"]}
    # Its first step was taken by the older code: the epoch's other steps follow it.
    steps = [epochs[f"epoch/{n:05d}"]["optimizer_steps"] for n in range(1, 9)]
    assert {b - a for a, b in zip([0, *steps], steps, strict=False)} == {steps[0]}
    assert not (folder / "checkpoints" / "trial-0002").exists() or after[2].value == max(t.value for t in after)
    sessions = json.loads((folder / "study.json").read_text())["sessions"]
    assert [session["outcome"] for session in sessions] == ["interrupted", "ended"]
    assert sorted(path.name for path in (folder / "ledger").iterdir()) == ["0001.json", "0002.json"]
