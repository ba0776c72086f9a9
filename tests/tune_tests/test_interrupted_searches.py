"""Searches that are interrupted, signalled, killed or out of time: saved, resumed, nothing left behind."""

import json
import os
import re
import shlex
import signal
import time
import urllib.error
import urllib.request
from pathlib import Path

import optuna
import psutil
import pyarrow.parquet as pq
import pytest
from optuna.trial import TrialState

from bigbatch.tune.budget.ledger import read_ledger
from helpers.processes import wait_gone
from helpers.searches import Search, journal_of, load
from helpers.waiting import wait_until


@pytest.mark.slow
@pytest.mark.parametrize(
    ("process", "first", "signum"),
    [
        ("raylet", signal.SIGINT, signal.SIGTERM),
        pytest.param("gcs_server", signal.SIGTERM, signal.SIGHUP, marks=pytest.mark.exhaustive),
    ],
)
def test_a_stopped_search_saves_and_the_printed_command_finishes_it(tiny, tmp_path, process, first, signum):
    """Stopped while Ray starts, and then among its trials. A terminal, ``timeout`` and batch systems send a
    signal to Ray's processes as well, which must live until trials have saved.
    """
    folder = tmp_path / "runs" / "s"
    words = ("--study", "s", "--trials", 2, "--max-epochs", 40, "--stopping", "none", "--confirm", "none")
    starting = Search(*tiny, *words, cwd=tmp_path)
    starting.wait_for("Starting Ray")
    wait_until(lambda: starting.started(process), f"Ray's {process} does not start")
    os.killpg(starting.process.pid, first)
    assert starting.end() == 128 + first, starting.stderr()
    assert "Traceback" not in starting.stderr()
    wait_gone(str(tmp_path))

    search = Search(*printed_command(starting), cwd=tmp_path)
    search.wait_for(r"epoch 2/40")
    os.killpg(search.process.pid, signum)
    assert search.end() == 128 + signum, search.stderr()
    assert "Traceback" not in search.stderr()
    before = {t.number: t.params for t in load(folder).trials}
    assert {t.state for t in load(folder).trials} == {TrialState.WAITING}
    assert any((folder / "checkpoints").glob("trial-*/latest.pt"))
    assert any("bigbatch report " in line for line in search.lines) and not (folder / "report.html").exists()
    assert not any("Last result" in line for line in search.lines), "Ray Tune's own lines stay away"
    wait_gone(search.ray_folder)
    assert not Path(search.ray_folder).exists()

    again = Search(*printed_command(search), cwd=tmp_path)
    assert again.end() == 0, again.stderr()
    assert any("resumed after epoch" in line for line in again.lines)
    after = load(folder).trials
    assert [t.state for t in after] == [TrialState.COMPLETE] * 2
    assert {t.number: t.params for t in after}.items() >= before.items()
    assert all(len(t.intermediate_values) == 40 for t in after)
    assert len(json.loads((folder / "study.json").read_text())["sessions"]) == 3


def printed_command(search: Search) -> list[str]:
    """The arguments of the command that resumes it."""
    command = shlex.split(next(line for line in search.lines if "--resume --study" in line))
    assert command[0] == "python"
    return command[2:]


NO_LOCKS = """
import errno, fcntl, os
flock = fcntl.flock
def refuse(file, how):
    number = file if isinstance(file, int) else file.fileno()
    if "/runs/" in os.readlink(f"/proc/self/fd/{number}"):
        raise OSError(errno.ENOSYS, "Function not implemented")
    return flock(file, how)
fcntl.flock = refuse
"""


@pytest.mark.slow
def test_a_killed_worker_goes_on_and_a_killed_driver_is_followed_at_once_and_its_hours_count(tiny, tmp_path):
    """kill -9 of a worker, which starts again from its checkpoint; then of the driver alone: nobody is left to clean
    up, nothing may live on, and no more than 30 s are lost.

    The study is on a file system without file locks, where a second driver is refused all the same.
    """
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(NO_LOCKS)
    started = time.monotonic()
    no_locks = {"PYTHONPATH": str(tmp_path / "site")}
    first = Search(*tiny, "--study", "s", "--trials", 2, "--max-epochs", 4000, cwd=tmp_path, **no_locks)
    at_once = int(first.wait_for(r"(\d+) trials at a time")[1])
    first.wait_for("Starting Ray")
    began = time.monotonic()
    first.wait_for(r"trial 0 epoch 1/4000")
    (tmp_path / "second").mkdir()
    command = ("--resume", "--study", "s", "--output", tmp_path / "runs")
    second = Search(*command, cwd=tmp_path / "second", **no_locks)
    assert second.end() == 2
    assert f"is held by process {first.process.pid} of " in second.stderr() and second.stderr().count("\n") == 1
    dashboard = r"Ray dashboard: (http://127\.0\.0\.1:\d+)"  # it starts beside the trials, and may be the faster one
    url = (re.search(dashboard, "".join(first.lines)) or first.wait_for(dashboard)).group(1)
    assert dashboard_refuses_strangers_and_answers(url, Path(first.ray_folder, "token").read_text())
    checkpoints = tmp_path / "runs" / "s" / "checkpoints"
    written = lambda: len(list(checkpoints.glob("trial-*/latest.pt")))  # noqa: E731
    wait_until(lambda: written() == 2, "no trial writes a checkpoint")
    next(iter(first.workers())).kill()
    logs = tmp_path / "runs" / "s" / "logs"
    resumed = lambda: any("resumed after epoch" in log.read_text() for log in logs.glob("trial-*.log"))  # noqa: E731
    wait_until(resumed, "its trial does not go on")
    first.process.kill()
    first.process.wait(120)
    killed = time.monotonic()
    used = read_ledger(tmp_path / "runs" / "s" / "ledger").held_s / at_once
    third = Search(*command, cwd=tmp_path / "second", **no_locks)
    assert killed - began - 30 <= used <= killed - started
    third.wait_for(r"trial \d resumed after epoch \d+")
    wait_gone(first.ray_folder, 120)
    assert not Path(first.ray_folder).exists()
    third.process.send_signal(signal.SIGINT)
    assert third.end() == 130
    study = load(tmp_path / "runs" / "s")
    assert len(study.trials) == 2 and {t.state for t in study.trials} == {TrialState.WAITING}
    for trial in study.trials:
        assert list(trial.intermediate_values) == list(range(1, len(trial.intermediate_values) + 1)), "each epoch once"
    after = read_ledger(tmp_path / "runs" / "s" / "ledger")
    spent = {t.number: t.user_attrs["gpu_hours"] * 3600 for t in study.trials}
    assert spent == pytest.approx(after.trials_s, abs=0.1) and sum(spent.values()) < after.held_s
    assert not (tmp_path / "runs" / "s" / ".lease").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("budget", "word"),
    [
        (("--time-budget", "60s"), "time budget"),
        pytest.param(("--budget-gpu-hours", "0.04"), "GPU hours", marks=pytest.mark.exhaustive),
    ],
)
def test_budgets_end_a_search_that_can_be_resumed(tiny, tmp_path, budget, word):
    search = Search(*tiny, "--study", "s", "--trials", 3, "--max-epochs", 3000, *budget, cwd=tmp_path)
    assert search.end() == 1, "no trial could run to its end"
    assert any(f"Stopped: the {word}" in line or f"Stopped: the budget of {word}" in line for line in search.lines)
    study = load(tmp_path / "runs" / "s")
    assert study.trials and {t.state for t in study.trials} == {TrialState.WAITING}
    if word == "GPU hours":
        used = read_ledger(tmp_path / "runs" / "s" / "ledger").held_s / 3600
        assert 0.8 * 0.04 <= used <= 0.04 + 2 * 30 / 3600, "the stop may take longer than what is kept for it"
        again = Search("--resume", "--study", "s", cwd=tmp_path)
        assert again.end() == 1 and not any("Starting Ray" in line for line in again.lines), "nothing is left to spend"
        assert any("--budget-gpu-hours" in line for line in search.lines), "the printed command goes on"


def wait_for_growth(journal: Path, search: Search) -> None:
    """Until the search has written to its journal again, or has ended."""
    before = journal.stat().st_size if journal.exists() else 0
    driver = psutil.Process(search.process.pid)

    def grown() -> bool:
        return driver.status() == psutil.STATUS_ZOMBIE or (journal.exists() and journal.stat().st_size > before)

    wait_until(grown, "the search writes nothing more")


@pytest.mark.exhaustive
@pytest.mark.parametrize("every", [3, 1])
def test_no_trial_is_lost_or_doubled_over_many_kills(tiny, tmp_path, every):
    """kill -9 of the whole process tree at twelve moments, or every third, from before the first trial to the end."""
    arguments = [*tiny, "--study", "s", "--trials", 8, "--max-epochs", 60, "--stopping", "none", "--confirm", "none"]
    moments = ["results ", "Starting Ray", "Ray dashboard", r"trial \d+ (started|resumed)", r"epoch \d+/60"]
    moments += [r"epoch \d*5/60", r"epoch \d*0/60", r"trial \d+ done", r"epoch [3-5]\d/60", r"trial \d+ done"]
    moments += ["epoch 59/60", "epoch 60/60"]
    known: dict[int, dict] = {}
    for kill, moment in enumerate(moments[::every]):
        resume = ["--resume"] if (tmp_path / "runs" / "s" / "study.json").exists() else []
        search = Search(*arguments, *resume, cwd=tmp_path)
        search.wait_for(moment)
        if kill % 2:  # in the midst of the next writes, too
            wait_for_growth(tmp_path / "runs" / "s" / "optuna.journal", search)
        search.kill_tree()
        folder = tmp_path / "runs" / "s"
        if known or has_trials(folder):
            check_nothing_lost(folder, known)
    last = Search(*arguments, "--resume", cwd=tmp_path)
    assert last.end() == 0, last.stderr()
    trials = load(tmp_path / "runs" / "s").trials
    assert [t.state for t in trials] == [TrialState.COMPLETE] * 8
    assert all(list(t.intermediate_values) == list(range(1, 61)) for t in trials)
    check_nothing_lost(tmp_path / "runs" / "s", known)
    rows = pq.read_table(tmp_path / "runs" / "s" / "epochs.parquet").to_pylist()
    assert len(rows) == len({(r["trial"], r["epoch"]) for r in rows}) == 8 * 60
    wait_gone(str(tmp_path))


def has_trials(folder: Path) -> bool:
    """Whether a trial was begun: before that, a kill leaves no journal, an empty one or one without a study."""
    from bigbatch.tune.storage.store import repair_journal

    repair_journal(folder / "optuna.journal")
    begun = (folder / "optuna.journal").exists()
    return begun and any(study.n_trials for study in optuna.get_all_study_summaries(journal_of(folder)))


def check_nothing_lost(folder: Path, known: dict[int, dict]) -> None:
    """What an earlier look saw finished or reported is still there, unchanged."""
    from bigbatch.tune.storage.store import repair_journal

    repair_journal(folder / "optuna.journal")
    for trial in load(folder).trials:
        seen = known.setdefault(trial.number, {"params": trial.params, "values": {}, "state": None, "value": None})
        if seen["params"]:
            assert trial.params == seen["params"]
        assert seen["values"].items() <= trial.intermediate_values.items()
        if seen["state"]:
            assert (trial.state, trial.value) == (seen["state"], seen["value"])
        seen |= {"params": trial.params, "values": dict(trial.intermediate_values)}
        if trial.state.is_finished():
            seen |= {"state": trial.state, "value": trial.value}


def dashboard_refuses_strangers_and_answers(url: str, token: str) -> bool:
    request = f"{url}/api/cluster_status"
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=120)
    assert refused.value.code in (401, 403)
    allowed = urllib.request.Request(request, headers={"Authorization": f"Bearer {token}"})
    return urllib.request.urlopen(allowed, timeout=120).status == 200


@pytest.mark.exhaustive
def test_a_search_at_the_end_of_its_allocation_starts_nothing_and_says_to_come_again(tiny, tmp_path):
    arguments = (*tiny, "--study", "s", "--trials", 2, "--max-epochs", 1)
    first = Search(*arguments, cwd=tmp_path)
    assert first.end() == 0, first.stderr()
    late = Search("--resume", "--study", "s", "--trials", 3, cwd=tmp_path, BIGBATCH_DEADLINE=str(time.time() + 0.5))
    assert late.end() == 75, late.stderr()
    assert any("the allocation ends before" in line for line in late.lines)
    assert len(load(tmp_path / "runs" / "s").trials) == 2
    # An epoch longer than any allocation holds nothing back: trials would wait for ever.
    journal = tmp_path / "runs" / "s" / "optuna.journal"
    journal.write_text(re.sub(r'("train_s": ?)[\d.e-]+', r"\g<1>1e6", journal.read_text()))
    again = Search("--resume", "--study", "s", cwd=tmp_path, BIGBATCH_DEADLINE=str(time.time() + 3600))
    assert again.end() == 0, again.stderr()
    assert len(load(tmp_path / "runs" / "s").trials) == 3
