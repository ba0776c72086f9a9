"""``bigbatch export``: what another tool's own reader finds is what Optuna finds in the study."""

import csv
import json
from pathlib import Path

import optuna
import pyarrow.parquet as pq
import pytest
from optuna.trial import TrialState

from bigbatch.tune.commands.export import main
from bigbatch.tune.storage.store import StudyStore
from bigbatch.tune.storage.study_tables import read_tables
from helpers.commands import refused_export
from helpers.recorded_studies import recorded_study


def exported(folder: Path, *options: object) -> None:
    assert main([str(folder), *map(str, options)]) == 0


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as lines:
        return list(csv.DictReader(lines))


def half_line(folder: Path) -> None:
    """What the journal ends with while its driver writes."""
    with (folder / "optuna.journal").open("ab") as lines:
        lines.write(b'{"op_code":6,"trial_id":3,"state":1')


def test_csv_has_each_trial_and_epoch_of_a_running_study(tmp_path):
    store = recorded_study(tmp_path / "s", 8)  # its driver lives and holds the lease
    half_line(store.folder)
    before = (store.folder / "optuna.journal").read_bytes()
    exported(store.folder, "--csv", tmp_path / "out" / "deep")
    assert (store.folder / "optuna.journal").read_bytes() == before
    trials, epochs = rows_of(tmp_path / "out/deep/trials.csv"), rows_of(tmp_path / "out/deep/epochs.csv")
    theirs = store.study.trials
    assert [(int(row["trial"]), row["state"]) for row in trials] == [(t.number, t.state.name) for t in theirs]
    for row, trial in zip(trials, theirs, strict=True):
        assert json.loads(row["parameters"]) == trial.params
        assert row["value"] == "" if trial.state != TrialState.COMPLETE else float(row["value"]) == trial.value
        assert float(row["config.optimizer.peak_lr"]) == trial.user_attrs["config"]["optimizer"]["peak_lr"]
        assert row["ended_because"] == trial.user_attrs.get("ended_because", "")
    curves = {(int(row["trial"]), int(row["epoch"])): float(row["val_top1"]) for row in epochs}
    assert curves == {(t.number, e): value for t in theirs for e, value in t.intermediate_values.items()}
    store.close()


def test_what_is_read_from_the_tables_of_a_study_in_a_database_makes_the_same_tables(tmp_path):
    store = recorded_study(tmp_path / "s", 8, storage=f"sqlite:///{tmp_path / 'd.db'}")
    running = optuna.trial.Trial(store.study, store.study.trials[3]._trial_id)
    running.set_user_attr("epoch/00002", {"epoch": 2, "val_top1": 0.5, "metrics": {"f1": 0.25}})
    for name, value in {"continues": 1, "failure_kind": "lost", "ray_trial_id": "a1", "attempts": 2}.items():
        running.set_user_attr(name, value)
    store.refresh(force=True)
    store.close()
    read = read_tables(tmp_path / "s")
    for name, table in (("trials", read.trials), ("epochs", read.epochs)):
        assert table.equals(pq.read_table(tmp_path / "s" / f"{name}.parquet")), name
    assert read.runs[3].last_of("f1") == 0.25, "a metric of the user's own"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), "Write --csv DIR"),
        (("--csv", "{tmp}/file"), "folders that can be written"),
        (("--tensorboard", "{tmp}/file"), "folders that can be written"),
        (("--csv", ""), "must not be empty"),
    ],
)
def test_wrong_input_meets_one_line(tmp_path, capsys, options, words):
    recorded_study(tmp_path / "s", 1).close()
    (tmp_path / "file").write_text("a file is no folder")
    assert words in refused_export(capsys, tmp_path / "s", *(text.format(tmp=tmp_path) for text in options))


def test_studies_without_trials_and_damaged_ones(tmp_path, capsys):
    StudyStore.create(tmp_path / "empty", "empty", {}, None).close()
    assert "a trial that has begun" in refused_export(capsys, tmp_path / "empty", "--csv", tmp_path / "o")
    recorded_study(tmp_path / "torn", 2).close()
    journal = tmp_path / "torn" / "optuna.journal"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join([*lines[:4], b'{"op_code":\n', *lines[4:]]))
    refusal = refused_export(capsys, tmp_path / "torn", "--csv", tmp_path / "o")
    assert (
        "must be readable" in refusal
        and "damaged at line 5; only what comes before can be read. Restore it from a copy" in refusal
    )
    assert "there is none called" in refused_export(capsys, tmp_path / "nowhere", "--csv", tmp_path / "o")
    recorded_study(tmp_path / "bare", 1).close()
    for path in (tmp_path / "bare").iterdir():
        if path.is_file() and path.name != "study.json":
            path.unlink()
    assert "a trial that has begun" in refused_export(capsys, tmp_path / "bare", "--csv", tmp_path / "o")
    assert not (tmp_path / "o").exists()


def test_an_edited_journal_meets_one_line(tmp_path, capsys):
    store = recorded_study(tmp_path / "s", 4)
    trial = next(t for t in store.study.trials if t.state.name == "RUNNING")
    optuna.trial.Trial(store.study, trial._trial_id).set_user_attr("config", "what is this")
    store.close()
    assert "as a search wrote them" in refused_export(capsys, tmp_path / "s", "--csv", tmp_path / "o")
    with (tmp_path / "s" / "optuna.journal").open("a") as lines:
        lines.write("[1, 2]\n")
    assert "as a search wrote them" in refused_export(capsys, tmp_path / "s", "--csv", tmp_path / "o")


def test_studies_of_one_name_share_no_folder_of_events(tmp_path, capsys):
    for place in ("a", "b"):
        recorded_study(tmp_path / place / "s", 2).close()
    for _ in range(2):
        exported(tmp_path / "a" / "s", "--tensorboard", tmp_path / "tb")
    before = {path: path.read_bytes() for path in (tmp_path / "tb").rglob("*.*")}
    refusal = refused_export(capsys, tmp_path / "b" / "s", "--tensorboard", tmp_path / "tb")
    assert f"'{tmp_path}/tb/s' holds '{tmp_path}/a/s'. Write another DIR" in refusal
    assert {path: path.read_bytes() for path in (tmp_path / "tb").rglob("*.*")} == before


def test_tensorboard_reads_each_trials_curve_and_its_row_for_hparams(tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed (extra: test)")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    store = recorded_study(tmp_path / "s", 8)
    for _ in range(2):  # the second export replaces the files
        exported(store.folder, "--tensorboard", tmp_path / "tb")
    assert len(list((tmp_path / "tb").rglob("*tfevents*"))) == 8, "what TensorBoard reads"
    for trial in store.study.trials:
        read = EventAccumulator(str(tmp_path / "tb" / "s" / f"trial-{trial.number:04d}")).Reload()
        curve = read.Scalars("val_top1")
        assert read.file_version == 2 and {e.step: pytest.approx(e.value) for e in curve} == trial.intermediate_values
        seconds = [e.wall_time - trial.datetime_start.timestamp() for e in curve]
        assert seconds == pytest.approx([2.5 * e.step for e in curve], abs=0.01)
        plugin = {tag: HParamsPluginData.FromString(c) for tag, c in read.PluginTagToContent("hparams").items()}
        start = plugin.pop("_hparams_/session_start_info").session_start_info.hparams
        assert start["rate"].number_value == trial.params["rate"]
        assert start["batch.global_size"].number_value == trial.user_attrs["config"]["batch"]["global_size"]
        assert start["optimizer"].string_value == (trial.params["optimizer"] or "")
        assert list(plugin) == ["_hparams_/session_end_info"] * (
            trial.state in (TrialState.COMPLETE, TrialState.PRUNED)
        )
        if trial.state == TrialState.COMPLETE:
            assert read.Scalars("objective/val_top1")[0].value == pytest.approx(trial.value)
            assert plugin["_hparams_/session_end_info"].session_end_info.status == 1  # success
    store.close()
