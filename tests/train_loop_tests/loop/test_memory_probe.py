"""The memory probe on devices that only calculate, and on a real one where there is one."""

import json
import math
import types
from pathlib import Path
from typing import Any

import pytest
import torch

from bigbatch.train_loop.config import BatchConfig, ConfigError, ModelConfig, TrainConfig
from bigbatch.train_loop.data.info import DataInfo
from bigbatch.train_loop.loop import memory_probe
from bigbatch.train_loop.loop.memory_probe import DeviceMemory, probe_micro_batch, step_key
from bigbatch.train_loop.loop.step import TrainStep
from bigbatch.train_loop.loop.train import train
from bigbatch.train_loop.reporter import ListReporter
from helpers.full_device import BELOW_TORCH, MESSAGE
from helpers.loop_references import run
from helpers.tiny_training import CONFIG, TinySource, bn_on_one_value, changed, untimed

GIB = 2**30


class Device:
    """Weights take ``fixed`` bytes and each image ``each``; above ``total`` there is no memory."""

    def __init__(self, fixed: float, each: float, total: int = 16 * GIB) -> None:
        self.tried: list[int] = []
        self.fixed, self.each, self.total = fixed, each, total

    def peak(self, images: int) -> float:
        self.tried.append(images)
        need = self.fixed + self.each * images
        return need if need <= self.total else math.inf

    @property
    def memory(self) -> DeviceMemory:
        return DeviceMemory("fake", self.total, self.peak)


def test_headroom_is_kept() -> None:
    device = Device(fixed=1 * GIB, each=0.05 * GIB)
    size = probe_micro_batch(device.memory, "key", None)
    assert size == math.floor(((1 - memory_probe.HEADROOM) * 16 - 1) / 0.05)
    assert device.fixed + device.each * size <= (1 - memory_probe.HEADROOM) * device.total


def test_it_is_measured_once_a_device_and_configuration(tmp_path: Path) -> None:
    cache = tmp_path / "home" / "cache.json"
    device = Device(GIB, GIB / 50)
    size = probe_micro_batch(device.memory, "a", cache)
    calls = len(device.tried)
    assert calls > 0 and probe_micro_batch(device.memory, "a", cache) == size and len(device.tried) == calls
    probe_micro_batch(device.memory, "b", cache)
    assert len(device.tried) > calls
    other = Device(GIB, GIB / 50, total=8 * GIB)
    assert probe_micro_batch(other.memory, "a", cache) < size and other.tried
    assert set(json.loads(cache.read_text())) == {f"fake, {total * GIB} bytes" for total in (8, 16)}


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "{", '{"fake, 17179869184 bytes": 3}', '{"fake, 17179869184 bytes": {"a": "x"}}',
        '{"fake, 17179869184 bytes": {"a": {"fits": 9, "too_many": 30}}}', '{"fake, 17179869184 bytes": {"a": 0}}',
    ],
)  # fmt: skip
def test_a_damaged_cache_is_measured_anew(tmp_path: Path, text: str) -> None:
    cache = tmp_path / "cache.json"
    cache.write_text(text)
    device = Device(GIB, GIB / 50)
    assert probe_micro_batch(device.memory, "a", cache) == probe_micro_batch(Device(GIB, GIB / 50).memory, "a", None)
    assert device.tried


def test_a_cache_that_cannot_be_written_costs_a_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.warns(UserWarning, match="cannot be stored"):
        assert probe_micro_batch(Device(GIB, GIB / 50).memory, "a", tmp_path / "file" / "cache.json") > 0


def test_one_image_that_does_not_fit_is_refused_with_the_way_out() -> None:
    with pytest.raises(ConfigError, match="one image must fit.*16.0 GiB on fake.*activation_checkpointing=true"):
        probe_micro_batch(Device(20 * GIB, 1).memory, "a", None)


def test_the_key_moves_with_what_takes_memory_and_with_nothing_else() -> None:
    info = TinySource().info
    base = step_key(CONFIG, info, "off")
    for same in ({"peak_lr": 0.3}, {"epochs": 9}, {"global_size": 32}, {"seed": 4}):
        assert step_key(changed(CONFIG, **same), info, "off") == base
    for other in ({"ema_decay": 0.9}, {"optimizer__name": "lamb"}, {"activation_checkpointing": True}):
        assert step_key(changed(CONFIG, **other), info, "off") != base
    assert step_key(CONFIG, info, "bf16") != base


def test_on_a_cpu_nothing_is_measured(built):
    config = changed(CONFIG, micro_size=0)
    unmeasured, measured = (untimed(run(one)) for one in (config, changed(config, max_micro_size=0)))
    assert unmeasured == measured
    assert BatchConfig(1024, max_micro_size=0).split(1) == BatchConfig(1024).split(1)


def test_the_device_is_chosen_before_it_is_measured(built, monkeypatch):
    """On the second GPU of a node a probe would else leave a context, and cached memory, on the first."""
    seen: list[object] = []

    def measure(config: object, info: object, device: torch.device, precision: str) -> int:
        seen.append(device)
        raise ConfigError("far enough")

    monkeypatch.setattr(torch.cuda, "set_device", seen.append)
    monkeypatch.setattr(memory_probe, "max_micro_size", measure)
    config = changed(CONFIG, micro_size=0, max_micro_size=0, precision="off")
    before = torch.backends.cudnn.benchmark
    try:
        with pytest.raises(ConfigError, match="far enough"):
            train(config, reporter=ListReporter(), device=torch.device("cuda", 1))
    finally:
        torch.backends.cudnn.benchmark = before
    assert seen == [torch.device("cuda", 1)] * 2


class CudaOnCpu:
    """A CUDA device whose steps are computed here, for a network that cannot train with one image.

    With more than ``holds`` images a step raises ``full``.
    """

    def __init__(self, patch: pytest.MonkeyPatch, cache: Path, holds: int, full: Exception) -> None:
        patch.setenv("XDG_CACHE_HOME", str(cache))
        self.tried: list[int] = []
        self.tuned: list[bool] = []
        gradients, step = TrainStep.gradients, memory_probe._train_step

        def limited(this: TrainStep, images: torch.Tensor, *arguments: Any, **keywords: Any) -> object:
            self.tuned.append(torch.backends.cudnn.benchmark)
            if len(images) > holds:
                raise full
            return gradients(this, images, *arguments, **keywords)

        def here(config: TrainConfig, info: DataInfo, device: torch.device, precision: str, images: int) -> None:
            self.tried.append(images)
            step(config, info, torch.device("cpu"), precision, images)

        patch.setattr(memory_probe, "build_model", lambda *_: bn_on_one_value())
        patch.setattr(TrainStep, "gradients", limited)
        patch.setattr(memory_probe, "_train_step", here)
        properties = types.SimpleNamespace(name="a GPU", total_memory=16 * GIB)
        patch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
        patch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: None)
        patch.setattr(torch.cuda, "max_memory_reserved", lambda device: GIB)
        patch.setattr(torch.backends.cudnn, "benchmark", True)
        patch.setattr(memory_probe.gc, "collect", lambda: 0)  # half a second each, with all that pytest has loaded

    def measured(self) -> int:
        config = TrainConfig(batch=BatchConfig(64), model=ModelConfig("resnet18"))
        return memory_probe.max_micro_size(config, TinySource().info, torch.device("cuda", 0), "off")


@pytest.mark.parametrize("full", [torch.OutOfMemoryError(MESSAGE), RuntimeError(BELOW_TORCH[0])])
def test_every_librarys_lack_of_memory_is_a_size_that_does_not_fit(monkeypatch, tmp_path, full):
    device = CudaOnCpu(monkeypatch, tmp_path, 5, full)
    assert device.measured() == 5
    assert device.tried == [1, 2, 4, 8, 6, 5]
    assert not any(device.tuned) and torch.backends.cudnn.benchmark, "cuDNN tunes the size that is trained, no other"


def test_on_a_gpu_that_trials_share_only_a_part_is_measured_and_kept_apart(monkeypatch, tmp_path):
    device = CudaOnCpu(monkeypatch, tmp_path, 8, torch.OutOfMemoryError(MESSAGE))
    for trials, peak, found in ((1, 10, 8), (2, 10, None), (2, 6, 8)):  # GiB of 16, and of 0.45 × 16 = 7.2
        monkeypatch.setenv("BIGBATCH_TRIALS_PER_GPU", str(trials))
        monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda device, peak=peak: peak * GIB)
        if found is None:
            with pytest.raises(ConfigError, match=r"one image must fit .* got 7\.2 GiB"):
                device.measured()
        else:
            assert device.measured() == found
    assert len(json.loads(memory_probe.cache_file().read_text())) == 2, "two devices in the cache"


def test_another_error_of_a_step_is_no_lack_of_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    device = CudaOnCpu(monkeypatch, tmp_path, 5, RuntimeError("CUDA error: device-side assert triggered"))
    with pytest.raises(RuntimeError, match="device-side assert"):
        device.measured()


@pytest.mark.gpu
def test_a_real_device_runs_what_was_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ResNet-18 cannot train with one image of 8 pixels: its last map is 1×1. Another batch is not measured."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    device, info = torch.device("cuda", 0), TinySource().info
    batch = BatchConfig(memory_probe.MAX_MICRO_BATCH, max_micro_size=0)
    config = TrainConfig(batch=batch, model=ModelConfig(name="resnet18"))
    size = memory_probe.max_micro_size(config, info, device, "off")
    memory_probe._train_step(config, info, device, "off", size)
    assert 2 <= size <= memory_probe.MAX_MICRO_BATCH and memory_probe.cache_file().exists()
    monkeypatch.delattr(memory_probe, "_train_step")
    assert memory_probe.max_micro_size(changed(config, global_size=2), info, device, "off") == size
