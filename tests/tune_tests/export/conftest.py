"""What tests of several exports use."""

from collections.abc import Iterator

import pytest

from helpers.wandb_server import WandbServer


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[WandbServer]:
    """A server of W&B's, which the environment names."""
    with WandbServer() as found:
        for name, value in found.environment.items():
            monkeypatch.setenv(name, value)
        yield found
