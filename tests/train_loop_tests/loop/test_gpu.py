"""The loop on a GPU, and the same tests on the CPU, so that they are known to work before a GPU is at hand."""

import copy
import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_leaves

from bigbatch.train_loop.config import TrainConfig
from bigbatch.train_loop.distributed import RankMeetings, World
from bigbatch.train_loop.loop import assembly
from bigbatch.train_loop.loop.sharded_state import read_shards, write_shards
from bigbatch.train_loop.loop.step import TrainStep
from bigbatch.train_loop.loop.train import TrainingStopped
from bigbatch.train_loop.model.sharding import shard
from bigbatch.train_loop.model.weight_average import WeightAverage
from bigbatch.train_loop.optim import build_optimizer
from bigbatch.train_loop.optim.layerwise import is_dtensor
from bigbatch.train_loop.optim.noise_scale import GradientNorms
from helpers.loop_references import run
from helpers.paths import TRAIN
from helpers.processes import clean_environment
from helpers.tiny_training import CONFIG, StopsAt, TinySource, bn_model, changed, install, plain_model, untimed

PACKAGES = {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}
"""Where a machine with a GPU may have torch and Ray."""
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("optimizer", ["sgd", "lars", "lamb", "adamw"])
def test_every_optimizer_learns_as_in_float64(device: str, optimizer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference: the same run on the CPU in float64. The network has no BatchNorm, which would amplify rounding."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)  # 10 bits of mantissa
    rate = {"sgd": 0.05, "lars": 1.0, "lamb": 0.01, "adamw": 0.003}[optimizer]
    config = changed(CONFIG, optimizer__name=optimizer, peak_lr=rate, precision="off", precise_bn="off", ema_decay=0.9)
    install(monkeypatch.setattr, build=plain_model)
    found = run(config, device)
    source = TinySource()
    source.train = source.train[0].double(), source.train[1]
    source.val = source.val[0].double(), source.val[1]
    install(monkeypatch.setattr, build=lambda: plain_model().double(), source=source)
    expected = run(config, "cpu")
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.train_loss == pytest.approx(theirs.train_loss, rel=2e-3)
        assert mine.val_loss == pytest.approx(theirs.val_loss, rel=2e-3)


@pytest.mark.parametrize("device", DEVICES)
def test_a_stopped_run_goes_on_to_the_same_result(device, tmp_path, built, monkeypatch):
    """On a GPU with the same algorithms: ``use_deterministic_algorithms``; atomic sums differ in the last digits.

    The reporter is asked after each step, on a GPU too; else it would be about once a second.
    """
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    monkeypatch.setattr(assembly, "RankMeetings", lambda world: RankMeetings(world, interval_s=0.0))
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        whole = run(CONFIG, device)
        built.rates.clear()
        with pytest.raises(TrainingStopped, match="in epoch 2 after step 2"):
            run(CONFIG, device, reporter=StopsAt(6), checkpoint_dir=tmp_path)
        assert len(built.rates) == 6
        resumed = run(CONFIG, device, checkpoint_dir=tmp_path)
    finally:
        torch.use_deterministic_algorithms(False)
    last, again = untimed(whole)[-1], untimed(resumed)[-1]
    for key, value in last.items():
        expected = pytest.approx(value, rel=1e-3) if device == "cuda" and isinstance(value, float) else value
        assert again[key] == expected, key


@pytest.mark.parametrize("device", DEVICES)
def test_images_from_loader_processes_train_on_the_device(device: str, tiny_images: Path, monkeypatch) -> None:
    """Dark and light noise: bright pixels that were lost or mixed up on their way would not be told apart."""
    layers = nn.Conv2d(3, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    monkeypatch.setattr(assembly, "build_model", lambda *_: nn.Sequential(*layers, nn.Linear(8, 2)))
    keys: dict[str, object] = {"data.name": str(tiny_images), "data.image_size": 16}
    keys |= {"batch.global_size": 16, "peak_lr": 0.02, "precise_bn": "on", "precise_bn_images": 64}
    config = TrainConfig(epochs=8).replace_keys({**keys, "data.loader.workers": 1, "data.loader.name": "ring"})
    last = run(config, device)[-1]
    assert last.val_top1 > 0.9 and last.loader_processes == 1


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
@pytest.mark.parametrize("optimizer", ["lars", "lamb", "adamw"])
def test_a_group_of_one_rank_trains_as_none(
    device: str, kind: str, optimizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a single GPU can tell of several: gradients summed in bf16 over its backend, shards, and their files."""
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)  # AdamW makes a gradient of rounding alone large
    config = changed(CONFIG, optimizer__name=optimizer, peak_lr=0.01, clip_grad_norm=0.5, bf16_gradients=True)
    world = World(0, 1, torch.device(device, 0) if device == "cuda" else torch.device(device))
    alone = trained_steps(config, world, "none")
    dist.init_process_group("nccl" if device == "cuda" else "gloo", rank=0, world_size=1, store=dist.HashStore())
    try:
        step = trained_steps(config, world, kind)
        content = {"model": step.model.state_dict(), "optimizer": step.optimizer.state_dict()}
        read = read_shards(
            write_shards(content, tmp_path, world, whole=False), tmp_path, step.model, step.optimizer, []
        )
        for mine, theirs in zip(tensors_of(content), tensors_of({key: read[key] for key in content}), strict=True):
            assert torch.equal(mine, theirs)
        for mine, theirs in zip(tensors_of(step.model.state_dict()), tensors_of(alone.model.state_dict()), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=0.02, atol=1e-3)  # 8 bits
    finally:
        dist.destroy_process_group()


def tensors_of(values: object) -> list[torch.Tensor]:
    found: list[Any] = [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]
    return [(one.full_tensor() if is_dtensor(one) else one).detach().cpu() for one in found]


def trained_steps(config: TrainConfig, world: World, kind: str) -> TrainStep:
    """After four steps with one batch."""
    torch.manual_seed(0)
    model = plain_model()
    if kind == "fsdp2":
        model = shard(model, world, bf16_gradients=True)
    parallel = model = model.to(world.device)
    if kind == "ddp":
        parallel = DistributedDataParallel(model, device_ids=[0] if world.device.type == "cuda" else None)
        norms = GradientNorms(world.device, accumulation_steps=1, workers=2)
        norms.watch(parallel, bf16=True)
    step = TrainStep(
        config, world.device, lambda images: images, model, parallel, build_optimizer(model, config.optimizer),
        GradScaler(enabled=False), WeightAverage(model, 0.9), "off",
    )  # fmt: skip
    images, labels = (part[:16].to(world.device) for part in TinySource().train)
    for number in range(1, 5):
        step.gradients(images, labels, 1, last=True)
        step.update(0.01, number)
        assert step.skipped == 0
    if kind == "ddp":
        norms.step([], 1.0)
        assert norms.sums[0] > 0, "what was sent is measured"
    return step


@pytest.mark.parametrize("device", DEVICES)
def test_a_compiled_network_in_ddp_has_the_gradients_of_the_plain_one(device: str, monkeypatch) -> None:
    """In a group of one rank. On the CPU without inductor's code generation, which takes minutes."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    if device == "cpu":
        monkeypatch.setattr(assembly.torch, "compile", partial(torch.compile, backend="aot_eager"))
    world = World(0, 2, torch.device(device, 0) if device == "cuda" else torch.device(device))
    plain = nn.Sequential(*list(bn_model().children())[:-2]).to(world.device)  # without dropout
    model = copy.deepcopy(plain)
    dist.init_process_group("nccl" if device == "cuda" else "gloo", rank=0, world_size=1, store=dist.HashStore())
    try:
        parallel = assembly._parallel(assembly._compiled(model), world, False, False)
        norms = GradientNorms(world.device, accumulation_steps=1, workers=2)
        norms.watch(parallel)
        for size in (16, 5):
            images = TinySource().train[0][:size].to(world.device)
            for network in (parallel, plain):
                network(images).square().mean().backward()
        norms.step([], 1.0)
    finally:
        dist.destroy_process_group()
    for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-4, atol=1e-5)
    for one, other in zip(model.buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(one, other)
    assert norms.sums[0] > 0, "what was sent is measured"


@pytest.mark.gpu
def test_torchrun_trains_over_nccl(tmp_path: Path, tiny_images: Path) -> None:
    """One rank a GPU, on all GPUs that are here. A single one has nobody to talk to, and NCCL says nothing."""
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(torch.cuda.device_count()),
             str(TRAIN), "--config", "best.json", "--output", "out"]  # fmt: skip
    config = TrainConfig(epochs=2).replace_keys(
        {"model.name": "resnet18", "data.name": str(tiny_images), "data.image_size": 32, "batch.global_size": 16}
    )
    (tmp_path / "best.json").write_text(config.to_json())
    done = subprocess.run(
        [sys.executable, *words], cwd=tmp_path, env={**clean_environment(), **PACKAGES, "NCCL_DEBUG": "INFO"},
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert len(result["history"]) == 2
    assert torch.cuda.device_count() == 1 or "NCCL version" in done.stdout + done.stderr


@pytest.mark.gpu
def test_a_search_trains_on_the_gpu(run_command, tiny_images: Path, tiny_space: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    from helpers.paths import TUNE

    done = run_command(
        TUNE, "--space", tiny_space, "--data", tiny_images, "--model", "resnet18", "--trials", 2, "--max-epochs", 1,
        "--study", "on-gpu", timeout_s=600, CUDA_VISIBLE_DEVICES=os.environ.get("CUDA_VISIBLE_DEVICES", "0"),
        **PACKAGES,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "GPU" in done.stdout and (tmp_path / "runs" / "on-gpu" / "best.json").exists()
