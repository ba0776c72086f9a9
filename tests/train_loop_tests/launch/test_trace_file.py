"""``trace.jsonl``: each epoch's line, whoever prints the epochs."""

import io
import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from bigbatch.train_loop.launch.listeners import trace_writer
from bigbatch.train_loop.launch.worker_lines import RESUMED, RecordPrinter
from bigbatch.train_loop.reporter import EpochRecord, PrintReporter


def record(epoch: int) -> EpochRecord:
    return EpochRecord(
        epoch=epoch, epochs=3, train_loss=1.5, train_top1=0.25, val_loss=1.25, val_top1=0.5, learning_rate=0.1,
        optimizer_steps=3, skipped_steps=0, images_per_s=6.0, train_s=1700.0, bn_s=50.0, val_s=40.0, checkpoint_s=10.0,
    )  # fmt: skip


def lines(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "trace.jsonl").read_text().splitlines()]


def test_a_line_has_the_record_and_what_the_epoch_cost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    reporter = PrintReporter(file=io.StringIO(), also=trace_writer(tmp_path, 8))
    reporter.report(record(1))
    reporter.report(record(2))
    first, second = lines(tmp_path)
    assert first.items() >= record(1).to_dict().items() and second["epoch"] == 2
    assert first["device_hours"] == 8 * 1800 / 3600 and first["workers"] == 8 and first["slurm_job"] == "4711"
    assert str(first["at"]).endswith("+00:00")


def test_only_rank_0_writes(tmp_path: Path) -> None:
    PrintReporter(rank=1, also=trace_writer(tmp_path, 2)).report(record(1))
    assert not (tmp_path / "trace.jsonl").exists()


def test_under_ray_a_resumed_run_adds_its_new_epochs_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The workers send the checkpoint's records again."""
    records, progress = tmp_path / "records.jsonl", tmp_path / "progress"

    def run(*sent: Mapping[str, object]) -> None:
        records.write_text("".join(json.dumps(line) + "\n" for line in sent))
        printer = RecordPrinter(records, progress, trace_writer(tmp_path, 1))
        printer.print_new()
        printer.print_new()
        printer.close()

    run(dict(record(1).to_dict()), dict(record(2).to_dict()))
    run({RESUMED: 2}, *(dict(record(epoch).to_dict()) for epoch in (1, 2, 3)))
    assert [line["epoch"] for line in lines(tmp_path)] == [1, 2, 3]


def test_a_trace_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    trace_writer(tmp_path / "absent", 1)(record(1))
    assert list(tmp_path.iterdir()) == []
