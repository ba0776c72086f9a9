"""``--stage`` on nodes that cannot: said on the driver's screen."""

import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from bigbatch.train_loop.config import TrainConfig
from bigbatch.train_loop.data.packing import command as pack_command
from bigbatch.train_loop.launch.ray_worker import RECORDS
from bigbatch.train_loop.launch.worker_lines import NOTES, RecordPrinter, read_lines, records_of
from bigbatch.train_loop.loop.assembly import set_up
from bigbatch.train_loop.loop.checkpoint import CheckpointFolder
from bigbatch.train_loop.reporter import ListReporter, report_notes
from bigbatch.tune.trials.bridge import Notes


@pytest.fixture(scope="module")
def packed(tiny_images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("set") / "packed"
    assert pack_command.main([str(tiny_images), str(folder), "--workers", "1"]) == 0
    return folder


class Heard(ListReporter):
    def noted(self, texts: Sequence[str]) -> None:
        self.texts = list(texts)


def test_what_nodes_meet_is_handed_on_once_with_their_names(caplog: pytest.LogCaptureFixture) -> None:
    met = [("n1", "no room"), ("n1", "no room"), ("n2", "no variable"), *((f"n{i}", "no room") for i in range(3, 8))]
    reporter = Heard()
    report_notes(met, reporter, rank=3)
    assert reporter.texts == ["on n1, n3, n4 and 3 more nodes: no room", "on n2: no variable"]
    report_notes([], reporter := Heard(), rank=0)
    assert not hasattr(reporter, "texts")
    for rank in (0, 1):
        caplog.clear()
        report_notes(met[:1], ListReporter(), rank)
        assert [record.getMessage() for record in caplog.records] == ["on n1: no room"] * (rank == 0)


def test_a_run_hands_on_what_its_node_met(packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH_SCRATCH", raising=False)
    values = {"data.name": str(packed), "image_size": 32, "batch": 4, "model": "shufflenet_v2_x0_5", "micro_size": 4}
    set_up(TrainConfig().replace_keys(values), heard := Heard(), CheckpointFolder(None, 0.0), torch.device("cpu"),
           "$NO_SUCH_SCRATCH")  # fmt: skip
    (text,) = heard.texts
    assert text.startswith(f"on {os.uname().nodename}: --stage must be") and text.endswith(f"Reading {packed} itself.")


def test_a_full_run_under_ray_shows_it_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = tmp_path / "records.jsonl"
    printer = RecordPrinter(lines, tmp_path / "train.progress")
    for _ in range(2):  # the second time after a restart of the workers
        with lines.open("a") as file:
            file.write(json.dumps({NOTES: ["on n1: no room"]}) + "\n")
        printer.print_new()
    assert capsys.readouterr().err == "warning: on n1: no room\n"
    assert records_of(read_lines(lines)) == {}
    notes = Notes()
    for trial in (3, 4):
        notes.hear(trial, {RECORDS: [], NOTES: ["on n1: no room"]})
    notes.hear(5, {RECORDS: []})
    assert capsys.readouterr().err == "warning: trial 3: on n1: no room\n"
