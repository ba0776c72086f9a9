"""TensorBoard's event files, read here by the published format, and by TensorBoard itself if it is there."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from optuna.trial import TrialState

from bigbatch.tune.commands.export import main
from helpers.recorded_studies import recorded_study


def crc32c(data: bytes) -> int:
    """The checksum of RFC 3720 (Castagnoli), bit by bit."""
    value = 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
    return value ^ 0xFFFFFFFF


def masked(data: bytes) -> int:
    """As TFRecord stores it (tensorflow/core/lib/hash/crc32c.h)."""
    value = crc32c(data)
    return (((value >> 15) | (value << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def events_of(path: Path) -> list:
    from tensorboardX.proto.event_pb2 import Event

    content, found = path.read_bytes(), []
    while content:
        (length,), (check,) = struct.unpack("<Q", content[:8]), struct.unpack("<I", content[8:12])
        record = content[12 : 12 + length]
        assert check == masked(content[:8])
        assert struct.unpack("<I", content[12 + length : 16 + length]) == (masked(record),)
        found.append(Event.FromString(record))
        content = content[16 + length :]
    return found


def test_the_checksum_is_that_of_the_standard():
    assert crc32c(b"\0" * 32) == 0x8A9136AA  # RFC 3720, B.4


def test_each_trial_has_its_curve_and_its_row_for_hparams(tmp_path):
    store = recorded_study(tmp_path / "s", 8)
    for _ in range(2):  # the second export replaces the files
        assert main([str(store.folder), "--tensorboard", str(tmp_path / "tb")]) == 0
    assert len(list((tmp_path / "tb").rglob("*tfevents*"))) == 8, "what TensorBoard reads"
    from tensorboardX.proto.plugin_hparams_pb2 import HParamsPluginData

    for trial in store.study.trials:
        (path,) = (tmp_path / "tb" / "s" / f"trial-{trial.number:04d}").iterdir()
        events = events_of(path)
        assert events[0].file_version == "brain.Event:2"
        points = [(e.step, v.simple_value) for e in events for v in e.summary.value if v.tag == "val_top1"]
        assert points == [(step, pytest.approx(value)) for step, value in trial.intermediate_values.items()]
        seconds = [e.wall_time - trial.datetime_start.timestamp() for e in events if e.step]
        assert seconds[: len(points)] == pytest.approx([2.5 * epoch for epoch, _ in points], abs=0.01)
        plugin = [v for e in events for v in e.summary.value if v.metadata.plugin_data.plugin_name == "hparams"]
        start = HParamsPluginData.FromString(plugin[0].metadata.plugin_data.content).session_start_info
        assert start.hparams["rate"].number_value == trial.params["rate"]
        assert start.hparams["batch.global_size"].number_value == trial.user_attrs["config"]["batch"]["global_size"]
        assert start.hparams["optimizer"].string_value == (trial.params["optimizer"] or "")
        assert (len(plugin) == 2) == (trial.state != TrialState.RUNNING)
    store.close()


def test_tensorboard_reads_them(tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed (extra: test)")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams import plugin_data_pb2

    store = recorded_study(tmp_path / "s", 4)
    assert main([str(store.folder), "--tensorboard", str(tmp_path / "tb")]) == 0
    read = EventAccumulator(str(tmp_path / "tb" / "s" / "trial-0000")).Reload()
    trial = store.study.trials[0]
    assert {e.step: pytest.approx(e.value) for e in read.Scalars("val_top1")} == trial.intermediate_values
    assert read.Scalars("objective/val_top1")[0].value == pytest.approx(trial.value)
    content = read.SummaryMetadata("_hparams_/session_end_info").plugin_data.content
    assert plugin_data_pb2.HParamsPluginData.FromString(content).session_end_info.status == 1  # success
    store.close()
