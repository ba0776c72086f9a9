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
    """The worker has a GPU whose energy is in this file, in millijoules."""
    from bigbatch.train_loop.host.device_use import GpuCounters, UseMeter
    from bigbatch.train_loop.loop import assembly, worker_use
    from helpers.counters import Nvml

    path = tmp_path / "millijoules"
    path.write_text("5")
    for module in (assembly, worker_use):
        monkeypatch.setattr(module, "open_use_meter", lambda _: UseMeter(GpuCounters(Nvml(counter=path), None)))
    return path
