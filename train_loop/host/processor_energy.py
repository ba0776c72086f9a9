"""The energy of this machine's processors, from the counters that Linux shows in /sys/class/powercap (RAPL).

The counters are of whole processors, so they also count the work of everybody else on the machine. Since Linux 5.10
only root may read them unless the administrator allows it (CVE-2020-8694).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

POWERCAP = Path("/sys/class/powercap")
_PACKAGE, _PART = re.compile(r"intel-rapl:\d+"), re.compile(r"intel-rapl:\d+:\d+")
"""AMD's processors have these names too. ``intel-rapl-mmio`` shows the same counters a second time."""


@dataclass
class _Counter:
    """One counter in microjoules. It begins again at 0 after ``most``."""

    path: Path
    most: int
    last: int

    def used_j(self) -> float:
        """Joules since the last call. Call it more often than the counter begins again: it takes minutes."""
        now = int((self.path / "energy_uj").read_text())
        used = now - self.last if now >= self.last else now + self.most - self.last
        self.last = now
        return used / 1e6


class ProcessorEnergy:
    """Joules that the processors of this machine have used since it was made, with their memory where that is counted.

    Args:
        root: the folder of the counters.

    Raises:
        OSError: no counter is there, or one cannot be read. The text says which.
    """

    def __init__(self, root: Path = POWERCAP) -> None:
        self._joules = 0.0
        self._counters = [_counter(path) for path in _counted(root)]
        if not self._counters:
            raise OSError(f"no energy counter of a processor in {root}")

    def joules(self) -> float:
        """Joules so far. Not a number once a counter can no longer be read."""
        try:
            self._joules += sum(counter.used_j() for counter in self._counters)
        except (OSError, ValueError):
            self._joules = float("nan")
        return self._joules


def open_processor_energy(root: Path = POWERCAP) -> ProcessorEnergy | None:
    """The counters of this machine; None if it does not show them, or only to root."""
    try:
        return ProcessorEnergy(root)
    except (OSError, ValueError):
        return None


def _counted(root: Path) -> list[Path]:
    """Each processor, and its memory where that has a counter of its own: a processor's does not contain it."""
    paths = sorted(root.iterdir()) if root.is_dir() else []
    packages = [path for path in paths if _PACKAGE.fullmatch(path.name) and _name(path).startswith("package")]
    memory = [path for path in paths if _PART.fullmatch(path.name) and _name(path) == "dram"]
    return packages + memory if packages else []


def _name(path: Path) -> str:
    return (path / "name").read_text().strip()


def _counter(path: Path) -> _Counter:
    most = int((path / "max_energy_range_uj").read_text())
    return _Counter(path, most, int((path / "energy_uj").read_text()))
