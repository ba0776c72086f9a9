"""The first signal saves, a Ctrl-C after it ends at once: with real signals, sent by this process to itself."""

import ast
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from bigbatch.train_loop.host import signals
from bigbatch.train_loop.host.signals import STOP_SIGNALS, StopSignals
from helpers.paths import ROOT, product_files

TAKES_SIGNALS = {
    "src/bigbatch/base/fork_server.py",  # before a copy has work
    "cluster/cli.py",  # what takes its place must end with its reader
    "cluster/job/state_machine.py",  # a batch script asks Slurm what each signal means
    "cluster/node/node_process.py",  # a node ends when its job says so
    "train_loop/data/loading/ring.py",  # loader processes leave signals to the trainer
    "train_loop/host/signals.py",
    "train_loop/launch/ray_worker.py",  # what a user's code forks ends by SIGTERM
}
"""Files that install a handler."""


@pytest.fixture(autouse=True)
def ours() -> Iterator[None]:
    """Handlers as in a fresh Python, whatever pytest was started with."""
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in STOP_SIGNALS[1:]:
        signal.signal(number, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def send(number: int) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("first", STOP_SIGNALS)
def test_the_first_asks_once_others_do_nothing_and_a_later_ctrl_c_ends(first: int) -> None:
    asked: list[int] = []
    with StopSignals(asked.append) as taken:
        assert taken.first is None and taken.waited_s() == 0
        for number in (first, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
            send(number)
        assert asked == [first] and taken.first == first and taken.waited_s() > 0
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                send(signal.SIGINT)
    assert asked == [first]
    with pytest.raises(KeyboardInterrupt):  # Python's own handler again
        send(signal.SIGINT)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_ctrl_c_that_a_launcher_hands_on_is_no_second_one(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(signals.time, "monotonic", lambda: now[0])
    with StopSignals(lambda number: None, same_signal_s=3.0) as taken:
        send(signal.SIGINT)
        now[0] += 2.9
        send(signal.SIGINT)
        now[0] += 0.2
        assert taken.waited_s() == pytest.approx(3.1)
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGINT)


@pytest.mark.parametrize("also_ignored", [False, True])
def test_a_signal_that_was_ignored_stays_so_unless_a_launcher_hands_it_on(also_ignored: bool) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with StopSignals(lambda number: None, also_ignored=also_ignored) as taken:
        send(signal.SIGHUP)
        assert (taken.first == signal.SIGHUP) == also_ignored
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN


def test_a_process_that_is_forked_does_nothing_with_them(tmp_path: Path) -> None:
    with StopSignals(lambda number: (tmp_path / "asked").touch()) as taken:
        child = os.fork()
        if child == 0:
            send(signal.SIGTERM)
            os._exit(0 if taken.first is None else 1)
        assert os.waitpid(child, 0)[1] == 0
    assert not (tmp_path / "asked").exists()


def test_no_other_file_of_the_packages_installs_a_handler_of_its_own() -> None:
    found = set()
    for path in product_files():
        calls = (node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))
        if any(ast.unparse(call) == "signal.signal" for call in calls):
            found.add(str(path.relative_to(ROOT)))
    assert found == TAKES_SIGNALS
