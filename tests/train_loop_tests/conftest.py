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

    folder = tmp_path / "powercap" / "intel-rapl:0"
    folder.mkdir(parents=True)
    for name, text in (("name", "package-0"), ("max_energy_range_uj", "1000000000"), ("energy_uj", "5")):
        (folder / name).write_text(f"{text}\n")
    monkeypatch.setattr(worker_use, "open_processor_energy", lambda: ProcessorEnergy(folder.parent))
    return folder / "energy_uj"
