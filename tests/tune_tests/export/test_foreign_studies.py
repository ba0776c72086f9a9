"""``bigbatch export`` of studies that somebody else made or damaged: never beside the target, never over another's."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import optuna
import pytest

from bigbatch.tune.commands.export import main
from helpers.commands import refused_export
from helpers.recorded_studies import recorded_study


def named(folder: Path, name: str) -> None:
    """Give the study in ``folder`` any name, as an edited study.json may."""
    about = json.loads((folder / "study.json").read_text())
    (folder / "study.json").write_text(json.dumps({**about, "name": name}))


@pytest.mark.parametrize("name", ["../../outside", "{tmp}/outside", "..", "a\\b\nc"])
def test_a_name_with_a_path_stays_in_the_target(tmp_path, name):
    store = recorded_study(tmp_path / "runs" / "s", 4)
    store.refresh(force=True)
    store.close()
    (tmp_path / "runs" / "s" / "optuna.journal").unlink()  # else the study is not found under its new name
    named(tmp_path / "runs" / "s", name.format(tmp=tmp_path))
    assert main([str(tmp_path / "runs" / "s"), "--tensorboard", str(tmp_path / "out" / "tb")]) == 0
    assert len(list((tmp_path / "out" / "tb").glob("*/trial-*/*tfevents*"))) == 4
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "runs"]


@pytest.mark.parametrize("option", ["--sqlite", "--tensorboard", "--mlflow"])
def test_two_studies_of_one_name_do_not_replace_each_other(tmp_path, capsys, option):
    if option == "--mlflow":
        pytest.importorskip("mlflow", reason="mlflow-skinny is not installed (extra: test)")
    recorded_study(tmp_path / "one" / "s", 4).close()
    recorded_study(tmp_path / "two" / "s", 1).close()
    target = tmp_path / "copy"
    assert main([str(tmp_path / "one" / "s"), option, str(target)]) == 0
    capsys.readouterr()
    error = refused_export(capsys, tmp_path / "two" / "s", option, target)
    assert str(tmp_path / "one" / "s") in error and f"Write another {option}" in error
    if option == "--sqlite":
        assert len(optuna.load_study(study_name="s", storage=f"sqlite:///{target}").trials) == 4
    shutil.move(tmp_path / "one", tmp_path / "moved")  # the same study, at another place
    assert main([str(tmp_path / "moved" / "s"), option, str(target)]) == 0


def test_a_study_without_journal_and_tables_meets_one_line(tmp_path, capsys):
    recorded_study(tmp_path / "s", 1).close()
    for path in (tmp_path / "s").iterdir():
        if path.is_file() and path.name != "study.json":
            path.unlink()
    assert "trials.parquet is not in" in refused_export(capsys, tmp_path / "s", "--csv", tmp_path / "o")


def test_an_edited_journal_meets_one_line(tmp_path, capsys):
    store = recorded_study(tmp_path / "s", 4)
    trial = next(t for t in store.study.trials if t.state.name == "RUNNING")
    optuna.trial.Trial(store.study, trial._trial_id).set_user_attr("config", "what is this")
    store.close()
    assert "as a search wrote them" in refused_export(capsys, tmp_path / "s", "--csv", tmp_path / "o")
    with (tmp_path / "s" / "optuna.journal").open("a") as lines:
        lines.write("[1, 2]\n")
    assert "as a search wrote them" in refused_export(capsys, tmp_path / "s", "--csv", tmp_path / "o")


def test_mlflow_adds_nothing_to_a_database_of_optuna_or_to_notes(tmp_path, capsys):
    recorded_study(tmp_path / "s", 1).close()
    searched, notes = tmp_path / "searched.db", tmp_path / "notes.txt"
    optuna.create_study(study_name="s", storage=f"sqlite:///{searched}").optimize(lambda _: 1.0, n_trials=2)
    notes.write_text("these are my notes\n" * 100)
    for path in (searched, notes):
        before = path.read_bytes()
        assert "which is something else" in refused_export(capsys, tmp_path / "s", "--mlflow", path)
        assert path.read_bytes() == before
