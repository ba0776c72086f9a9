"""How a search is ended: by Ctrl-C on a terminal, or because it can never go on."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path

import optuna
import psutil
import pytest
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from helpers.paths import ROOT
from helpers.processes import clean_environment, wait_gone

COLUMNS, ROWS = 100, 40
SEARCH = """
import ctypes, os, signal, sys
sys.path.insert(0, sys.argv[1])
from rich.console import Console
from bigbatch.train_loop.config import TrainConfig
from bigbatch.tune.console.display import SearchProgress, make_display
from bigbatch.tune.search.interrupts import Interrupts, StopRequest
from bigbatch.tune.runs.observer import TrialView

console, stop, byte = Console(), StopRequest(), ctypes.create_string_buffer(1)
held = os.open(sys.argv[2], os.O_RDWR)

def inside_a_call():
    "As a call into Ray: other threads may run, and Python's signal handlers do not."
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # so the kernel gives it to another thread
    print("inside", flush=True) if len(sys.argv) > 3 else None
    ctypes.CDLL(None).read(held, byte, 1)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])

print("the plan")
with Interrupts(stop) as interrupts:
    if len(sys.argv) > 3:
        if sys.argv[3] == "after":
            with interrupts.shown_by(None):
                pass
        inside_a_call()
    else:
        with make_display(SearchProgress(9, 3, {})) as display, interrupts.shown_by(display):
            for number in range(3):
                display.trial_planned(TrialView(number, {}, TrainConfig(epochs=4)))
            inside_a_call()
    assert stop.signal == signal.SIGINT
    console.print("the findings")
    interrupts.take_again()
"""


class Terminal:
    """A process on a terminal of its own, and what its screen shows by now."""

    def __init__(self, *command: str) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        environment = {**clean_environment(), "TERM": "xterm", "PYTHONUNBUFFERED": "1"}
        for name in ("COLUMNS", "LINES", "NO_COLOR"):
            environment.pop(name, None)
        self.process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env=environment, cwd=ROOT / "src",
            preexec_fn=lambda: (os.setsid(), fcntl.ioctl(0, termios.TIOCSCTTY, 0)),
        )  # fmt: skip
        os.close(slave)
        self.text = b""

    def press_ctrl_c(self) -> None:
        os.write(self._master, b"\x03")

    def wait_for(self, condition: Callable[[list[str]], bool], limit_s: float = 120) -> list[str]:
        """The screen, once it is as wanted."""
        deadline = time.monotonic() + limit_s
        while not condition(self.screen()):
            assert time.monotonic() < deadline, "\n".join(self.screen())
            if select.select([self._master], [], [], 0.05)[0]:
                try:
                    self.text += os.read(self._master, 1 << 16)
                except OSError:  # the process has ended
                    assert condition(self.screen()), "\n".join(self.screen())
        return self.screen()

    def screen(self) -> list[str]:
        """Lines from the first to the cursor's, by what rich sends: text, CR, LF, ESC[nA, ESC[2K, colours, cursor."""
        lines, row, column = [""], 0, 0
        for match in re.finditer(rb"\x1b\[([?0-9;]*)([A-Za-z])|\r|\n|[^\x1b\r\n]+", self.text):
            kind, piece = match[2], match[0]
            if kind == b"A":
                row = max(0, row - int(match[1] or 1))
            elif kind == b"K":
                lines[row] = ""
            elif kind is not None:
                assert kind in b"mhl", match[0]
            elif piece == b"\r":
                column = 0
            elif piece == b"\n":
                row += 1
                lines += [""] * (row + 1 - len(lines))
            else:
                for letter in piece.decode(errors="replace"):
                    if column == COLUMNS:
                        row, column = row + 1, 0
                        lines += [""] * (row + 1 - len(lines))
                    lines[row] = f"{lines[row]:{column}}"[:column] + letter + lines[row][column + 1 :]
                    column += 1
        return lines


def start(tmp_path: Path, *more: str) -> tuple[Terminal, int]:
    held = tmp_path / "held"
    os.mkfifo(held)
    terminal = Terminal(sys.executable, "-c", SEARCH, str(ROOT), str(held), *more)
    return terminal, os.open(held, os.O_RDWR)


def count(screen: list[str], words: str) -> int:
    return sum(words in line for line in screen)


def test_ctrl_c_is_acknowledged_beneath_the_table_while_a_call_lasts_and_leaves_one_table(tmp_path):
    terminal, held = start(tmp_path)
    terminal.wait_for(lambda screen: count(screen, "Ctrl-C saves and stops") == 1 and count(screen, " running ") == 3)
    terminal.press_ctrl_c()
    screen = terminal.wait_for(lambda screen: count(screen, "Saving; Ctrl-C again to stop at once.") == 1)
    assert terminal.process.poll() is None and count(screen, "the findings") == 0, "the call still lasts"
    seen = len(terminal.text)
    terminal.wait_for(lambda screen: len(terminal.text) > seen + 2000)  # drawn anew a few times
    os.write(held, b"x")
    screen = terminal.wait_for(lambda screen: count(screen, "the findings") == 1)
    assert terminal.process.wait(60) == 0
    assert count(screen, "state") == count(screen, "of 9 trials ended") == 1, "\n".join(screen)
    assert count(screen, " running ") == 3 and screen[0] == "the plan", "\n".join(screen)


@pytest.mark.parametrize(
    ("when", "words"),
    [("before", "Stopping; Ctrl-C again to stop at once."), ("after", "The search has ended and is saved;")],
)
def test_ctrl_c_where_there_is_no_table_is_acknowledged_by_a_line(tmp_path, when, words):
    terminal, held = start(tmp_path, when)
    terminal.wait_for(lambda screen: count(screen, "inside") == 1)
    terminal.press_ctrl_c()
    screen = terminal.wait_for(lambda screen: any(line.startswith(words) for line in screen))
    assert count(screen, "the findings") == 0
    os.write(held, b"x")
    terminal.wait_for(lambda screen: count(screen, "the findings") == 1)
    assert terminal.process.wait(60) == 0


@pytest.mark.parametrize(("planned", "code"), [(1, 0), (2, 130)])
def test_ctrl_c_while_the_findings_are_printed_does_not_undo_a_search_that_is_done(tmp_path, capsys, planned, code):
    import optuna
    from rich.console import Console

    from bigbatch.train_loop.config import TrainConfig
    from bigbatch.tune.plan.checked_plan import make_plan
    from bigbatch.tune.plan.options import SearchOptions
    from bigbatch.tune.runs.observer import TrialView
    from bigbatch.tune.search.ending import end_search
    from bigbatch.tune.search.interrupts import StopRequest
    from bigbatch.tune.search.running import SearchRun
    from bigbatch.tune.storage.store import StudyStore

    plan, stop = make_plan(SearchOptions(space="smoke", trials=planned, output=str(tmp_path))), StopRequest()
    store = StudyStore.create(plan.folder, plan.study, plan.to_dict(), None)
    stop.set("interrupted", signal.SIGINT)
    store.study.add_trial(optuna.trial.create_trial(value=0.5))
    ended = [TrialView(0, {}, TrainConfig(), state="COMPLETE")]
    assert end_search(SearchRun(plan), ended, stop, Console(), store) == code
    store.close()
    assert ("--resume" in capsys.readouterr().out) == (code == 130)


PATCHED = """
import sys; sys.path.insert(0, {root!r})
from bigbatch.tune.commands import tune as cli
from bigbatch.tune.search import capacity, running
from bigbatch.tune.search import watch_thread as watch
watch.ASK_S, running.OWN_GRACE_S, running.HEAD_GONE_S, watch.UNANSWERED_LINE_S = 1.0, 8.0, 12.0, 8.0
bundle = capacity.Capacity.bundle
capacity.Capacity.bundle = lambda self, number: {{**(own := bundle(self, number)), "CPU": own["CPU"] + {more}}}
sys.exit(cli.tune_main(sys.argv[1:]))
"""


def search(folder: Path, space: Path, data: Path, *, more_cpus: int, epochs: int = 2) -> subprocess.Popen:
    """A search whose workers ask for ``more_cpus`` than their share, with limits of seconds instead of minutes."""
    arguments: list[object] = ["--space", space, "--data", data, "--max-epochs", epochs]
    arguments += "--model shufflenet_v2_x0_5 --set image_size=16 --study s --trials 2 --stopping none".split()
    return subprocess.Popen(
        [sys.executable, "-c", PATCHED.format(root=str(ROOT / "src"), more=more_cpus), *map(str, arguments)],
        cwd=folder, env=clean_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip


def states(folder: Path) -> set[TrialState]:
    backend = JournalFileBackend(str(folder / "runs" / "s" / "optuna.journal"))
    study = optuna.load_study(study_name="s", storage=optuna.storages.JournalStorage(backend))
    return {trial.state for trial in study.trials}


@pytest.mark.slow
@pytest.mark.xdist_group("beside")
def test_a_trial_for_which_no_node_is_large_enough_ends_the_search_with_the_reason(tiny_images, tiny_space, tmp_path):
    process = search(tmp_path, tiny_space, tiny_images, more_cpus=1000)
    output, errors = process.communicate(timeout=240)
    assert process.returncode == 1, output + errors
    assert " waiting for " in output and " started" not in output, output + errors
    assert "INFEASIBLE: a worker needs 100" in output and "no node has that (1 node with" in output
    assert "error: no trial can ever run: a worker needs 100" in errors and "Traceback" not in errors
    assert "--resume --study s" in output and states(tmp_path) == {TrialState.WAITING}
    log = (tmp_path / "runs" / "s" / "logs" / "driver.log").read_text()
    assert "INFEASIBLE" in log and not list((tmp_path / "runs" / "s" / "logs").glob("*.progress"))


@pytest.mark.slow
def test_a_search_whose_cluster_is_gone_ends_with_what_it_has(tiny_images, tiny_space, tmp_path):
    process = search(tmp_path, tiny_space, tiny_images, more_cpus=0, epochs=4000)
    lines = []
    for line in process.stdout:
        lines.append(line)
        if "epoch 2/4000" in line:
            break
    head = next(p for p in psutil.Process(process.pid).children(recursive=True) if "gcs_server" in p.name())
    os.kill(head.pid, signal.SIGKILL)
    output, errors = process.communicate(timeout=240)
    assert process.returncode == 1, "".join(lines) + output + errors
    assert "has not answered for 0:" in output, output
    assert "error: the Ray cluster is gone" in errors and "Traceback" not in errors, errors
    assert "--resume --study s" in output + errors
    assert states(tmp_path) == {TrialState.WAITING}
    wait_gone(str(tmp_path))
