"""The loop against references written here: gradients, schedules, sums over ranks, and how it ends early."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler

from bigbatch.train_loop import distributed
from bigbatch.train_loop.config import TrainConfig
from bigbatch.train_loop.data import sampling
from bigbatch.train_loop.distributed import Heartbeat, World
from bigbatch.train_loop.loop import assembly
from bigbatch.train_loop.loop.train import NonFiniteLossError, TrainingStopped, train
from bigbatch.train_loop.optim.schedules import learning_rate
from bigbatch.train_loop.reporter import EpochRecord, ListReporter, epoch_line
from helpers.tiny_training import (
    CLASSES,
    CONFIG,
    VAL_SIZE,
    StopsAt,
    TinySource,
    changed,
    install,
    plain_model,
    two_ranks,
    untimed,
)

STEPS = CONFIG.epochs * 4
ONE_STEP = changed(CONFIG, epochs=1, global_size=64, micro_size=16, schedule__name="constant", momentum=0.0,
                   nesterov=False, weight_decay=0.0)  # fmt: skip


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """The two-rank runs of tiny_training: their folder, and each rank's outcomes."""
    folder = tmp_path_factory.mktemp("pair")
    return folder, two_ranks("loop", folder)


def run(config: TrainConfig, **keywords: Any) -> list[EpochRecord]:
    reporter = keywords.pop("reporter", ListReporter())
    train(config, reporter=reporter, device=torch.device("cpu"), **keywords)
    return reporter.records


def rate(config: TrainConfig, step: int) -> float:
    return learning_rate(
        step,
        total_steps=4 * config.epochs,
        steps_per_epoch=4,
        peak_lr=config.optimizer.peak_lr,
        schedule=config.schedule,
    )


def smoothed_loss(logits: torch.Tensor, labels: torch.Tensor, smoothing: float) -> torch.Tensor:
    """Szegedy et al. 2016, §7: cross entropy against (1 − ε)·one-hot + ε/K; the mean over images."""
    target = torch.full_like(logits, smoothing / logits.shape[1])
    target[torch.arange(len(labels)), labels] += 1 - smoothing
    log_p = logits - logits.exp().sum(dim=1, keepdim=True).log()
    return -(target * log_p).sum(dim=1).mean()


def parameters(model: nn.Module) -> list[torch.Tensor]:
    return [p.detach().double().clone() for p in model.parameters()]


def full_batch_gradient(config: TrainConfig) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Initial weights and the gradient of the first global batch at once, in float64."""
    torch.manual_seed(config.seed)
    model = plain_model().double()
    images, labels = TinySource().train
    rows = torch.from_numpy(sampling.train_order(len(labels), config.seed, 0)[: config.batch.global_size])
    smoothed_loss(model(images[rows].double()), labels[rows], config.label_smoothing).backward()
    return parameters(model), [p.grad for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("micro_size", [64, 16, 2])
def test_accumulated_gradient_is_that_of_the_global_batch(monkeypatch: pytest.MonkeyPatch, micro_size: int) -> None:
    config = changed(ONE_STEP, micro_size=micro_size)
    built = install(monkeypatch.setattr, plain_model)
    run(config)
    start, gradient = full_batch_gradient(config)
    for before, after, g in zip(start, parameters(built.model), gradient, strict=True):
        torch.testing.assert_close((before - after) / config.optimizer.peak_lr, g, rtol=1e-4, atol=1e-6)


def test_clipping_bounds_the_norm_of_the_whole_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    config = changed(ONE_STEP, clip_grad_norm=1e-2)
    built = install(monkeypatch.setattr, plain_model)
    run(config)
    start, gradient = full_batch_gradient(config)
    norm = math.sqrt(sum(g.square().sum().item() for g in gradient))
    assert norm > 1e-2
    for before, after, g in zip(start, parameters(built.model), gradient, strict=True):
        torch.testing.assert_close((before - after) / config.optimizer.peak_lr, g * 1e-2 / norm, rtol=1e-3, atol=1e-6)


def test_fp16_gradients_are_unscaled_before_they_are_clipped(monkeypatch: pytest.MonkeyPatch) -> None:
    config = changed(ONE_STEP, clip_grad_norm=1e-2, precision="fp16")
    monkeypatch.setattr(assembly, "GradScaler", partial(GradScaler, init_scale=2.0**9))
    built = install(monkeypatch.setattr, plain_model)
    run(config)
    start, gradient = full_batch_gradient(config)
    norm = math.sqrt(sum(g.square().sum().item() for g in gradient))
    for before, after, g in zip(start, parameters(built.model), gradient, strict=True):
        torch.testing.assert_close((before - after) / config.optimizer.peak_lr, g * 1e-2 / norm, rtol=2e-2, atol=2e-5)


def test_step_that_the_scaler_skips_does_not_advance_the_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assembly, "GradScaler", partial(GradScaler, init_scale=2.0**24))
    built = install(monkeypatch.setattr, plain_model)
    record = run(changed(CONFIG, precision="fp16"))[-1]
    taken = len(built.rates)
    assert 0 < record.skipped_steps < STEPS
    assert (record.optimizer_steps, record.optimizer_steps + record.skipped_steps) == (taken, STEPS)
    assert built.rates == [rate(CONFIG, step) for step in range(taken)]
    assert built.rates[0] == 0.2 > built.rates[1]


def test_schedule_moves_at_each_step_and_not_at_each_micro_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    built = install(monkeypatch.setattr)
    config = changed(CONFIG, warmup_epochs=1.0)
    record = run(config)[-1]
    assert built.rates == [rate(config, step) for step in range(STEPS)]
    assert built.rates[:4] == pytest.approx([0.05, 0.10, 0.15, 0.20])
    assert (record.optimizer_steps, record.skipped_steps) == (STEPS, 0)
    assert record.learning_rate == built.rates[-1]


def test_gradients_that_overflow_at_any_scale_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> nn.Module:
        model = plain_model()
        model[0].weight.register_hook(lambda gradient: gradient * math.inf)
        return model

    install(monkeypatch.setattr, broken)
    with pytest.raises(NonFiniteLossError, match=r"at any loss scale.* in epoch \d+ at its step \d+ with learning"):
        run(changed(CONFIG, precision="fp16", epochs=30))


@pytest.mark.parametrize(("precision", "dtype"), [("auto", "float32"), ("bf16", "bfloat16"), ("fp16", "float16")])
def test_precision_is_that_of_the_forward_pass_and_losses_agree(
    monkeypatch: pytest.MonkeyPatch, precision: str, dtype: str
) -> None:
    seen: set[torch.dtype] = set()

    def watched() -> nn.Module:
        model = plain_model()
        model[0].register_forward_hook(lambda module, inputs, output: seen.add(output.dtype))
        return model

    install(monkeypatch.setattr, watched)
    records = run(changed(CONFIG, precision=precision, peak_lr=0.01))
    assert seen == {getattr(torch, dtype)}
    install(monkeypatch.setattr, plain_model)
    exact = run(changed(CONFIG, precision="off", peak_lr=0.01))
    assert [r.train_loss for r in records] == pytest.approx([r.train_loss for r in exact], rel=0.03)


@pytest.mark.parametrize("channels_last", [True, False])
def test_memory_format_reaches_the_model(monkeypatch: pytest.MonkeyPatch, channels_last: bool) -> None:
    seen: set[bool] = set()

    def watched() -> nn.Module:
        model = plain_model()
        model.register_forward_pre_hook(
            lambda module, inputs: seen.add(inputs[0].is_contiguous(memory_format=torch.channels_last))
        )
        return model

    install(monkeypatch.setattr, watched)
    run(changed(CONFIG, channels_last=channels_last, epochs=1))
    assert seen == {channels_last}


def val_reference(model: nn.Module) -> tuple[float, float]:
    """Mean cross entropy without smoothing and top-1 over all validation images at once, in float64."""
    images, labels = TinySource().val
    with torch.no_grad():
        logits = model.double().eval()(images.double())
    return smoothed_loss(logits, labels, 0.0).item(), (logits.argmax(1) == labels).double().mean().item()


@pytest.mark.parametrize("micro_size", [16, 4, 2])
def test_validation_counts_each_image_once(monkeypatch: pytest.MonkeyPatch, micro_size: int) -> None:
    built = install(monkeypatch.setattr)
    record = run(changed(CONFIG, micro_size=micro_size))[-1]
    loss, top1 = val_reference(built.model)
    assert record.val_loss == pytest.approx(loss, rel=1e-5)
    assert record.val_top1 == pytest.approx(top1, abs=1e-12)
    assert record.val_top1 * VAL_SIZE == pytest.approx(round(record.val_top1 * VAL_SIZE), abs=1e-9)


def test_train_loss_is_the_mean_over_the_epochs_images(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch.setattr, plain_model)
    config = changed(ONE_STEP, micro_size=16)
    record = run(config)[0]
    torch.manual_seed(config.seed)
    model = plain_model().double()
    images, labels = TinySource().train
    rows = torch.from_numpy(sampling.train_order(len(labels), config.seed, 0)[:64])
    logits = model(images[rows].double())
    assert record.train_loss == pytest.approx(smoothed_loss(logits, labels[rows], 0.1).item(), rel=1e-5)
    assert record.train_top1 == pytest.approx((logits.argmax(1) == labels[rows]).double().mean().item())
    assert math.isclose(math.log(CLASSES), record.train_loss, rel_tol=0.3)


def test_two_workers_equal_one_worker_with_two_accumulation_steps(
    monkeypatch: pytest.MonkeyPatch, pair: tuple[Path, list[dict[str, Any]]]
) -> None:
    """Same micro-batches, precise BN, dropout seeded by position: only the order of float32 sums differs."""
    others = (("accumulated", {"global_size": 32}), ("small_last", {"drop_last": False}))
    for name, config in (("equal", CONFIG), *((name, changed(CONFIG, **keys)) for name, keys in others)):
        install(monkeypatch.setattr)
        for one, two in zip(run(config), pair[1][0][name]["records"], strict=True):
            for key in ("train_loss", "val_loss", "learning_rate"):
                assert two[key] == pytest.approx(getattr(one, key), rel=1e-4), (name, one.epoch, key)
            for key in ("optimizer_steps", "skipped_steps", "epoch"):
                assert two[key] == getattr(one, key)


def test_only_the_last_accumulation_step_sends_gradients(pair: tuple[Path, list[dict[str, Any]]]) -> None:
    for rank in pair[1]:
        assert rank["equal"]["local"] == 0
        assert rank["accumulated"]["local"] == CONFIG.epochs * 2 * 1  # 2 steps an epoch of 2 micro-batches a rank


@pytest.mark.parametrize("name", ["equal", "accumulated", "running", "fp16"])
def test_all_ranks_report_the_same_and_end_with_the_same_statistics(
    pair: tuple[Path, list[dict[str, Any]]], name: str
) -> None:
    first, second = (outcomes[name] for outcomes in pair[1])
    assert first == second
    assert [record["epoch"] for record in first["records"]] == [1, 2, 3]


@pytest.mark.parametrize("name", ["equal", "running"])
def test_validation_over_two_ranks_counts_each_image_once(
    pair: tuple[Path, list[dict[str, Any]]], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, outcomes = pair
    built = install(monkeypatch.setattr)
    run(changed(CONFIG, epochs=1))
    built.model.load_state_dict(torch.load(folder / name / "latest.pt", weights_only=True)["model"])
    loss, top1 = val_reference(built.model)
    assert outcomes[0][name]["records"][-1]["val_loss"] == pytest.approx(loss, rel=1e-5)
    assert outcomes[0][name]["records"][-1]["val_top1"] == pytest.approx(top1, abs=1e-12)


def test_nan_on_one_rank_ends_all_ranks_with_the_same_reason(pair: tuple[Path, list[dict[str, Any]]]) -> None:
    first, second = (outcomes["poisoned"] for outcomes in pair[1])
    assert first == second
    assert first["error"].startswith("NonFiniteLossError: training loss is nan in epoch ")


def test_what_one_rank_finds_wrong_all_ranks_raise(pair: tuple[Path, list[dict[str, Any]]]) -> None:
    for outcomes in pair[1]:
        assert outcomes["sync_bn"]["error"].startswith("ConfigError: SyncBatchNorm needs GPUs; got model.sync_bn=true")
        assert outcomes["apart"]["error"].startswith("CheckpointError: all ranks must see the same checkpoint; got")


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


def test_infinite_validation_loss_is_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    source = TinySource()
    source.val[0][3] = math.inf
    install(monkeypatch.setattr, source=source)
    reporter = ListReporter()
    with pytest.raises(NonFiniteLossError, match="validation loss is nan after epoch 1"):
        run(CONFIG, reporter=reporter)
    assert reporter.records == []


def test_run_is_a_function_of_its_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    def once(seed: int) -> list[dict[str, Any]]:
        install(monkeypatch.setattr)
        torch.manual_seed(seed + 7)  # what the caller drew before does not matter
        return untimed(run(changed(CONFIG, seed=seed)))

    assert once(0) == once(0)
    assert once(0) != once(1)


def test_each_micro_batch_has_random_numbers_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []

    def note(module: nn.Module, inputs: object) -> None:
        if module.training:
            seeds.append(torch.initial_seed())

    def watched() -> nn.Module:
        model = plain_model()
        model.register_forward_pre_hook(note)
        return model

    install(monkeypatch.setattr, watched)
    run(CONFIG)
    assert len(seeds) == len(set(seeds)) == STEPS * 2


def test_stop_on_request_can_be_resumed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install(monkeypatch.setattr)
    whole = run(CONFIG)
    first, second = StopsAt(6), ListReporter()
    with pytest.raises(TrainingStopped, match="in epoch 2 after step 2"):
        run(CONFIG, reporter=first, checkpoint_dir=tmp_path)
    run(CONFIG, reporter=second, checkpoint_dir=tmp_path)
    assert untimed(first.records + second.records) == untimed(whole)
    assert {record.resumed_from_epoch for record in second.records} == {1}


def test_stop_that_one_rank_asks_for_stops_all_and_one_worker_can_go_on(
    monkeypatch: pytest.MonkeyPatch, pair: tuple[Path, list[dict[str, Any]]], tmp_path: Path
) -> None:
    folder, outcomes = pair
    for rank in outcomes:
        assert rank["stopped"] == {"error": "TrainingStopped: stopped on request in epoch 1 after step 1", "records": 0}
    (tmp_path / "latest.pt").write_bytes((folder / "stopped" / "previous.pt").read_bytes())
    install(monkeypatch.setattr)
    resumed, whole = run(CONFIG, checkpoint_dir=tmp_path), run(CONFIG)
    assert [r.train_loss for r in resumed] == pytest.approx([r.train_loss for r in whole], rel=1e-4)
    assert [r.val_loss for r in resumed] == pytest.approx([r.val_loss for r in whole], rel=1e-4)
    assert [r.optimizer_steps for r in resumed] == [4, 8, 12]


def test_two_ranks_that_were_stopped_within_an_epoch_end_bit_identical(
    pair: tuple[Path, list[dict[str, Any]]],
) -> None:
    for rank in pair[1]:
        whole, resumed = ([EpochRecord.from_dict(r) for r in rank[name]["records"]] for name in ("equal", "resumed"))
        assert untimed(resumed) == untimed(whole)
        assert rank["resumed"]["buffers"] == rank["equal"]["buffers"]
        assert {r.resumed_from_epoch for r in resumed} == {0}


class Follower(World):
    """A second rank, to which rank 0 says ``proposal`` in the last place."""

    proposal = 0.0

    def max(self, values: Sequence[float]) -> list[float]:
        return [max(a, b) for a, b in zip(values, [*([0.0] * (len(values) - 1)), self.proposal], strict=True)]


def test_ranks_meet_about_once_a_second_when_rank_0_says(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(distributed.time, "monotonic", lambda: clock[0])
    cpu = torch.device("cpu")

    def meetings(world: World, steps: int, step_s: float) -> list[int]:
        heartbeat, met = Heartbeat(world), []
        for step in range(1, steps + 1):
            clock[0] += step_s
            if heartbeat.due():
                assert heartbeat.meet([float(step), -1.0])[0] == step
                met.append(step)
        return met

    assert meetings(World(0, 1, cpu), 5, 0.1) == [1, 2, 3, 4, 5]
    assert meetings(World(0, 1, torch.device("cuda", 0)), 30, 0.0999) == [1, 11, 21]
    assert meetings(World(0, 1, torch.device("cuda", 0)), 4, 3.0) == [1, 2, 3, 4]
    follower = Follower(1, 2, cpu)
    object.__setattr__(follower, "proposal", 7.0)
    assert meetings(follower, 20, 0.0999) == [1, 8, 15]


def test_records_say_where_the_time_went(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install(monkeypatch.setattr)
    records = run(CONFIG, checkpoint_dir=tmp_path, checkpoint_every_s=0)
    for r in records:
        assert r.train_s == pytest.approx(r.data_s + r.step_s)
        assert r.images_per_s == pytest.approx(64 / r.train_s)
        assert min(r.data_s, r.step_s, r.bn_s, r.val_s) > 0
    assert [r.checkpoint_s > 0 for r in records] == [False, True, True]  # of the time since the record before
    line = epoch_line(records[0])
    assert line.startswith("epoch 1/3  train loss ") and "\n" not in line


# --- test-time flip ---


def test_the_mean_of_image_and_mirror_is_validated_on_any_number_of_ranks(
    pair: tuple[Path, list[dict[str, Any]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against the definition, from the last checkpoint's weights: 23 images, on one rank and on two."""
    folder, outcomes = pair
    built = install(monkeypatch.setattr)
    flipped = changed(CONFIG, test_flip=True)
    one = run(flipped, checkpoint_dir=tmp_path)[-1]
    plain = run(CONFIG)[-1]
    records = [outcome["flipped"]["records"][-1] for outcome in outcomes]
    assert records[0]["val_loss"] == records[1]["val_loss"]
    images, labels = TinySource().val
    for path, val_loss, val_top1 in (
        (tmp_path, one.val_loss, one.val_top1),
        (folder / "flipped", records[0]["val_loss"], records[0]["val_top1"]),
    ):
        model = built.model
        model.load_state_dict(torch.load(path / "latest.pt", weights_only=True)["model"])
        with torch.no_grad():
            logits = (model.eval()(images) + model(images.flip(-1))).double() / 2
        assert val_loss == pytest.approx(nn.functional.cross_entropy(logits, labels).item(), rel=1e-5)
        assert val_top1 == pytest.approx((logits.argmax(1) == labels).double().mean().item())
    assert one.train_loss == plain.train_loss and one.val_loss != plain.val_loss  # in validation alone
