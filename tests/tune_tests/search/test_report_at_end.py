"""The end of a search: its report, and a resumed one that seems to have everything."""

import io
import signal
from pathlib import Path

import pytest
from optuna.trial import TrialState
from rich.console import Console

from bigbatch.tune.budget.ledger import WRITE_S
from bigbatch.tune.plan.checked_plan import make_plan
from bigbatch.tune.plan.options import SearchOptions
from bigbatch.tune.report import page
from bigbatch.tune.runs.run import CONFIRMS_ATTR
from bigbatch.tune.search import driver
from bigbatch.tune.search.interrupts import StopRequest
from bigbatch.tune.search.running import is_complete
from bigbatch.tune.storage.store import StudyStore
from helpers.invented_studies import invented_study
from helpers.simulated_search import planned_search
from helpers.waiting import SetClock


def said_at_end(folder: Path, stop: StopRequest | None = None, *, full: str = "") -> str:
    """What the end of a search prints about its report."""
    store, out = StudyStore.open(folder, None), io.StringIO()
    try:
        store.disk.full = full
        driver._say_report(store, stop or StopRequest(), Console(file=out, soft_wrap=True))
    finally:
        store.close()
    return out.getvalue()


def signalled() -> StopRequest:
    stop = StopRequest()
    stop.set("by SIGTERM", signal.SIGTERM)
    return stop


def test_a_search_that_ends_writes_its_report_and_says_where(tmp_path: Path) -> None:
    folder = invented_study(tmp_path / "s", 10)
    assert said_at_end(folder) == f"\nReport: {folder / 'report.html'}\n"
    text = (folder / "report.html").read_text(encoding="utf-8")
    assert "done · large_batch" in text and "The search is running" not in text, "its driver still holds the lease"


def test_the_report_has_the_hours_that_the_last_lines_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, read = invented_study(tmp_path / "s", 10), []
    monkeypatch.setattr(page, "write_report", lambda study, path: read.append(study.summary.held_s))
    store, clock = StudyStore.open(folder, None), SetClock(1e6)
    store.ledger._clock = clock
    store.ledger.hold(4)
    clock.now += WRITE_S - 1
    driver._say_report(store, StopRequest(), Console(file=io.StringIO()))
    assert read == [store.ledger.held_s]
    store.close()


def test_after_a_signal_the_command_is_said_instead(tmp_path: Path) -> None:
    folder = invented_study(tmp_path / "s", 10)
    assert said_at_end(folder, signalled()) == f"\nFor a report:\n  bigbatch report {folder}\n"
    assert not (folder / "report.html").exists()


def test_a_full_disk_or_a_search_without_trials_has_no_report(tmp_path: Path) -> None:
    folder, empty = invented_study(tmp_path / "s", 10), invented_study(tmp_path / "empty", 0)
    assert said_at_end(folder, full="/tmp is full") == "" == said_at_end(folder, signalled(), full="/tmp is full")
    assert said_at_end(empty, signalled()) == ""
    assert not (folder / "report.html").exists() and not (empty / "report.html").exists()


def test_a_report_that_cannot_be_made_costs_the_search_one_line(tmp_path: Path, monkeypatch) -> None:
    folder = invented_study(tmp_path / "s", 10)
    monkeypatch.setattr(page, "recorded_at_end", lambda *_: 1 / 0)
    said = said_at_end(folder)
    assert said.count("\n") == 2 and "The report was not written (ZeroDivisionError" in said


def test_confirmations_that_ran_when_the_driver_was_killed_are_left(tmp_path: Path) -> None:
    """They are RUNNING in the study: neither missing nor waiting, until somebody repairs them."""
    plan = make_plan(
        SearchOptions(
            output=str(tmp_path / "runs"), model="resnet18", study="s", batch="128,256", trials=6, max_epochs=3,
            set=("optimizer=sgd",), enqueue=("none",), confirm="1x1", stopping="none", strategy="random",
        )
    )  # fmt: skip
    search = planned_search(plan, lambda config, epoch: 0.5 + 0.1 * epoch)
    while sum(CONFIRMS_ATTR in t.user_attrs for t in search.trials if t.state == TrialState.RUNNING) < 2:
        search.step()
    search.store.close()  # what a kill leaves: nobody tells the two trials
    store = StudyStore.open(plan.folder, None)
    assert is_complete(plan, store), "nothing seems to be left"
    assert not driver._has_nothing_to_do(plan, store)
    waiting = [t for t in store.study.trials if t.state == TrialState.WAITING]
    assert len(waiting) == 2 and all(CONFIRMS_ATTR in t.user_attrs for t in waiting)
    store.close()
