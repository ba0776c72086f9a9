"""Checkpoints of full runs that commit 6dde4d6 wrote before it was killed: they load, and the runs go on from them."""

from __future__ import annotations

import json
import pickletools
import runpy
import shutil
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from bigbatch.train_loop.config import TrainConfig
from bigbatch.train_loop.loop.checkpoint import CheckpointFolder
from bigbatch.train_loop.loop.train import train
from bigbatch.train_loop.reporter import EpochRecord, ListReporter

RUNS = ("sgd-within-epoch", "lars-average-within-epoch", "lamb-fp16-after-epoch")


class Resumes(ListReporter):
    """Keeps what the run says of its past."""

    def __init__(self) -> None:
        super().__init__()
        self.history: list[EpochRecord] = []

    def resumed(self, history: Sequence[EpochRecord]) -> None:
        self.history = list(history)


def globals_of(checkpoint: Path) -> set[str]:
    """What the pickle in a checkpoint has imported when it is loaded, as ``module name``."""
    with zipfile.ZipFile(checkpoint) as archive:
        names = [name for name in archive.namelist() if name.endswith("data.pkl")]
        operations = [op for name in names for op in pickletools.genops(archive.read(name))]
    assert not any(op.name == "STACK_GLOBAL" for op, _, _ in operations), "protocol 2, as torch.save writes it"
    return {str(argument) for op, argument, _ in operations if op.name == "GLOBAL"}


def checkpoint_folder(run: Path) -> Path:
    return next(run.rglob("latest.pt")).parent


@pytest.mark.parametrize("name", RUNS)
def test_it_loads_as_it_was_written(copy_of: Callable[[str], Path], name: str) -> None:
    run = copy_of(f"full/{name}")
    expected = json.loads((run / "expected.json").read_text())
    content = CheckpointFolder(checkpoint_folder(run), 0).load()
    assert content is not None
    assert content["progress"] == expected["progress"]
    assert TrainConfig.from_dict(content["config"]) == TrainConfig.from_dict(expected["config"])
    assert set(content["model"]) == set(expected["sums"])
    for key, tensor in content["model"].items():
        # The same numbers; a sum may round otherwise on another processor.
        assert [tensor.double().sum().item(), tensor.double().abs().sum().item()] == pytest.approx(
            expected["sums"][key], rel=1e-9, abs=1e-9
        ), key


@pytest.mark.parametrize("name", RUNS)
def test_the_run_goes_on_from_it_and_ends_like_one_that_was_never_stopped(
    copy_of: Callable[[str], Path], tiny_network: Path, tmp_path: Path, name: str
) -> None:
    runpy.run_path(str(tiny_network / "tiny_network.py"))["register"]()
    run = copy_of(f"full/{name}")
    expected = json.loads((run / "expected.json").read_text())
    config = TrainConfig.from_dict(json.loads((run / "config.json").read_text()))
    done = expected["progress"]["epoch"]

    resumed, fresh = Resumes(), Resumes()
    folders = {"resumed": checkpoint_folder(run), "fresh": tmp_path / "fresh"}
    for reporter, folder in ((resumed, folders["resumed"]), (fresh, folders["fresh"])):
        train(config, reporter=reporter, checkpoint_dir=folder, device=torch.device("cpu"))

    # Times of the clock, too: these epochs were not trained again.
    assert [record.to_dict() for record in resumed.history] == [
        EpochRecord.from_dict(values).to_dict() for values in expected["progress"]["history"]
    ]
    assert [record.epoch for record in resumed.records] == list(range(done + 1, config.epochs + 1))
    assert all(record.resumed_from_epoch == done for record in resumed.records)
    assert resumed.records[-1].optimizer_steps == fresh.records[-1].optimizer_steps
    ends = {key: torch.load(folder / "latest.pt", weights_only=True) for key, folder in folders.items()}
    assert set(ends["resumed"]) == set(ends["fresh"])
    # The stored half was computed on another machine, maybe on another kind of processor.
    for part in {"model", "average"} & set(ends["fresh"]):
        torch.testing.assert_close(ends["resumed"][part], ends["fresh"][part], rtol=1e-2, atol=2e-3)
    assert ("average" in ends["fresh"]) == ("average" in name)


def test_no_checkpoint_names_a_module_of_bigbatch(
    copy_of: Callable[[str], Path], tiny_network: Path, tmp_path: Path
) -> None:
    """A pickle finds classes by their module's name, so that a renamed module would make it unreadable."""
    runpy.run_path(str(tiny_network / "tiny_network.py"))["register"]()
    older = [path for part in ("full", "runs", "home") for path in copy_of(part).rglob("*.pt")]
    config: dict[str, Any] = json.loads((tmp_path / "moved" / "full" / RUNS[1] / "config.json").read_text())
    train(
        TrainConfig.from_dict({**config, "epochs": 1}),
        reporter=ListReporter(),
        checkpoint_dir=tmp_path / "today",
        device=torch.device("cpu"),
    )
    assert len(older) >= 9
    for path in (*older, tmp_path / "today" / "latest.pt"):
        assert {name.split(".")[0].split(" ")[0] for name in globals_of(path)} <= {"torch", "collections"}, path


def test_a_damaged_latest_checkpoint_still_leaves_the_one_before(copy_of: Callable[[str], Path]) -> None:
    folder = checkpoint_folder(copy_of(f"full/{RUNS[0]}"))
    before = torch.load(folder / "previous.pt", weights_only=True)["progress"]
    shutil.copyfile(folder / "previous.pt", folder / "latest.pt")
    (folder / "latest.pt").write_bytes((folder / "latest.pt").read_bytes()[:-100])
    with pytest.warns(UserWarning, match="damaged checkpoint"):
        content = CheckpointFolder(folder, 0).load()
    assert content is not None and content["progress"] == before
