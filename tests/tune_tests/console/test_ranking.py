"""``bigbatch studies --sort``: places worked out here by hand, of studies and full runs."""

import json
import math
import re
from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState

from bigbatch.train_loop.config import TrainConfig
from bigbatch.tune.commands.studies import studies_main
from bigbatch.tune.storage.store import StudyStore
from helpers.recorded_studies import epoch_record, recorded_study
from helpers.refusals import refused_command

HOUR = 3600.0


def trial_of(study: optuna.Study, batch: int, values: list[float], hours: float, **attrs: object) -> None:
    """A finished trial of 4 workers whose epochs take ``hours`` each, validation (0.5 s) included."""
    trial = study.ask()
    config = TrainConfig(epochs=len(values)).replace_keys({"batch.global_size": batch, "optimizer.name": "lars"})
    trial.set_user_attr("config", config.to_dict())
    for name, value in attrs.items():
        trial.set_user_attr(name, value)
    for epoch, value in enumerate(values, 1):
        record = epoch_record(epoch, value, seconds=hours * HOUR - 0.5, workers=4)
        trial.set_user_attr(f"epoch/{epoch:05d}", record)
        trial.report(value, epoch)
    study.tell(trial, values[-1])


def study_of(folder: Path, trials: list[tuple], **description: object) -> None:
    store = StudyStore.create(folder, folder.name, {"workers": 4, "max_epochs": 9, **description}, None)
    for one in trials:
        trial_of(store.study, *one)
    store.close()


def places(out: str) -> list[list[str]]:
    """The table's rows: place, run, optimizer, batch, workers, epochs, value, …"""
    rows = [re.split(r"\s{2,}", line.strip()) for line in out.splitlines()]
    return [row for row in rows if re.fullmatch(r"\d+|–", row[0])]


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Trial 0 is slow and good (4 workers × 1 h an epoch), trial 1 fast and worse; the full run between.

    The full run went on with 2 workers after an epoch with 4.
    """
    study_of(tmp_path / "runs" / "s", [(64, [0.5, 0.7, 0.8], 1.0), (512, [0.4, 0.6, 0.65], 0.25)])
    folder = tmp_path / "runs" / "train" / "best-1234"
    folder.mkdir(parents=True)
    records = [
        epoch_record(epoch, value, seconds=0.5 * HOUR - 0.5, workers=workers)
        for epoch, (value, workers) in enumerate(((0.3, 4), (0.75, 2), (0.74, 2)), 1)
    ]
    result = {"schema_version": 1, "config": TrainConfig(epochs=3).to_dict(), "history": records}
    (folder / "result.json").write_text(json.dumps(result))
    (tmp_path / "runs" / "notes").mkdir()
    return tmp_path / "runs"


def test_without_a_cap_the_last_epoch_decides(runs, capsys):
    assert studies_main(["--output", str(runs), "--sort", "val_top1", "--trials"]) == 0
    printed = capsys.readouterr()
    rows = places(printed.out)
    assert [(row[1], row[5], row[6], row[7]) for row in rows] == [
        ("s/trial-0000", "3/3", "80.0 %", "80.0 %"),
        ("train/best-1234", "3/3", "74.0 %", "75.0 %"),
        ("s/trial-0001", "3/3", "65.0 %", "65.0 %"),
    ]
    assert [row[8] for row in rows] == ["12", "4", "3"], "hours × workers: 3 × 4, 0.5 × (4 + 2 + 2), 0.75 × 4"
    assert printed.err == ""


def test_a_cap_changes_the_order(runs, capsys):
    ranked = ["--output", str(runs), "--sort", "val_top1"]
    assert studies_main([*ranked, "--trials", "--cap", "gpu_hours=3"]) == 0
    out = capsys.readouterr().out
    # 3 device hours: two epochs of the full run (3 h), three of trial 1 (3 h), none of trial 0 (4 h each).
    assert [(row[0], row[1].split("/")[-1], row[5], row[6]) for row in places(out)] == [
        ("1", "best-1234", "2/3", "75.0 %"),
        ("2", "trial-0001", "3/3", "65.0 %"),
        ("–", "trial-0000", "0/3", "–"),
    ]
    assert "within 3 device hours" in out and out.count("cut by the cap") == 2
    assert studies_main([*ranked, "--cap", "time=1h30m"]) == 0
    rows = places(capsys.readouterr().out)
    assert [(row[1].split("/")[-1], row[5]) for row in rows] == [("best-1234", "3/3"), ("trial-0001", "3/3")]
    assert studies_main([*ranked[:2], "--sort", "val_loss"]) == 0
    out = capsys.readouterr().out
    assert "validation loss, lower is better, without a cap" in out and places(out)[0][6] == "1.7", "2.5 − 0.8"


def test_a_full_run_that_skips_validations_counts_with_the_last_one_within_the_cap(runs, capsys):
    file = runs / "train" / "best-1234" / "result.json"
    result = json.loads(file.read_text())
    result["history"][1] |= {"val_top1": None, "val_loss": None}
    file.write_text(json.dumps(result))
    assert studies_main(["--output", str(runs), "--sort", "val_top1", "--trials", "--cap", "gpu_hours=3"]) == 0
    assert [(row[1].split("/")[-1], row[5], row[6]) for row in places(capsys.readouterr().out)] == [
        ("trial-0001", "3/3", "65.0 %"),
        ("best-1234", "2/3", "30.0 %"),
        ("trial-0000", "0/3", "–"),
    ]


def test_a_continued_trial_takes_part_once_and_no_number_comes_last(tmp_path, capsys):
    store = StudyStore.create(tmp_path / "s", "s", {"workers": 1}, None)
    for ended in ({"paused_in_epoch": 1}, {"paused_in_epoch": 1}, {}):
        cut = store.study.ask()
        for name, value in {"epoch/00001": epoch_record(1, 0.2 + cut.number / 10), **ended}.items():
            cut.set_user_attr(name, value)
        store.study.tell(cut, state=TrialState.PRUNED)
    trial_of(store.study, 64, [0.2, 0.9], 1.0, continues=0)
    lost = store.study.ask()
    lost.set_user_attr("epoch/00001", epoch_record(1, math.nan))
    store.study.tell(lost, state=TrialState.FAIL)
    store.close()
    assert studies_main(["--output", str(tmp_path), "--sort", "val_top1", "--trials"]) == 0
    assert [(row[1], row[-1]) for row in places(capsys.readouterr().out)] == [
        ("s/trial-0003", "done"),
        ("s/trial-0002", "stopped"),
        ("s/trial-0001", "paused"),
        ("s/trial-0004", "failed"),
    ]


def test_a_study_of_every_state_and_a_damaged_one(tmp_path, capsys):
    recorded_study(tmp_path / "s", 8).close()
    for name in ("torn", "torn2"):
        recorded_study(tmp_path / name, 2).close()
    (tmp_path / "torn" / "study.json").write_text("{")
    (tmp_path / "torn2" / "study.json").unlink()
    (tmp_path / "torn2" / "result.json").write_text("[]")
    assert studies_main(["--output", str(tmp_path), "--sort", "val_top1", "--trials"]) == 0
    printed = capsys.readouterr()
    assert len(places(printed.out)) == 8
    assert [("torn" in line, "left out" in line) for line in printed.err.splitlines()] == [(True, True)] * 2
    assert sum("running" in row[-1] for row in places(printed.out)) == 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--sort", "val_top1", "--cap", "time=soon"), "--cap time is a duration"),
        (("--sort", "val_top1", "--cap", "time"), "--cap time is a duration"),
        (("--sort", "val_top1", "--cap", "gpu_hours=0"), "--cap must be gpu_hours=H"),
        (("--sort", "val_top1", "--cap", "gpu_hours=nan"), "--cap must be gpu_hours=H"),
        (("--sort", "val_top1", "--cap", "gpu_hours=inf"), "--cap must be gpu_hours=H"),
        (("--sort", "val_top1", "--cap", "10"), "Write e.g. gpu_hours=10"),
        (("--sort", "gpu_hours"), "Cap it instead"),
        (("--sort", "val_topp1"), "Did you mean 'val_top1'"),
        (("--sort", "accuracy"), "A metric of your own needs its direction: accuracy:max or accuracy:min"),
        (("--cap", "gpu_hours=4"), "Write --sort val_top1 too"),
        (("--trials",), "Write --sort val_top1 too"),
        (("--sort", "val_top1", "--output", "/nowhere"), "--output must be a folder"),
    ],
)
def test_wrong_input_meets_one_line(runs, capsys, options, words):
    assert words in refused_command(capsys, studies_main, ["--output", str(runs), *options])


def test_nothing_to_rank(tmp_path, capsys):
    refused = refused_command(capsys, studies_main, ["--output", str(tmp_path), "--sort", "val_top1"])
    assert "--sort needs a finished epoch" in refused and "Wait, or write" in refused
