"""Energy, power and utilization of one NVIDIA GPU, from NVML (the optional package ``nvidia-ml-py``)."""

from __future__ import annotations

import contextlib
import importlib
import math
import time
from collections.abc import Callable
from typing import Any


class GpuCounters:
    """What NVML tells of one GPU. What it does not tell is not a number. Call ``joules`` every few seconds.

    The energy is that of the GPU's own counter (Volta and newer), in millijoules since the driver was loaded. Without
    it, it is power × time, summed up between the calls.

    Args:
        nvml: the module ``pynvml``, initialized.
        handle: of the GPU.
        clock: seconds.
    """

    def __init__(self, nvml: Any, handle: object, clock: Callable[[], float] = time.monotonic) -> None:
        self._nvml, self._handle, self._clock = nvml, handle, clock
        self._began_mj = self._read("nvmlDeviceGetTotalEnergyConsumption")
        self._at, self._power_w, self._summed_j = clock(), self.power_w(), 0.0

    def joules(self) -> float:
        """Joules since this object was made."""
        if not math.isnan(self._began_mj):
            return (self._read("nvmlDeviceGetTotalEnergyConsumption") - self._began_mj) / 1000
        now, power_w = self._clock(), self.power_w()
        self._summed_j += (now - self._at) * (self._power_w + power_w) / 2
        self._at, self._power_w = now, power_w
        return self._summed_j

    def power_w(self) -> float:
        """Watts that the GPU draws now."""
        return self._read("nvmlDeviceGetPowerUsage") / 1000

    def utilization(self) -> float:
        """The part of the last moments in which the GPU computed anything, 0 to 1."""
        with contextlib.suppress(self._nvml.NVMLError):
            return float(self._nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu) / 100
        return math.nan

    def _read(self, function: str) -> float:
        with contextlib.suppress(self._nvml.NVMLError):
            return float(getattr(self._nvml, function)(self._handle))
        return math.nan


def open_gpu_counters(uuid: str) -> GpuCounters | None:
    """The counters of the GPU with this UUID, as torch tells it; None without ``nvidia-ml-py`` or NVIDIA's driver.

    CUDA_VISIBLE_DEVICES numbers GPUs anew, so a number would not tell NVML which one is meant.
    """
    try:
        nvml: Any = importlib.import_module("pynvml")
    except ImportError:
        return None
    try:
        nvml.nvmlInit()
        # torch leaves out the prefix that NVML asks for.
        name = uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
        return GpuCounters(nvml, nvml.nvmlDeviceGetHandleByUUID(name))
    except nvml.NVMLError:
        return None
