"""What a whole training function may report, and which of its checkpoints survive."""

import errno
import math
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bigbatch.train_loop.distributed import World
from bigbatch.train_loop.errors import ReportError, TrainingStopped
from bigbatch.train_loop.launch.own_report import KeptFolder, KeptFolders, Report
from helpers.processes import clean_environment

ALONE = World(0, 1, torch.device("cpu"))


def make_report(
    folder: Path, *, epochs: int = 5, names: tuple[str, ...] = ("accuracy",), stop: Callable[[], bool] = lambda: False
) -> tuple[Report, list[dict[str, Any]], KeptFolder | None]:
    """A report as a new process makes it, what it sends, and the checkpoint that it found."""
    sent: list[dict[str, Any]] = []
    folders = KeptFolders(folder)
    kept = folders.begin()
    report = Report(
        epochs=epochs, names=names, folders=folders, kept=kept, world=ALONE, send=sent.append, stop_requested=stop,
        say=lambda text: None,
    )  # fmt: skip
    return report, sent, kept


def kept_state(folder: Path) -> tuple[str, int]:
    """Of the checkpoint that the next process finds: its file ``state``, alone, and the epochs of its history."""
    _, _, kept = make_report(folder)
    assert kept is not None and [path.name for path in kept.path.iterdir()] == ["state"]
    return (kept.path / "state").read_text(), len(kept.history)


def test_the_objective_goes_under_its_name_and_known_columns_to_theirs(tmp_path: Path) -> None:
    report, sent, _ = make_report(tmp_path)
    report(1, 0.5, train_loss=2, recall=0.25)
    report(epoch=np.uint8(2), accuracy=np.float32(0.75))
    report(epoch=torch.tensor(3), value=torch.tensor(0.875))
    metrics = [record["metrics"] for record in sent]
    assert metrics == [{"accuracy": 0.5, "recall": 0.25}, {"accuracy": 0.75}, {"accuracy": 0.875}]
    assert sent[0]["train_loss"] == 2.0 and [record["epoch"] for record in sent] == [1, 2, 3]
    assert {type(record["epoch"]) for record in sent} == {int}
    assert all(type(record["metrics"]["accuracy"]) is float and record["train_s"] >= 0 for record in sent)


def test_not_a_number_is_reported_for_the_search_to_judge(tmp_path: Path) -> None:
    report, sent, _ = make_report(tmp_path)
    report(1, math.nan, recall=-math.inf)
    assert sent[0]["metrics"] == {"accuracy": None, "recall": None}, "as the tables say it"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"epoch": 1, "recall": 0.5}, "must have accuracy, an objective; got recall=. Write accuracy= or value="),
        ({"epoch": 1, "value": "half"}, "half"),
        ({"epoch": 1, "value": torch.zeros(2)}, "converted to Python scalar"),
        ({"epoch": 1, "value": 0.5, "recall": [1]}, "not 'list'"),
        ({"epoch": 1, "value": 0.5, "train_s": 3.0}, "not train_s, which BigBatch measures"),
        ({"epoch": 1.0, "value": 0.5}, "must be a whole number; got 1.0. Write report(epoch=1, value="),
        ({"epoch": {"accuracy": 0.5}}, "must be a whole number; got {'accuracy': 0.5}."),
        ({"epoch": 0, "value": 0.5}, "one by one, from 1 to config['epochs'], 5; got 0 after 0."),
        ({"epoch": 3, "value": 0.5}, "one by one, from 1 to config['epochs'], 5; got 3 after 0."),
        ({"epoch": 1, "value": 0.5, "checkpoint": "nowhere"}, "No such file or directory: 'nowhere'"),
    ],
)
def test_an_impossible_report_is_refused_in_one_line(tmp_path: Path, given: dict[str, Any], said: str) -> None:
    report, sent, _ = make_report(tmp_path)
    with pytest.raises((ReportError, TypeError, ValueError, OSError, RuntimeError)) as refused:
        report(**given)
    assert said in str(refused.value) and "\n" not in str(refused.value) and not sent


def test_epochs_neither_go_back_nor_beyond_the_last_one(tmp_path: Path) -> None:
    report, _, _ = make_report(tmp_path, epochs=2)
    report(1, 0.5)
    with pytest.raises(ReportError, match="got 1 after 1"):
        report(1, 0.5)
    report(2, 0.5)
    with pytest.raises(ReportError, match=r"config\['epochs'\], 2; got 3 after 2. .* return after the last"):
        report(3, 0.5)


def test_each_objective_is_reported(tmp_path: Path) -> None:
    report, sent, _ = make_report(tmp_path, names=("accuracy", "latency_ms"))
    with pytest.raises(ReportError, match="must have latency_ms, an objective; got accuracy="):
        report(1, 0.5)
    report(1, 0.5, latency_ms=3)
    assert sent[0]["metrics"] == {"accuracy": 0.5, "latency_ms": 3.0}


def test_a_stop_keeps_the_epoch_and_its_checkpoint_and_is_repeated(tmp_path: Path) -> None:
    report, sent, _ = make_report(tmp_path, stop=lambda: True)
    (report.checkpoint_folder / "state").write_text("of epoch 1")
    with pytest.raises(TrainingStopped):
        report(1, 0.5)
    with pytest.raises(TrainingStopped):
        report(2, 0.5)
    assert [record["epoch"] for record in sent] == [1] and kept_state(tmp_path) == ("of epoch 1", 1)


def test_the_newest_checkpoint_and_the_epochs_until_then_are_found_again(tmp_path: Path) -> None:
    report, sent, kept = make_report(tmp_path / "trial")
    assert kept is None
    (report.checkpoint_folder / "state").write_text("1")
    report(1, 0.5)
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "deep").mkdir(parents=True)
    (elsewhere / "deep" / "state").write_text("2")
    report(2, 0.75, checkpoint=elsewhere)
    report(3, 0.25)
    again, _, kept = make_report(tmp_path / "trial")
    assert kept is not None and (kept.path / "deep" / "state").read_text() == "2"
    assert elsewhere.is_dir() and len(kept.history) == 2
    for stored, record in zip(kept.history, sent, strict=False):
        # How long the second checkpoint took is not known when it is written.
        assert {**record, "checkpoint_s": 0.0} == {**stored, "checkpoint_s": 0.0}
    assert [path.name for path in (tmp_path / "trial").iterdir()] == ["epoch-00002"], "only the newest takes room"
    with pytest.raises(ReportError, match="got 1 after 2"):
        again(1, 0.5)
    again(3, 0.5)


@pytest.mark.parametrize("deep", [False, True])
def test_a_function_may_ask_for_the_offered_folder_once(tmp_path: Path, deep: bool) -> None:
    """Trainers write ``output_dir/checkpoint-500``, and name it as their newest checkpoint."""
    report, _, _ = make_report(tmp_path)
    folder = report.checkpoint_folder
    for epoch in (1, 2):
        assert not list(folder.iterdir()), "nothing of the epoch before"
        mine = folder / f"checkpoint-{epoch}" if deep else folder
        mine.mkdir(exist_ok=True)
        (mine / "state").write_text(f"of epoch {epoch}")
        report(epoch, 0.5, checkpoint=mine if deep else None)
    assert kept_state(tmp_path) == ("of epoch 2", 2)


def test_half_a_copy_is_no_checkpoint_of_the_next_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report, _, _ = make_report(tmp_path / "trial")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "state").write_text("whole")
    report(1, 0.5, checkpoint=tmp_path / "mine")

    def without_room(source: Path, target: Path) -> None:
        target.mkdir(parents=True)
        (target / "state").write_text("ha")
        raise OSError(errno.ENOSPC, "No space left on device", str(target))

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "copytree", without_room)
        report(2, 0.5, checkpoint=tmp_path / "mine")
    report(3, 0.5)
    assert kept_state(tmp_path / "trial") == ("whole", 1)


KEEPS_FOR_EVER = """
import sys
from pathlib import Path
from bigbatch.train_loop.launch.own_report import KeptFolders
folders = KeptFolders(Path(sys.argv[1]))
history = list(folders.begin().history) if folders.begin() else []
while True:
    history.append({"epoch": len(history) + 1})
    for name in "abcdefgh":
        folders.offered.mkdir(parents=True, exist_ok=True)
        (folders.offered / name).write_text(str(len(history)) * 50_000)
    folders.keep(folders.offered, history)
    print(len(history), flush=True)
"""


def test_a_checkpoint_is_whole_after_any_kill(tmp_path: Path) -> None:
    """Killed at moments that the test does not choose: the checkpoint has all files of one epoch, and its history."""
    last = 0
    for rounds in range(1, 6):
        command = [sys.executable, "-c", KEEPS_FOR_EVER, str(tmp_path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=clean_environment()) as process:
            assert process.stdout is not None
            for _ in range(rounds):
                last = int(process.stdout.readline())
            process.send_signal(signal.SIGKILL)
        kept = KeptFolders(tmp_path).begin()
        assert kept is not None and len(kept.history) >= last
        epoch = str(len(kept.history))
        assert {path.name: path.read_text() for path in kept.path.iterdir()} == dict.fromkeys("abcdefgh", epoch * 50000)
