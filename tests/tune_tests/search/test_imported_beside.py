"""What is imported while Ray starts changes neither how the start fails nor how it is interrupted."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from bigbatch.train_loop.errors import RayStartError
from bigbatch.tune.search.driver import imported_beside

FAILS = "raise RuntimeError('this module is broken')\n"
NAMES = "import threading\nTHREAD = threading.current_thread()\n"


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of a new module with the given text."""
    name = f"beside_{abs(hash(request.node.name))}"
    (tmp_path / f"{name}.py").write_text(request.param)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield name
    sys.modules.pop(name, None)


@pytest.mark.parametrize("module", [NAMES], indirect=True)
def test_another_thread_imports_it_and_is_done_after_the_block(module: str) -> None:
    with imported_beside(module):
        pass
    thread = sys.modules[module].THREAD
    assert thread is not threading.current_thread() and not thread.is_alive()


@pytest.mark.parametrize("module", [FAILS, NAMES], indirect=True)
@pytest.mark.parametrize("error", [RayStartError("Ray did not start: a reason"), KeyboardInterrupt()])
def test_the_starts_own_error_comes_out_and_leaves_no_thread(module: str, error: BaseException, capfd) -> None:
    with pytest.raises(type(error)) as met, imported_beside(module):
        raise error
    assert met.value is error and met.value.__context__ is None
    assert not [one for one in threading.enumerate() if module in one.name]
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("module", [FAILS], indirect=True)
def test_a_module_that_fails_says_so_where_it_is_used_and_not_before(module: str, capfd) -> None:
    with imported_beside(module):
        pass
    assert capfd.readouterr() == ("", "")
    with pytest.raises(RuntimeError, match="this module is broken"):
        importlib.import_module(module)
