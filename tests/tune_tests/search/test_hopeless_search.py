"""A search that can never go on says why and ends, with a real Ray that has no room, and one whose head is killed."""

from __future__ import annotations

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

from helpers.paths import ROOT
from helpers.processes import clean_environment, wait_gone

PATCHED = """
import sys; sys.path.insert(0, {root!r})
from bigbatch.tune.commands import tune as cli
from bigbatch.tune.search import capacity
from bigbatch.tune.search import watch_thread as watch
watch.ASK_S, watch.OWN_GRACE_S, watch.HEAD_GONE_S, watch.UNANSWERED_LINE_S = 1.0, 8.0, 12.0, 8.0
bundle = capacity.Capacity.bundle
capacity.Capacity.bundle = lambda self, number: {{**(own := bundle(self, number)), "CPU": own["CPU"] + {more}}}
sys.exit(cli.tune_main(sys.argv[1:]))
"""


def search(folder: Path, space: Path, data: Path, *, more_cpus: int, epochs: int = 2) -> subprocess.Popen:
    """A search whose workers ask for ``more_cpus`` than their share, with limits of seconds instead of minutes."""
    arguments: tuple[object, ...] = ("--space", space, "--data", data, "--model", "shufflenet_v2_x0_5")
    arguments = (
        *arguments,
        "--set",
        "image_size=16",
        "--study",
        "s",
        "--trials",
        2,
        "--max-epochs",
        epochs,
        "--stopping",
        "none",
    )
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
    assert process.stdout is not None
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
