"""How a search is ended: by Ctrl-C on a terminal, or because it can never go on."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import optuna
import psutil
import pytest
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from bigbatch.tune.search.interrupts import STOPPING, StopRequest, stop_signals
from helpers.paths import ROOT
from helpers.processes import clean_environment, wait_gone


def test_ctrl_c_is_acknowledged_and_another_ends_at_once(capfd: pytest.CaptureFixture[str]) -> None:
    stop = StopRequest()
    with stop_signals(stop):
        signal.raise_signal(signal.SIGINT)
        assert (stop.signal, stop.reason) == (signal.SIGINT, "interrupted")
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert capfd.readouterr().err == f"\n{STOPPING}\n"


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
from bigbatch.tune.search import running
from bigbatch.tune.search import watch_thread as watch
watch.ASK_S, running.HEAD_GONE_S, watch.UNANSWERED_LINE_S = 1.0, 12.0, 8.0
sys.exit(cli.tune_main(sys.argv[1:]))
"""


def search(folder: Path, space: Path, data: Path, epochs: int) -> subprocess.Popen:
    """A search with limits of seconds instead of minutes."""
    arguments: list[object] = ["--space", space, "--data", data, "--max-epochs", epochs]
    arguments += "--model shufflenet_v2_x0_5 --set image_size=16 --study s --trials 2 --stopping none".split()
    return subprocess.Popen(
        [sys.executable, "-c", PATCHED.format(root=str(ROOT / "src")), *map(str, arguments)],
        cwd=folder, env=clean_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip


def states(folder: Path) -> set[TrialState]:
    backend = JournalFileBackend(str(folder / "runs" / "s" / "optuna.journal"))
    study = optuna.load_study(study_name="s", storage=optuna.storages.JournalStorage(backend))
    return {trial.state for trial in study.trials}


@pytest.mark.slow
def test_a_search_whose_cluster_is_gone_ends_with_what_it_has(tiny_images, tiny_space, tmp_path):
    process = search(tmp_path, tiny_space, tiny_images, epochs=4000)
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
