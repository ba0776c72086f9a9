"""Two ranks are one rank with twice the steps: gradients, statistics, stops and errors."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from bigbatch.train_loop.data.sampling import holdout_rows
from bigbatch.train_loop.errors import is_lost_peer
from bigbatch.train_loop.reporter import EpochRecord
from helpers.loop_references import run, val_reference
from helpers.tiny_training import (
    ACCUMULATED,
    CONFIG,
    FOUND,
    SMALL_LAST,
    VAL_SIZE,
    LeavesOut,
    TinySource,
    bn_model,
    changed,
    dropout_first,
    install,
    two_ranks,
    untimed,
)

Pair = tuple[Path, list[dict[str, Any]]]


pytestmark = pytest.mark.xdist_group("two ranks")  # else each test process starts the ranks


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """The two-rank runs of tiny_training: their folder, and each rank's outcomes."""
    folder = tmp_path_factory.mktemp("pair")
    return folder, two_ranks("loop", folder)


def test_two_workers_equal_one_worker_with_two_accumulation_steps(monkeypatch, pair):
    """Same micro-batches, precise BN also of unequal shares, dropout seeded by position, also before BatchNorm: only
    the order of float32 sums differs."""
    others = (("accumulated", ACCUMULATED, bn_model), ("small_last", SMALL_LAST, dropout_first))
    for name, config, build in (("equal", CONFIG, bn_model), *others):
        install(monkeypatch.setattr, build)
        for one, two in zip(run(config), pair[1][0][name]["records"], strict=True):
            for key in ("train_loss", "val_loss", "learning_rate"):
                assert two[key] == pytest.approx(getattr(one, key), rel=1e-4), (name, one.epoch, key)
            for key in ("optimizer_steps", "skipped_steps", "epoch"):
                assert two[key] == getattr(one, key)


def test_only_the_last_accumulation_step_sends_gradients(pair: Pair) -> None:
    for rank in pair[1]:
        assert rank["equal"]["local"] == 0
        assert rank["accumulated"]["local"] == CONFIG.epochs * 2 * 1  # 2 steps an epoch of 2 micro-batches a rank


@pytest.mark.parametrize("name", ["equal", "accumulated", "small_last", "running", "fp16", "centred"])
def test_all_ranks_report_the_same_and_end_with_the_same_statistics(pair, name):
    first, second = (outcomes[name] for outcomes in pair[1])
    assert first == second
    assert [record["epoch"] for record in first["records"]] == [1, 2, 3]


@pytest.mark.parametrize("name", ["equal", "running", "holdout"])
def test_two_ranks_measure_each_validation_image_once(pair, name):
    folder, outcomes = pair
    model = bn_model()
    model.load_state_dict(torch.load(folder / name / "latest.pt", weights_only=True)["model"])
    parts: dict[str, Any] = {"val": range(VAL_SIZE)}
    if name == "holdout":
        parts = dict(zip(("val", "holdout"), holdout_rows(TinySource().val[1].numpy(), 9), strict=True))
    for record in (rank[name]["records"][-1] for rank in outcomes):
        for part, rows in parts.items():
            loss, top1 = val_reference(model, list(rows))
            assert record[f"{part}_loss"] == pytest.approx(loss, rel=1e-5)
            assert record[f"{part}_top1"] == pytest.approx(top1, abs=1e-12)


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("poisoned", "NonFiniteLossError: training loss is nan in epoch "),
        ("sync_bn", "ConfigError: SyncBatchNorm needs GPUs; got model.sync_bn=true"),
    ],
)
def test_what_one_rank_finds_wrong_all_ranks_raise(name: str, error: str, pair: Pair) -> None:
    first, second = (outcomes[name] for outcomes in pair[1])
    assert first == second and first["error"].startswith(error)


def test_layers_that_are_left_out_at_random_train_as_on_one_worker(monkeypatch, pair):
    """The same draws in the same micro-batches: in some steps no rank uses the layer, in others one of two does."""
    for name, config in (("found", FOUND), ("found_accumulated", changed(FOUND, global_size=32))):
        install(monkeypatch.setattr, LeavesOut)
        assert pair[1][0][name] == pair[1][1][name]
        for one, two in zip(run(config), pair[1][0][name]["records"], strict=True):
            for key in ("train_loss", "val_loss"):
                assert two[key] == pytest.approx(getattr(one, key), rel=1e-4), (name, one.epoch, key)


def test_a_step_without_a_gradient_names_the_parameter_on_the_rank_that_lacks_it(pair):
    """In place of what gloo says when the next collective meets a sum that is still waited for."""
    errors = [outcomes["unused"]["error"] for outcomes in pair[1]]
    named = [error for error in errors if error.startswith("UnusedParameterError: with 2 workers each parameter must")]
    assert named and "of model.name=resnet18 second.0.weight, " in named[0] and " got none on rank " in named[0]
    others = [error for error in errors if error not in named]
    assert all(is_lost_peer(RuntimeError(error)) for error in others), "they waited, and lost it"


def test_ranks_whose_layers_train_with_what_they_keep_resume_to_the_bit(pair: Pair) -> None:
    for rank in pair[1]:
        assert rank["centred_stopped"]["error"].startswith("TrainingStopped: stopped on request in epoch 1 after step")
        whole, resumed = (
            [EpochRecord.from_dict(r) for r in rank[n]["records"]] for n in ("centred", "centred_resumed")
        )
        assert _without_scale(resumed) == _without_scale(whole)
        for key in ("weights", "buffers"):
            assert rank["centred_resumed"][key] == rank["centred"][key]


def test_stop_that_one_rank_asks_for_stops_all_and_one_worker_can_go_on(
    monkeypatch: pytest.MonkeyPatch, pair: Pair, tmp_path: Path
) -> None:
    folder, outcomes = pair
    for rank in outcomes:
        assert rank["stopped"] == {"error": "TrainingStopped: stopped on request in epoch 1 after step 1", "records": 0}
        gone = "TrainingStopped: dropped in epoch 1 after step 1"
        assert rank["dropped"] == {"error": gone, "records": 0, "checkpoint": False}
    (tmp_path / "latest.pt").write_bytes((folder / "stopped" / "previous.pt").read_bytes())
    install(monkeypatch.setattr)
    resumed, whole = run(CONFIG, checkpoint_dir=tmp_path), run(CONFIG)
    assert [r.train_loss for r in resumed] == pytest.approx([r.train_loss for r in whole], rel=1e-4)
    assert [r.val_loss for r in resumed] == pytest.approx([r.val_loss for r in whole], rel=1e-4)
    assert [r.optimizer_steps for r in resumed] == [4, 8, 12]


def test_two_ranks_that_were_stopped_within_an_epoch_end_bit_identical(pair):
    for rank in pair[1]:
        whole, resumed = ([EpochRecord.from_dict(r) for r in rank[name]["records"]] for name in ("equal", "resumed"))
        # Before the all-reduce it is a sum over DDP's buckets, which DDP orders anew after a process's first step: with
        # some processors' vectors its last digits differ. Nothing that trains depends on it. None: not positive.
        scales = [[record.noise_scale or 0.0 for record in records] for records in (resumed, whole)]
        assert scales[0] == pytest.approx(scales[1], rel=1e-6)
        assert _without_scale(resumed) == _without_scale(whole)
        assert rank["resumed"]["buffers"] == rank["equal"]["buffers"]
        assert {r.resumed_from_epoch for r in resumed} == {0}


def _without_scale(records: Sequence[EpochRecord]) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if key != "noise_scale"} for row in untimed(records)]


def test_gradients_that_are_summed_in_bf16_train_nearly_alike(pair: Pair) -> None:
    """bf16 has 8 bits: each gradient is off by at most 2^-8 of itself, so the first epoch by little more."""
    for rank in pair[1]:
        exact, rounded = (rank[name]["records"] for name in ("equal", "bf16"))
        assert rounded[0]["train_loss"] == pytest.approx(exact[0]["train_loss"], rel=2**-8)
        assert rounded[-1]["train_loss"] != exact[-1]["train_loss"]
    assert pair[1][0]["bf16"] == pair[1][1]["bf16"]
