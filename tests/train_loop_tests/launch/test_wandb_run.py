"""``bigbatch train --wandb``: epochs are in W&B's real offline file, also over a resume."""

import contextlib
import json
from pathlib import Path

import pytest

from bigbatch.train_loop.config import TrainConfig
from bigbatch.train_loop.launch import wandb_run
from bigbatch.train_loop.launch.command import main
from bigbatch.train_loop.launch.wandb_run import wandb_of_full_run
from bigbatch.train_loop.launch.worker_lines import RecordPrinter
from bigbatch.train_loop.progress import progress_file
from bigbatch.train_loop.reporter import EpochRecord, PrintReporter
from bigbatch.tune.commands.wandb_sync import wandb_sync_main
from helpers.commands import run
from helpers.waiting import wait_until
from helpers.wandb_server import WandbServer

CONFIG = TrainConfig(epochs=3)


def record(epoch: int) -> EpochRecord:
    return EpochRecord(
        epoch=epoch, epochs=3, train_loss=1.0 / epoch, train_top1=0.5, val_loss=0.5, val_top1=epoch / 10,
        learning_rate=0.1, optimizer_steps=10 * epoch, skipped_steps=0, images_per_s=100.0, train_s=1.0,
    )  # fmt: skip


def rows(server: WandbServer) -> list[tuple[object, ...]]:
    (run,) = server.runs.values()
    return [(row["_step"], row["train_loss"], row["val_top1"]) for row in run.history]


WHOLE = [(1, 1.0, 0.1), (2, 0.5, 0.2), (3, 1 / 3, 0.3)]


def test_a_run_that_was_stopped_and_goes_on_is_one_run_with_all_its_epochs(tmp_path, monkeypatch, capsys):
    with contextlib.suppress(KeyboardInterrupt), wandb_of_full_run("offline", tmp_path, CONFIG) as tracker:
        PrintReporter(tracker=tracker).report(record(1))
        raise KeyboardInterrupt
    # Its second process is Ray's driver, whose workers write the file.
    records = tmp_path / "records.jsonl"
    with wandb_of_full_run("offline", tmp_path, CONFIG) as tracker:
        printer = RecordPrinter(records, progress_file(tmp_path / "train.log"), tracker)
        records.write_text('{"resumed_after": 1}\n' + line(record(1)))
        for epoch in (2, 3):
            printer.print_new()
            records.write_text(records.read_text() + line(record(epoch)))
        printer.print_new()
        printer.close()
    assert f"bigbatch wandb-sync {tmp_path}" in capsys.readouterr().out
    with WandbServer() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        # W&B's own process writes the file some time after the run's end.
        came = lambda: wandb_sync_main([str(tmp_path)]) == 0 and rows(server) == WHOLE  # noqa: E731
        wait_until(came, lambda: f"all of it must come; there is {rows(server)}")
    (run,) = server.runs.values()
    assert run.exit_codes[-1:] == [0] and run.config["epochs"]["value"] == 3
    assert str(run.names["displayName"]).startswith(f"{tmp_path.name}-")


def line(one: EpochRecord) -> str:
    return json.dumps(one.to_dict()) + "\n"


def test_a_tracker_that_fails_ends_no_run(tmp_path, monkeypatch, capsys):
    def refuse(*_: object, **__: object) -> None:
        raise ConnectionError("no route to\nthe server")

    monkeypatch.setattr(wandb_run, "WandbRun", refuse)
    with wandb_of_full_run("online", tmp_path, CONFIG) as tracker:
        reporter = PrintReporter(tracker=tracker)
        for epoch in (1, 2):
            reporter.report(record(epoch))
    printed = capsys.readouterr()
    assert printed.out.count("epoch") == 2
    assert printed.err == "warning: the run goes on without W&B: ConnectionError: no route to the server\n"


def test_a_server_that_goes_away_during_a_run_does_not_hold_up_its_end(tmp_path, monkeypatch, capsys):
    import wandb

    if wandb_run.FINISH_RAISES not in wandb.Settings.model_fields:
        pytest.skip("this wandb waits for its server for ever")
    monkeypatch.setattr(wandb_run, "FINISH_S", 2.0)
    with WandbServer() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        wandb.teardown()  # it would go on with the settings of this process's earlier runs
        with wandb_of_full_run("online", tmp_path, CONFIG) as tracker:
            PrintReporter(tracker=tracker).report(record(1))
            server.cut.set()
            PrintReporter(tracker=tracker).report(record(2))
        wandb.teardown()
    assert "warning: the run goes on without W&B: TimeoutError" in capsys.readouterr().err


def test_without_the_option_and_on_other_ranks_nothing_is_told(tmp_path):
    with wandb_of_full_run("disabled", tmp_path, CONFIG) as tracker:
        assert tracker is None
    with wandb_of_full_run("offline", tmp_path, CONFIG) as tracker:
        PrintReporter(rank=1, tracker=tracker).report(record(1))
    assert not any(tmp_path.glob("wandb/offline-run-*"))


@pytest.mark.parametrize(
    ("mode", "words"), [("offlin", "Did you mean 'offline'?"), ("online", "needs a key for"), ("yes", "Write --wandb")]
)
def test_wrong_input_meets_one_line(tmp_path: Path, mode, words):
    done = run("--recipe", "nothing", "--wandb", mode, cwd=tmp_path, main=main, HOME=str(tmp_path))
    assert done.returncode == 2 and words in done.stderr and done.stderr.count("\n") == 1
