"""Measure what a worker's GPU uses: energy and utilization.

NVML (the optional package ``nvidia-ml-py``) reports them.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import threading
from dataclasses import dataclass
from typing import Any


class GpuCounters:
    """What NVML reports of one GPU; NaN for values that it does not report.

    The energy is that of the GPU's own counter (Volta and newer), in millijoules since the driver was loaded.

    Args:
        nvml: the module ``pynvml``, initialized.
        handle: NVML's handle of the GPU.
    """

    def __init__(self, nvml: Any, handle: object) -> None:
        self._nvml, self._handle = nvml, handle
        self._began_mj = self._read()

    def joules(self) -> float:
        """Joules since this object was made."""
        return (self._read() - self._began_mj) / 1000

    def utilization(self) -> float:
        """The part of the last moments in which the GPU computed anything, 0 to 1."""
        with contextlib.suppress(self._nvml.NVMLError):
            return float(self._nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu) / 100
        return math.nan

    def _read(self) -> float:
        with contextlib.suppress(self._nvml.NVMLError):
            return float(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle))
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


SAMPLE_S = 5.0


@dataclass(frozen=True)
class DeviceUse:
    """What one worker has used in a period. NaN: not measured."""

    gpu_energy_j: float
    gpu_utilization: float
    """The part of the time in which the GPU computed anything, 0 to 1."""

    @property
    def idle_part(self) -> float:
        """1 − ``gpu_utilization``, for the maximum over the workers; 2 if it was not measured."""
        return 2.0 if math.isnan(self.gpu_utilization) else 1.0 - self.gpu_utilization


class UseMeter:
    """Measures within its ``with`` block. Without a GPU to measure it starts no thread.

    Args:
        gpu: this worker's GPU; None: it cannot be measured.
        gpu_part: the part of its GPU's energy that this worker counts: trials that share a GPU count it once in all.
    """

    def __init__(self, gpu: GpuCounters | None = None, *, gpu_part: float = 1.0) -> None:
        self._gpu, self._gpu_part = gpu, gpu_part
        self._lock, self._stop = threading.Lock(), threading.Event()
        self._thread: threading.Thread | None = None
        self._gpu_j, self._taken_j = 0.0 if gpu else math.nan, 0.0
        self._utilizations: list[float] = []

    def __enter__(self) -> UseMeter:
        if self._gpu:
            self._thread = threading.Thread(target=self._run, daemon=True, name="device use")
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(SAMPLE_S)

    def used(self) -> DeviceUse:
        """What was used since the last ``take``."""
        # The thread looks only every few seconds.
        self.sample()
        with self._lock:
            seen = self._utilizations
            return DeviceUse(self._gpu_j - self._taken_j, sum(seen) / len(seen) if seen else math.nan)

    def take(self) -> DeviceUse:
        """``used``, which begins at 0 again."""
        use = self.used()
        with self._lock:
            self._taken_j, self._utilizations = self._gpu_j, []
        return use

    def resume(self, gpu_energy_j: float) -> None:
        """Add what was used before the run was interrupted."""
        self._taken_j -= gpu_energy_j

    def sample(self) -> None:
        """Read all counters."""
        if not self._gpu:
            return
        with self._lock:
            self._gpu_j = self._gpu_part * self._gpu.joules()
            if not math.isnan(now := self._gpu.utilization()):
                self._utilizations.append(now)

    def _run(self) -> None:
        while not self._stop.wait(SAMPLE_S):
            self.sample()
