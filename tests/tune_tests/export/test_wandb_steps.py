"""``--log-every-steps``: the steps that workers log are in W&B's real offline file."""

from pathlib import Path

import pytest

from bigbatch.train_loop.config import ConfigError, TrainConfig
from bigbatch.train_loop.progress import StepRecord, StepsFile, steps_file
from bigbatch.tune.commands.wandb_sync import wandb_sync_main
from bigbatch.tune.export.wandb_log import WandbObserver
from bigbatch.tune.plan.checked_plan import check_option_values
from bigbatch.tune.plan.options import SearchOptions
from bigbatch.tune.runs.observer import TrialView
from helpers.recorded_studies import epoch_record
from helpers.waiting import wait_until
from helpers.wandb_server import WandbServer


def sent(server: WandbServer, folder: Path, name: str, lines: int) -> list[dict]:
    """What W&B's own program sends of a run's file, in order. Its other one writes the file some time after the end."""

    def all_of_it() -> bool:
        return wandb_sync_main([str(folder)]) == 0 and len(server.runs[name].lines) == lines

    wait_until(all_of_it, "not all of it came")
    return server.runs[name].history


def step(number: int) -> StepRecord:
    epoch = (number - 1) // 10 + 1
    return StepRecord(number, epoch, number - 10 * (epoch - 1), 10, 1 / number, 0.5, 0.1, 99.0)


def begun(observer: WandbObserver, number: int) -> TrialView:
    """It was interrupted after its first epoch: the new file begins with that."""
    trial = TrialView(number, {"rate": 0.5}, TrainConfig(epochs=3), records=[epoch_record(1, 0.1)])
    observer.trial_started(trial)
    return trial


def test_the_offline_files_have_the_logged_steps_and_the_first_one_the_packages_for_all(
    tmp_path: Path, server: WandbServer
) -> None:
    logs = [tmp_path / f"trial-{number:04d}.log" for number in range(2)]
    observer = WandbObserver("offline", "s", tmp_path, logs=logs.__getitem__)
    first = begun(observer, 0)
    for epoch in (2, 3):
        observer.epoch_ended(first, epoch_record(epoch, epoch / 10))
    writer = StepsFile(steps_file(logs[1]))
    writer.append([step(5), step(10), step(15)])  # the last one is of its second epoch
    second = begun(observer, 1)
    writer.append([step(20), step(25)])
    observer.steps_done(second)  # the 25th waits for the record of the second epoch
    second.records.append(epoch_record(2, 0.2))
    observer.epoch_ended(second, second.records[-1])
    observer.steps_done(second)
    writer.append([step(30)])
    observer.epoch_ended(second, epoch_record(3, 0.3))
    for trial in (first, second):
        trial.state = "COMPLETE"
        observer.trial_ended(trial)
    history = {row["epoch"]: row for row in sent(server, tmp_path, "s-0000", 3)}
    assert [history[epoch]["val_top1"] for epoch in (1, 2, 3)] == [0.1, 0.2, 0.3]
    rows = sent(server, tmp_path, "s-0001", 6)
    assert [row["_step"] for row in rows] == [5, 10, 15, 20, 25, 30]
    assert [row["step/train_loss"] for row in rows] == [1 / number for number in (5, 10, 15, 20, 25, 30)]
    assert [row.get("val_top1") for row in rows] == [None, 0.1, None, 0.2, None, 0.3]
    lists = [next(tmp_path.glob(f"wandb/offline-run-*-s-000{n}")) / "files" / "requirements.txt" for n in range(2)]
    wait_until(lambda: lists[0].exists() and "torch==" in lists[0].read_text(), "the first run has no list")
    assert not lists[1].exists()


def test_the_option_is_checked() -> None:
    with pytest.raises(ConfigError, match="--log-every-steps must be .*got 'often'. Write e.g. 50, or 10%"):
        check_option_values(SearchOptions(log_every_steps="often"))


def test_a_resumed_study_keeps_it() -> None:
    kept = SearchOptions(wandb="offline", log_every_steps="10%").kept()
    assert SearchOptions(resume=True).over(kept).log_every_steps == "10%"
    assert SearchOptions(resume=True, log_every_steps="0").over(kept).log_every_steps == "0"
