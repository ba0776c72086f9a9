"""NVML's counters of a GPU, which tests write."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace


class Nvml:
    """NVML's functions, for one GPU. A GPU costs money."""

    class NVMLError(Exception):
        """As pynvml's."""

    def __init__(self, *, has_counter: bool = True, counter: Path | None = None) -> None:
        self.mj, self.busy, self.has_counter = 5_000_000, 90, has_counter
        self._counter = counter

    def nvmlDeviceGetTotalEnergyConsumption(self, _: object) -> float:
        if not self.has_counter:
            raise self.NVMLError
        return int(self._counter.read_text()) if self._counter else self.mj

    def nvmlDeviceGetUtilizationRates(self, _: object) -> SimpleNamespace:
        return SimpleNamespace(gpu=self.busy, memory=1)
