"""Training on a GPU, as far as a machine without one can tell: on a pretended one it is training on the CPU."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import math
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.amp.grad_scaler import GradScaler

import helpers.pretended_gpu
from bigbatch.train_loop.config import TrainConfig
from bigbatch.train_loop.distributed import RankMeetings
from bigbatch.train_loop.errors import TrainingStopped
from bigbatch.train_loop.loop import assembly, replayed_step
from bigbatch.train_loop.loop.replayed_step import ReplayedStep
from bigbatch.train_loop.optim import build_optimizer
from bigbatch.train_loop.reporter import EpochRecord
from helpers.loop_references import run
from helpers.packed_sets import pack_here, write_small_images
from helpers.pretended_gpu import OnGpu, pretended_gpu
from helpers.recorded_steps import Recorder
from helpers.tiny_training import CONFIG, StopsAt, TinySource, install

RATES = {"sgd": 0.05, "lars": 1.0, "lamb": 0.01, "adamw": 0.003}
ONE = CONFIG.replace_keys({"micro_size": 16, "precision": "off"})
"""A step is one micro-batch."""
AUTO = {"model.compile": "auto"}
LAMB = {"optimizer.name": "lamb", "peak_lr": 0.01}


KINDS: list[dict[str, Any]] = [
    *({"optimizer.name": name, "peak_lr": rate} for name, rate in RATES.items()),
    {"optimizer.name": "lars", "peak_lr": 0.5, "nesterov": False, "lars_momentum": "out", "clip_grad_norm": 0.5},
    {"optimizer.name": "lars", "peak_lr": 0.5, "momentum": 0.0, "larc": "clip"},
    LAMB | {"nvlamb": True, "pre_normalise": True, "bias_correction": False},
]


def compared(config: TrainConfig, **keywords: Any) -> tuple[list[EpochRecord], list[EpochRecord]]:
    with pretended_gpu():
        found = run(config, "cuda", **keywords)
    expected = run(config.replace_keys({"model.compile": "off"}), **keywords)
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.train_loss == pytest.approx(theirs.train_loss, rel=1e-3)
        assert mine.val_loss == pytest.approx(theirs.val_loss, rel=1e-3)
        assert mine.noise_scale == pytest.approx(theirs.noise_scale, rel=0.01)
    return found, expected


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[Recorder]:
    """The recorders that stand for CUDA graphs in the runs of the test."""
    made: list[Recorder] = []
    init = ReplayedStep.__init__

    def begin(self: ReplayedStep, run: assembly.Run, device: object) -> None:
        made.append(Recorder())
        made[-1].run = run
        init(self, run, made[-1])

    monkeypatch.setattr(ReplayedStep, "__init__", begin)
    monkeypatch.setattr(replayed_step, "LEAST_TORCH", "2")
    return made


def test_it_refuses_what_a_gpu_refuses_and_counts_waits() -> None:
    with pretended_gpu() as waits:
        there = torch.ones(3, device="cuda")
        with pytest.raises(RuntimeError, match=r"same device.*cuda:0\[3\].*cpu\[3\]"):
            there + torch.ones(3)
        weight = torch.nn.Linear(3, 2).to("cuda").weight
        assert weight.device.type == "cuda" and isinstance(weight, torch.nn.Parameter)
        (weight @ there).sum().backward()
        assert isinstance(weight.grad, OnGpu) and weight.grad.cpu().sum() == 6
        waits.clear()
        assert (there + 1).sum().item() == 6 and torch.arange(2).to("cuda", non_blocking=True).tolist() == [0, 1]
        assert +waits == {"_local_scalar_dense": 1, "tolist": 1}
        waits.clear()
        for large in (torch.ones(1 << 15), torch.ones(1 << 15).pin_memory(), torch.ones(1 << 15, pin_memory=True)):
            assert large.to("cuda", non_blocking=True).device.type == "cuda"
        assert +waits == {"to": 1}


@pytest.mark.parametrize("name", RATES)
@pytest.mark.parametrize("compiled", ["off", "auto"])
def test_each_optimizer_trains_as_on_the_cpu(name: str, compiled: str, monkeypatch, recorded) -> None:
    install(monkeypatch.setattr)
    compared(ONE.replace_keys({"optimizer.name": name, "peak_lr": RATES[name], "model.compile": compiled}))
    assert [one.replays > 4 for one in recorded] == ([True] if compiled == "auto" else [])


@pytest.mark.parametrize(
    "keys",
    [
        {"micro_size": 8, "drop_last": False},
        {"clip_grad_norm": 0.5, "ema_decay": 0.9},
        {"mixup_alpha": 0.2, "cutmix_alpha": 1.0, "ema_decay": 0.9} | AUTO,
        {"loss": "bce", "clip_grad_norm": 0.5} | AUTO,
        {"larc": "clip", "lars_momentum": "out", "optimizer.name": "lars", "peak_lr": 0.5},
        {"nvlamb": True, "pre_normalise": True, "max_trust_ratio": 10.0} | LAMB | AUTO,
        {"bias_correction": False} | LAMB,
        {"precision": "fp16", "clip_grad_norm": 1.0},
        {"channels_last": False, "validate_every": 2},
    ],
    ids=lambda keys: "-".join(keys),
)
def test_each_kind_of_step_is_that_of_the_cpu(keys: dict[str, Any], monkeypatch, recorded) -> None:
    install(monkeypatch.setattr)
    compared(ONE.replace_keys(keys))


@pytest.mark.parametrize("keys", KINDS, ids=str)
def test_a_step_that_overflows_changes_nothing_and_the_next_one_is_that_of_the_cpu(keys) -> None:
    config = ONE.replace_keys({**keys, "weight_decay": 0.3}).optimizer
    network = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Flatten())
    ends = []
    for device in ("cuda", "cpu"):
        with pretended_gpu() if device == "cuda" else contextlib.nullcontext():
            model = copy.deepcopy(network).to(device)
            optimizer, scaler = build_optimizer(model, config, grad_scaler=True), GradScaler(device, init_scale=8.0)
            for step in range(4):
                draws = torch.Generator().manual_seed(step)
                for p in model.parameters():
                    p.grad = scaler.scale(torch.randn(p.shape, generator=draws).to(device))
                if step == 2:
                    next(model.parameters()).grad[0, 0, 0, 0] = math.inf
                scaler.unscale_(optimizer)
                before = [one.clone() for one in tensors(model, optimizer)]
                scaler.step(optimizer)
                scaler.update()
                same = [torch.equal(a, b) for a, b in zip(tensors(model, optimizer), before, strict=False)]
                assert all(same) if step == 2 else not any(same[:2])
            ends.append([p.detach().cpu() for p in model.parameters()])
    for mine, theirs in zip(*ends, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


def tensors(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [*model.parameters(), *(one for state in optimizer.state.values() for one in state.values())]


@pytest.mark.parametrize("keys", KINDS, ids=str)
@pytest.mark.parametrize("compiled", ["off", "auto"])
def test_steps_whose_fp16_overflows_are_left_out_on_the_device(compiled: str, keys, monkeypatch, recorded) -> None:
    """On the CPU the scaler itself leaves them out. The scale falls at first, and then rises until it overflows."""
    install(monkeypatch.setattr)
    monkeypatch.setattr(assembly, "GradScaler", partial(GradScaler, init_scale=2.0**29, growth_interval=2))
    config = ONE.replace_keys({"precision": "fp16", "epochs": 4, "model.compile": compiled, "ema_decay": 0.5, **keys})
    found, expected = compared(config)
    skipped = [record.skipped_steps for record in found]
    assert skipped == [record.skipped_steps for record in expected] and 2 < skipped[0] < skipped[-1]
    assert found[-1].optimizer_steps == config.epochs * (TinySource().info.train_size // 16) - skipped[-1]
    assert [one.replays > 4 for one in recorded] == ([True] if compiled == "auto" else [])


@contextlib.contextmanager
def keeps_the_scale(run: assembly.Run) -> Iterator[None]:
    before = run.scaler.state_dict()
    yield
    run.scaler.load_state_dict(before)


def test_a_replay_that_leaves_the_scale_as_it_was_ends_them(monkeypatch, recorded) -> None:
    install(monkeypatch.setattr)
    monkeypatch.setitem(globals(), "Recorder", partial(Recorder, keeps_the_scale))
    reasons: list[str] = []
    monkeypatch.setattr(replayed_step, "_say", lambda run, reason: reasons.append(reason))
    with pretended_gpu():
        run(ONE.replace_keys({"precision": "fp16", "model.compile": "auto"}), "cuda")
    assert [one.replays for one in recorded] == [1]
    assert reasons == ["a replay changed fp16's scale otherwise than the step"]


@pytest.mark.parametrize("keys", [{}, {"data.loader.name": "ring", "data.val_image_size": 24}], ids=str)
@pytest.mark.parametrize("packed", [False, True])
def test_images_arrive_as_on_the_cpu(packed: bool, keys: dict[str, Any], tiny_images: Path, tmp_path, monkeypatch):
    """Packed images stay on the device, unless ``ring`` is asked for."""
    layers = torch.nn.Conv2d(3, 8, 3, stride=2), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1)
    network = torch.nn.Sequential(*layers, torch.nn.Flatten(), torch.nn.Linear(8, 2))
    monkeypatch.setattr(assembly, "build_model", lambda *_: copy.deepcopy(network))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    folder = pack_here(tiny_images, tmp_path / "packed") if packed else tiny_images
    keys = {"data.name": str(folder), "data.image_size": 16, "batch.global_size": 16, "peak_lr": 0.02, **keys}
    keys |= {"precise_bn": "on", "precise_bn_images": 32, "precision": "off", "random_erasing": 0.5}
    compared(TrainConfig(epochs=2).replace_keys({**keys, "cutmix_alpha": 0.5}))


@pytest.mark.parametrize("name", ["sgd", "lamb", "adamw"])
@pytest.mark.parametrize("compiled", ["off", "auto"])
def test_a_stopped_run_goes_on(name: str, compiled: str, tmp_path: Path, monkeypatch, recorded) -> None:
    """On the device, and on the CPU."""
    install(monkeypatch.setattr)
    monkeypatch.setattr(assembly, "RankMeetings", lambda world: RankMeetings(world, interval_s=0.0))
    config = ONE.replace_keys({"optimizer.name": name, "peak_lr": RATES[name], "model.compile": compiled})
    config = config.replace_keys({"ema_decay": 0.9})
    files, copied = tmp_path / "files", tmp_path / "copied"
    with pretended_gpu():
        whole = run(config, "cuda")
        with pytest.raises(TrainingStopped, match="in epoch 2 after step 3"):
            run(config, "cuda", reporter=StopsAt(7), checkpoint_dir=files)
        shutil.copytree(files, copied)
        resumed = run(config, "cuda", checkpoint_dir=files)
    for other in (resumed, run(config, "cpu", checkpoint_dir=copied)):
        for mine, theirs in zip(other, whole[-len(other) :], strict=True):
            assert mine.train_loss == pytest.approx(theirs.train_loss, rel=1e-3)
            assert mine.val_loss == pytest.approx(theirs.val_loss, rel=1e-3)


@pytest.mark.parametrize("name", RATES)
@pytest.mark.parametrize(
    "keys",
    [{}, {"precision": "fp16"}, {"mixup_alpha": 0.2, "clip_grad_norm": 0.5, "ema_decay": 0.9, "random_erasing": 0.5}],
    ids=len,
)
def test_the_host_waits_for_no_batch(name: str, keys: dict[str, Any], tmp_path: Path, monkeypatch) -> None:
    """In an epoch of 17 steps and 3 batches of validation it waits as often as in one of 9 and 2.

    The meetings of ranks wait, about once a second.
    """
    (tmp_path / "own.py").write_text(
        "def wrong(outputs, targets):\n    return (outputs.argmax(1) != targets).float()\n"
    )
    monkeypatch.setattr(RankMeetings, "due", lambda self: False)
    monkeypatch.setattr(helpers.pretended_gpu, "STAGED_BYTES", 0)
    keys = {"optimizer.name": name, "peak_lr": RATES[name], "precise_bn": "off", **keys}
    keys |= {"global_size": 4, "micro_size": 4, "epochs": 1, "metrics": [f"{tmp_path}/own.py:wrong"]}
    found, source = [], TinySource()
    for train, val in ((70, 23), (38, 15)):
        source.info = dataclasses.replace(source.info, train_size=train, val_size=val)
        install(monkeypatch.setattr, source=source)
        with pretended_gpu() as waits:
            run(ONE.replace_keys(keys), "cuda")
            found.append(+waits)
    assert found[0] == found[1] and found[0]


@pytest.mark.parametrize("loader", ["auto", "ring"])
def test_the_host_waits_for_no_batch_of_packed_images(loader: str, tmp_path: Path, monkeypatch) -> None:
    """Half of the images make half of the steps."""
    monkeypatch.setattr(RankMeetings, "due", lambda self: False)
    monkeypatch.setattr(helpers.pretended_gpu, "STAGED_BYTES", 0)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    network = torch.nn.Sequential(torch.nn.Conv2d(3, 10, 3), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())
    monkeypatch.setattr(assembly, "build_model", lambda *_: copy.deepcopy(network))
    packed, found = pack_here(write_small_images(tmp_path / "images"), tmp_path / "packed"), []
    keys = {"data.name": str(packed), "data.loader.name": loader, "data.loader.workers": 0, "batch.global_size": 10}
    for part in (1.0, 0.5):
        with pretended_gpu() as waits:
            run(TrainConfig(epochs=1).replace_keys({**keys, "data.subset": part, "random_erasing": 0.5}), "cuda")
            found.append(+waits)
    assert found[0] == found[1] and found[0]
