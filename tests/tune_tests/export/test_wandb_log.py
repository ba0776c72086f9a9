"""The epochs of a search's trials are in W&B's real offline files."""

from pathlib import Path

from bigbatch.cluster.host.optuna_journal import State
from bigbatch.train_loop.config import TrainConfig
from bigbatch.tune.commands.wandb_sync import wandb_sync_main
from bigbatch.tune.export.wandb_log import WandbObserver
from bigbatch.tune.runs.objectives import Objectives
from bigbatch.tune.runs.run import Run
from helpers.recorded_studies import epoch_record, recorded_run
from helpers.waiting import wait_until
from helpers.wandb_server import WandbServer


def sent(server: WandbServer, folder: Path, name: str, lines: int) -> list[dict]:
    """What W&B's own program sends of a run's file, in order. Its other one writes the file some time after the end."""

    def all_of_it() -> bool:
        return wandb_sync_main([str(folder)]) == 0 and len(server.runs[name].lines) == lines

    wait_until(all_of_it, "not all of it came")
    return server.runs[name].history


def begun(observer: WandbObserver, number: int) -> Run:
    """It was interrupted after its first epoch: the new file begins with that."""
    trial = recorded_run(number, TrainConfig(epochs=3), [epoch_record(1, 0.1)], params={"rate": 0.5})
    observer.trial_started(trial)
    return trial


def test_the_offline_files_have_all_epochs_and_the_first_one_the_packages_for_all(
    tmp_path: Path, server: WandbServer
) -> None:
    observer = WandbObserver("offline", "s", tmp_path, Objectives())
    for number in range(2):
        trial = begun(observer, number)
        for epoch in (2, 3):
            observer.epoch_ended(trial, epoch_record(epoch, epoch / 10))
        trial.state = State.COMPLETE
        observer.trial_ended(trial)
    for number in range(2):
        history = {row["epoch"]: row for row in sent(server, tmp_path, f"s-000{number}", 3)}
        assert [history[epoch]["val_top1"] for epoch in (1, 2, 3)] == [0.1, 0.2, 0.3]
    lists = [next(tmp_path.glob(f"wandb/offline-run-*-s-000{n}")) / "files" / "requirements.txt" for n in range(2)]
    wait_until(lambda: lists[0].exists() and "torch==" in lists[0].read_text(), "the first run has no list")
    assert not lists[1].exists()
