"""Training needs no room: a checkpoint that finds none is left out, but for the last, which is the result."""

import logging
import pickle

import pytest
import torch

from bigbatch.train_loop.host.disk_space import NO_ROOM, DiskFull, LogFile
from bigbatch.train_loop.loop.checkpoint import CheckpointFolder
from bigbatch.train_loop.loop.train import train
from helpers.tiny_training import CONFIG, ListReporter, install, untimed


def run(folder, monkeypatch):
    install(monkeypatch.setattr)
    reporter = ListReporter()
    train(CONFIG, reporter=reporter, checkpoint_dir=folder, checkpoint_every_s=1e-9, device=torch.device("cpu"))
    return reporter


def test_checkpoints_without_room_are_left_out_and_change_nothing(monkeypatch, tmp_path, caplog):
    expected = untimed(run(tmp_path / "a", monkeypatch).records)
    real, tried = CheckpointFolder.save, []

    def save(self, content):
        tried.append(content["progress"]["epoch"])
        if content["progress"]["epoch"] < CONFIG.epochs:
            raise DiskFull(f"{NO_ROOM}: the file system /scratch is full")
        real(self, content)

    monkeypatch.setattr(CheckpointFolder, "save", save)
    assert untimed(run(tmp_path / "b", monkeypatch).records) == expected
    assert len(tried) > 1 and "/scratch is full" in caplog.text


def test_the_last_checkpoint_is_not_left_out(monkeypatch, tmp_path):
    def save(self, content):
        raise DiskFull(f"{NO_ROOM}: the file system /scratch is full")

    monkeypatch.setattr(CheckpointFolder, "save", save)
    with pytest.raises(DiskFull, match="/scratch"):
        run(tmp_path, monkeypatch)


def test_the_error_crosses_processes_with_its_words():
    assert str(pickle.loads(pickle.dumps(DiskFull("the file system /scratch is full")))).endswith("/scratch is full")


def test_a_log_without_room_is_closed_in_silence(capfd):
    """Else a run in which all else goes on would end while it closes its log. /dev/full has no room for a byte."""
    log = LogFile("/dev/full", encoding="utf-8")
    log.handle(logging.makeLogRecord({"msg": "a line"}))
    log.close()
    assert capfd.readouterr() == ("", "")
