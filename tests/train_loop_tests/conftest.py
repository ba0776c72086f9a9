from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from helpers.tiny_training import Installed


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> Installed:
    """Runs train the tiny network on the tiny data: what they built."""
    from helpers.tiny_training import install

    return install(monkeypatch.setattr)


@pytest.fixture
def counter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A processor's energy in microjoules, as /sys/class/powercap shows it; it is the machine's."""
    from bigbatch.train_loop.host.device_use import ProcessorEnergy
    from bigbatch.train_loop.loop import worker_use
    from helpers.counters import Powercap

    tree = Powercap(tmp_path / "powercap")
    tree.counter("intel-rapl:0", "package-0", 5)
    monkeypatch.setattr(worker_use, "open_processor_energy", lambda: ProcessorEnergy(tree.root))
    return tree.root / "intel-rapl:0" / "energy_uj"
