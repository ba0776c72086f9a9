"""Training on a GPU, as far as a machine without one can tell: on a pretended one it is training on the CPU."""

from __future__ import annotations

import copy
import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from bigbatch.train_loop.config import TrainConfig
from bigbatch.train_loop.distributed import RankMeetings
from bigbatch.train_loop.errors import TrainingStopped
from bigbatch.train_loop.loop import assembly, replayed_step
from bigbatch.train_loop.loop.replayed_step import ReplayedStep
from helpers.loop_references import run
from helpers.packed_sets import pack_here
from helpers.pretended_gpu import OnGpu, pretended_gpu
from helpers.recorded_steps import Recorder
from helpers.tiny_training import CONFIG, StopsAt, TinySource, install

RATES = {"sgd": 0.05, "lars": 1.0, "lamb": 0.01, "adamw": 0.003}
ONE = CONFIG.replace_keys({"micro_size": 16, "precision": "off"})
"""A step is one micro-batch."""
AUTO = {"model.compile": "auto"}
LAMB = {"optimizer.name": "lamb", "peak_lr": 0.01}


def compared(config: TrainConfig, **keywords: Any) -> None:
    with pretended_gpu():
        found = run(config, "cuda", **keywords)
    expected = run(config.replace_keys({"model.compile": "off"}), **keywords)
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.train_loss == pytest.approx(theirs.train_loss, rel=1e-3)
        assert mine.val_loss == pytest.approx(theirs.val_loss, rel=1e-3)
        assert mine.noise_scale == pytest.approx(theirs.noise_scale, rel=0.01)


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
@pytest.mark.parametrize("keys", [{}, {"mixup_alpha": 0.2, "clip_grad_norm": 0.5, "ema_decay": 0.9}], ids=len)
def test_the_host_waits_for_no_batch(name: str, keys: dict[str, Any], tmp_path: Path, monkeypatch) -> None:
    """In an epoch of 17 steps and 3 batches of validation it waits as often as in one of 9 and 2.

    The meetings of ranks wait, about once a second.
    """
    (tmp_path / "own.py").write_text(
        "def wrong(outputs, targets):\n    return (outputs.argmax(1) != targets).float()\n"
    )
    monkeypatch.setattr(RankMeetings, "due", lambda self: False)
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
