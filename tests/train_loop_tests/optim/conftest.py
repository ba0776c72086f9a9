import pytest


@pytest.fixture(params=[True, False], ids=["one pass", "multi-tensor"])
def each_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test runs with LARS' and LAMB's steps as CPUs take them, and as other devices do."""
    if not request.param:
        for name in ("lars", "lamb"):
            monkeypatch.setattr(f"bigbatch.train_loop.optim.{name}.in_one_pass", lambda *_: False)
