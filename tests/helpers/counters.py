"""Counters of energy that tests write: of processors, as Linux shows them, and of a GPU, as NVML tells them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

MOST_UJ = 262_143_328_850
"""As an Intel Xeon shows it."""


class Powercap:
    """A folder as /sys/class/powercap: each counter by its name, in microjoules."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def counter(self, folder: str, name: str, uj: int) -> None:
        (self.root / folder).mkdir(parents=True, exist_ok=True)
        for file, text in (("name", name), ("max_energy_range_uj", MOST_UJ), ("energy_uj", uj)):
            (self.root / folder / file).write_text(f"{text}\n")

    def now(self, folder: str, uj: int) -> None:
        (self.root / folder / "energy_uj").write_text(f"{uj}\n")


class Nvml:
    """NVML's functions, for one GPU that draws ``power_w``. A GPU costs money."""

    class NVMLError(Exception):
        """As pynvml's."""

    def __init__(self, *, has_counter: bool = True, busy: int = 90) -> None:
        self.power_w, self.mj, self.busy, self.has_counter = 300.0, 5_000_000, busy, has_counter

    def nvmlDeviceGetTotalEnergyConsumption(self, _: object) -> float:
        if not self.has_counter:
            raise self.NVMLError
        return self.mj

    def nvmlDeviceGetPowerUsage(self, _: object) -> int:
        return int(1000 * self.power_w)

    def nvmlDeviceGetUtilizationRates(self, _: object) -> SimpleNamespace:
        return SimpleNamespace(gpu=self.busy, memory=1)
