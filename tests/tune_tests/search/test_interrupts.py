"""How a search is ended: by Ctrl-C on a terminal, or because it can never go on."""

import os
import signal

import optuna
import psutil
import pytest
from rich.console import Console
from rich.text import Text

from bigbatch.tune.console.display import LiveTable, SearchProgress
from bigbatch.tune.search.interrupts import STOPPING, StopRequest, stop_signals
from helpers.processes import wait_gone
from helpers.searches import Search, load


def test_ctrl_c_is_acknowledged_and_another_ends_at_once(capfd: pytest.CaptureFixture[str]) -> None:
    stop = StopRequest()
    with stop_signals(stop):
        signal.raise_signal(signal.SIGINT)
        assert (stop.signal, stop.reason) == (signal.SIGINT, "interrupted")
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert capfd.readouterr().err == f"\n{STOPPING}\n"


def test_a_live_table_acknowledges_in_its_last_line(tmp_path, capfd: pytest.CaptureFixture[str]) -> None:
    """Printed below the table, the text would be erased by the next frame, which leaves torn lines."""
    stop, drawn = StopRequest(), tmp_path / "terminal"
    with drawn.open("w") as terminal:
        table = LiveTable(SearchProgress(2, 1, {}), Console(file=terminal, width=80, force_terminal=True))
        before = len(table._draw().renderables)
        with stop_signals(stop), stop.acknowledged_by(table.acknowledge):
            signal.raise_signal(signal.SIGINT)
        assert table._draw().renderables[-1] == Text(STOPPING) and len(table._draw().renderables) == before
    assert drawn.read_bytes() == f"\r\x1b[2K{STOPPING}".encode() and capfd.readouterr().err == ""
    with stop_signals(StopRequest()):  # outside of the table
        signal.raise_signal(signal.SIGINT)
    assert capfd.readouterr().err == f"\n{STOPPING}\n"


@pytest.mark.parametrize(("planned", "code"), [(1, 0), (2, 130)])
def test_ctrl_c_while_the_findings_are_printed_does_not_undo_a_search_that_is_done(tmp_path, capsys, planned, code):
    from bigbatch.tune.plan.checked_plan import make_plan
    from bigbatch.tune.plan.options import SearchOptions
    from bigbatch.tune.search.driver import end_search
    from bigbatch.tune.search.interrupts import StopRequest
    from bigbatch.tune.search.running import SearchRun
    from bigbatch.tune.storage.store import StudyStore

    plan, stop = make_plan(SearchOptions(space="smoke", trials=planned, output=str(tmp_path))), StopRequest()
    store = StudyStore.create(plan.folder, plan.study, plan.to_dict(), None)
    stop.set("interrupted", signal.SIGINT)
    store.study.add_trial(optuna.trial.create_trial(value=0.5))
    assert end_search(SearchRun(plan), stop, Console(), store) == code
    store.close()
    assert ("--resume" in capsys.readouterr().out) == (code == 130)


@pytest.mark.slow
def test_a_search_whose_cluster_is_gone_ends_and_can_be_resumed(tiny, tmp_path):
    words = (*tiny, "--study", "s", "--trials", 2, "--stopping", "none", "--max-epochs")
    search = Search(*words, 4000, cwd=tmp_path)
    search.wait_for("epoch 2/4000")
    head = next(p for p in psutil.Process(search.process.pid).children(recursive=True) if "gcs_server" in p.name())
    os.kill(head.pid, signal.SIGKILL)
    assert search.end(240) != 0
    trials = load(tmp_path / "runs" / "s").trials
    assert max(len(trial.intermediate_values) for trial in trials) >= 2 and not any(
        trial.state.is_finished() for trial in trials
    )
    again = Search("--resume", "--study", "s", cwd=tmp_path)
    again.wait_for(r"resumed after epoch")
    again.kill_tree()
    wait_gone(str(tmp_path))
