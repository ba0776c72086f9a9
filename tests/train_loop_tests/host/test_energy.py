"""Energy and utilization of GPUs: counters that tell nothing, that are not there, and that trials share."""

import importlib
import math
import sys
import time

import pytest

from bigbatch.train_loop.host.device_use import (
    GpuCounters,
    UseMeter,
    open_gpu_counters,
)  # fmt: skip
from helpers.counters import Nvml


def test_a_gpu_that_tells_nothing_is_not_measured() -> None:
    nvml = Nvml(has_counter=False)
    nvml.nvmlDeviceGetUtilizationRates = nvml.nvmlDeviceGetTotalEnergyConsumption  # type: ignore[assignment, method-assign]
    gpu = GpuCounters(nvml, None)
    assert math.isnan(gpu.joules()) and math.isnan(gpu.utilization())


def test_no_library_and_no_driver_mean_no_counters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert open_gpu_counters("GPU-1") is None
    monkeypatch.undo()
    if importlib.util.find_spec("pynvml"):
        assert open_gpu_counters("00000000-0000-0000-0000-000000000000") is None


def test_a_meter_tells_what_was_used_since_it_was_asked() -> None:
    nvml = Nvml()
    meter = UseMeter(GpuCounters(nvml, None))
    meter.resume(10.0)
    nvml.mj += 4000
    assert meter.used() == meter.used(), "asking changes nothing"
    use = meter.take()
    assert (use.gpu_energy_j, use.gpu_utilization) == (14.0, pytest.approx(0.9))
    nvml.mj, nvml.busy = nvml.mj + 500, 10
    use = meter.take()
    assert (use.gpu_energy_j, use.gpu_utilization) == (0.5, 0.1)
    assert math.isnan(UseMeter().take().gpu_energy_j), "no counter: not measured, not 0"


def test_trials_that_share_a_gpu_count_its_energy_once() -> None:
    nvml = Nvml()
    meters = [UseMeter(GpuCounters(nvml, None), gpu_part=1 / 3) for _ in range(3)]
    nvml.mj += 4500
    used = [meter.take() for meter in meters]
    assert sum(use.gpu_energy_j for use in used) == pytest.approx(4.5)
    assert {use.gpu_utilization for use in used} == {0.9}, "of the whole GPU"


@pytest.mark.gpu
def test_the_gpu_that_torch_names_uses_energy_while_it_computes() -> None:
    pytest.importorskip("pynvml")
    import torch

    gpu = open_gpu_counters(str(torch.cuda.get_device_properties(0).uuid))
    if "MIG" in torch.cuda.get_device_name(0):
        assert gpu is None, "a part of a GPU has no counter of its own"
        return
    assert gpu is not None and 0 <= gpu.utilization() <= 1
    image, until = torch.rand(4096, 4096, device="cuda"), time.monotonic() + 20
    while not gpu.joules() > 1 and time.monotonic() < until:
        (image @ image).sum().item()
    assert 1 < gpu.joules() < 20_000
