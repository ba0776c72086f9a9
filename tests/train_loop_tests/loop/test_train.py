"""The loop against references written here: gradients, schedules, sums over ranks, and how it ends early."""

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler

from bigbatch.train_loop.config import ConfigError
from bigbatch.train_loop.data import sampling
from bigbatch.train_loop.data.sampling import holdout_rows
from bigbatch.train_loop.distributed import World
from bigbatch.train_loop.loop import assembly, validation
from bigbatch.train_loop.loop.checkpoint import CheckpointFolder
from bigbatch.train_loop.loop.train import NonFiniteLossError, TrainingStopped, train
from bigbatch.train_loop.reporter import ListReporter, best_record, epoch_line
from helpers.loop_references import ONE_STEP, STEPS, full_batch_gradient, parameters, rate, run, val_reference
from helpers.tiny_training import (
    CONFIG,
    VAL_SIZE,
    StopsAt,
    TinySource,
    bn_model,
    changed,
    install,
    plain_model,
    untimed,
)


def watched(note: Callable[[Any, Any], object], build: Any = plain_model) -> Callable[[], nn.Module]:
    """Build a network that calls ``note`` with itself and its images before each forward pass."""

    def built() -> nn.Module:
        model: nn.Module = build()
        model.register_forward_pre_hook(lambda module, inputs: [note(module, inputs[0])].clear())
        return model

    return built


def test_the_device_is_the_current_one_before_anything_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the second GPU of a node the data or the network would else leave a context, and memory, on the first."""
    seen: list[object] = []

    def opened(config: object, stage_folder: object, world: World, *_: object) -> None:
        seen.append(world.device)
        raise ConfigError("far enough")

    monkeypatch.setattr(torch.cuda, "set_device", seen.append)
    monkeypatch.setattr(assembly, "_open", opened)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", torch.backends.cudnn.benchmark)
    with pytest.raises(ConfigError, match="far enough"):
        train(changed(CONFIG, precision="off"), reporter=ListReporter(), device=torch.device("cuda", 1))
    assert seen == [torch.device("cuda", 1)] * 2


@pytest.mark.parametrize("micro_size", [64, 2])
def test_accumulated_gradient_is_that_of_the_global_batch(monkeypatch: pytest.MonkeyPatch, micro_size: int) -> None:
    config = changed(ONE_STEP, micro_size=micro_size)
    built = install(monkeypatch.setattr, plain_model)
    (record,) = run(config)
    start, gradient, (loss, top1) = full_batch_gradient(config)
    for before, after, g in zip(start, parameters(built.model), gradient, strict=True):
        torch.testing.assert_close((before - after) / config.optimizer.peak_lr, g, rtol=1e-4, atol=1e-6)
    assert (record.train_loss, record.train_top1) == (pytest.approx(loss, rel=1e-5), pytest.approx(top1))


def test_clipping_bounds_the_norm_of_the_whole_unscaled_gradient(monkeypatch):
    """Without a scale: test_step.py."""
    config = changed(ONE_STEP, clip_grad_norm=1e-2, precision="fp16")
    monkeypatch.setattr(assembly, "GradScaler", partial(GradScaler, init_scale=2.0**9))
    built = install(monkeypatch.setattr, plain_model)
    run(config)
    start, gradient, _ = full_batch_gradient(config)
    norm = math.sqrt(sum(g.square().sum().item() for g in gradient))
    assert norm > 1e-2
    for before, after, g in zip(start, parameters(built.model), gradient, strict=True):
        torch.testing.assert_close((before - after) / config.optimizer.peak_lr, g * 1e-2 / norm, rtol=2e-2, atol=2e-5)


def test_schedule_moves_at_each_step_also_at_those_that_the_scaler_skips(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assembly, "GradScaler", partial(GradScaler, init_scale=2.0**20))
    built = install(monkeypatch.setattr, plain_model)
    config = changed(CONFIG, precision="fp16", warmup_epochs=1.0)
    record = run(config)[-1]
    taken = len(built.rates)
    assert 0 < record.skipped_steps < STEPS
    assert (record.optimizer_steps, record.optimizer_steps + record.skipped_steps) == (taken, STEPS)
    rates = [rate(config, step) for step in range(STEPS)]
    assert rates[:4] == pytest.approx([0.05, 0.10, 0.15, 0.20]) and len(set(rates)) == STEPS
    assert built.rates == [one for one in rates if one in built.rates] and built.rates[0] > rates[0]
    assert record.learning_rate == rates[-1]


def test_gradients_that_overflow_at_any_scale_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> nn.Module:
        model: Any = plain_model()
        model[0].weight.register_hook(lambda gradient: gradient * math.inf)
        return model

    install(monkeypatch.setattr, broken)
    with pytest.raises(NonFiniteLossError, match=r"at any loss scale.* in epoch \d+ until its step \d+ with learning"):
        run(changed(CONFIG, precision="fp16", epochs=30))


def test_ranks_on_two_kinds_of_gpus_all_compute_in_fp16(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise some gradients of a sum would have the loss scale, and others not."""
    install(monkeypatch.setattr)
    monkeypatch.setattr(assembly, "choose_precision", lambda choice, device: "bf16")
    monkeypatch.setattr(World, "gather", lambda self, value: [value, *["fp16"] * (value == "bf16")])
    newer = assembly.set_up(CONFIG, ListReporter(), CheckpointFolder(None, 0.0), torch.device("cpu"))
    assert newer.step.precision == "fp16" and newer.scaler.is_enabled()


def test_precision_is_that_of_the_forward_pass_and_losses_agree(monkeypatch):
    seen: list[torch.dtype] = []

    def hooked() -> nn.Module:
        model: Any = plain_model()
        model[0].register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
        return model

    install(monkeypatch.setattr, hooked)
    exact = [r.train_loss for r in run(changed(CONFIG, precision="auto", peak_lr=0.01))]
    assert set(seen) == {torch.float32}
    for precision, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
        seen.clear()
        losses = [r.train_loss for r in run(changed(CONFIG, precision=precision, peak_lr=0.01))]
        assert set(seen) == {dtype} and losses == pytest.approx(exact, rel=0.03)


@pytest.mark.parametrize("channels_last", [True, False])
def test_memory_format_reaches_the_model(monkeypatch: pytest.MonkeyPatch, channels_last: bool) -> None:
    seen: set[bool] = set()
    note = watched(lambda _, images: seen.add(images.is_contiguous(memory_format=torch.channels_last)))
    install(monkeypatch.setattr, note)
    run(changed(CONFIG, channels_last=channels_last, epochs=1))
    assert seen == {channels_last}


def test_a_holdout_is_measured_beside_validation_and_changes_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch.setattr)
    plain = run(CONFIG)
    assert [(record.holdout_loss, record.holdout_top1) for record in plain] == [(None, None)] * 3
    built = install(monkeypatch.setattr, source=TinySource(holdout=9))
    records = run(CONFIG)
    labels = TinySource().val[1].numpy()
    chooses, reports = (rows.tolist() for rows in holdout_rows(labels, 9))
    last, model = records[-1], built.model
    of_parts = ((chooses, last.val_loss, last.val_top1), (reports, last.holdout_loss, last.holdout_top1))
    for rows, loss, top1 in of_parts:
        expected_loss, expected_top1 = val_reference(model, rows)
        assert loss == pytest.approx(expected_loss, rel=1e-5) and top1 == pytest.approx(expected_top1, abs=1e-12)
    for before, now in zip(plain, records, strict=True):
        assert now.train_loss == before.train_loss and now.holdout_top1 is not None  # the same run
        both = ((VAL_SIZE - 9) * now.val_top1 + 9 * now.holdout_top1) / VAL_SIZE
        assert both == pytest.approx(before.val_top1, abs=1e-12)
    assert f"holdout top-1 {last.holdout_top1:6.2%}" in epoch_line(last) and "holdout" not in epoch_line(plain[-1])


def test_nan_loss_says_epoch_step_rate_and_value(monkeypatch: pytest.MonkeyPatch) -> None:
    poison = 5
    install(monkeypatch.setattr, source=TinySource(poison=poison))
    orders = [sampling.train_order(70, CONFIG.seed, epoch).tolist().index(poison) for epoch in range(3)]
    epoch = next(e for e, place in enumerate(orders) if place < 64)  # the last 6 of an order are dropped
    step = orders[epoch] // 16
    last_rate = rate(CONFIG, epoch * 4 + step)
    reporter = ListReporter()
    with pytest.raises(NonFiniteLossError) as caught:
        run(CONFIG, reporter=reporter)
    assert str(caught.value) == (
        f"training loss is nan in epoch {epoch + 1} at its step {step + 1} with learning rate {last_rate:.6g}"
    )
    assert len(reporter.records) == epoch


def test_each_micro_batch_has_random_numbers_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []
    install(monkeypatch.setattr, watched(lambda module, _: module.training and seeds.append(torch.initial_seed())))
    run(CONFIG)
    assert len(seeds) == len(set(seeds)) == STEPS * 2


def test_records_say_where_the_time_went(built, tmp_path):
    records = run(CONFIG, checkpoint_dir=tmp_path, checkpoint_every_s=0)
    for r in records:
        assert r.train_s == pytest.approx(r.data_s + r.step_s)
        assert r.images_per_s == pytest.approx(64 / r.train_s)
        assert min(r.data_s, r.step_s, r.bn_s, r.val_s) > 0
    assert [r.checkpoint_s > 0 for r in records] == [False, True, True]  # of the time since the record before
    line = epoch_line(records[0])
    assert line.startswith("epoch 1/3  train loss ") and "\n" not in line


def test_epochs_without_a_validation_have_no_value_and_train_alike(monkeypatch, tmp_path):
    """Every second of 5 epochs and the last one: the values of a run that validates after each, also when resumed."""
    config, validated = changed(CONFIG, epochs=5, precise_bn="off", ema_decay=0.5), (2, 4, 5)
    install(monkeypatch.setattr)
    whole = run(config)
    install(monkeypatch.setattr)
    first, second = StopsAt(14), ListReporter()  # in the fourth epoch
    with pytest.raises(TrainingStopped):
        run(changed(config, validate_every=2), reporter=first, checkpoint_dir=tmp_path)
    run(changed(config, validate_every=2), reporter=second, checkpoint_dir=tmp_path)
    records = first.records + second.records
    expected = untimed(whole)
    for row in expected:
        if row["epoch"] not in validated:
            row |= {"val_loss": None, "val_top1": None}
    assert [row.pop("baseline") is not None for row in expected] == [True, False, False, False, False]
    rows = untimed(records)
    assert [row.pop("baseline") is not None for row in rows] == [False, True, False, False, False]
    assert rows == expected
    assert [r.val_s > 0 for r in records] == [r.epoch in validated for r in records]
    assert ["val loss" in epoch_line(r) for r in records] == [r.epoch in validated for r in records]
    best = best_record(records)
    assert best.val_top1 == max(r.val_top1 for r in whole if r.epoch in validated and r.val_top1 is not None)
    assert best.epoch in validated


def test_a_padded_last_batch_changes_no_value(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As on a GPU: 23 validation images in batches of 16, against float64 over all of them at once."""
    config, shapes, layouts = CONFIG, list[int](), set[bool]()

    def note(module: nn.Module, images: torch.Tensor) -> None:
        if not module.training:
            shapes.append(len(images))
            layouts.add(images.is_contiguous(memory_format=torch.channels_last))

    built = install(monkeypatch.setattr, watched(note, bn_model))
    plain = run(config)
    assert set(shapes) == {16, 7}
    shapes.clear()
    monkeypatch.setattr(validation, "tunes_shapes", lambda device: True)
    built = install(monkeypatch.setattr, watched(note, bn_model))
    padded = run(config, checkpoint_dir=tmp_path)
    assert set(shapes) == {16} and layouts == {True}
    for one, other in zip(padded, plain, strict=True):
        assert one.val_loss == pytest.approx(other.val_loss, rel=1e-6) and one.val_top1 == other.val_top1
        assert one.train_loss == other.train_loss and one.baseline == other.baseline
    loss, top1 = val_reference(built.model)
    assert padded[-1].val_loss == pytest.approx(loss, rel=1e-5)
    assert padded[-1].val_top1 == pytest.approx(top1, abs=1e-12)


class SeveralLabels(TinySource):
    """Targets [N, K] of 0 to 1, which do not add up to 1, as a data set of a user's own may have."""

    def __init__(self) -> None:
        super().__init__()
        draws = torch.Generator().manual_seed(2)
        self.train = self.train[0], torch.rand(len(self.train[0]), 4, generator=draws)
        self.val = self.val[0], torch.rand(VAL_SIZE, 4, generator=draws)

    def val_labels(self) -> Any:
        return torch.zeros(VAL_SIZE).long().numpy()


def test_bce_takes_targets_of_several_classes_as_they_are_also_in_validation(monkeypatch: pytest.MonkeyPatch) -> None:
    source = SeveralLabels()
    built = install(monkeypatch.setattr, plain_model, source)
    config = changed(ONE_STEP, loss="bce", label_smoothing=0.0)
    (record,) = run(config)

    def by_hand(model: nn.Module, images: torch.Tensor, shares: torch.Tensor) -> float:
        p = model.double()(images.double()).sigmoid()
        return -(shares * p.log() + (1 - shares) * (1 - p).log()).mean().item()

    rows = sampling.train_order(len(source.train[0]), config.seed, 0)[: config.batch.global_size]
    torch.manual_seed(config.seed)
    assert record.train_loss == pytest.approx(by_hand(plain_model(), *(part[rows] for part in source.train)), rel=1e-5)
    assert record.val_loss == pytest.approx(by_hand(built.model, *source.val), rel=1e-5)
