"""A budget in the plan, on the screen and in study.json, as the only limit and beside ``--confirm``; its refusals."""

import io
import re
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from bigbatch.train_loop.config import TrainConfig
from bigbatch.tune.budget.budget import BUDGET_SPENT, NO_ROOM_IN_BUDGET
from bigbatch.tune.budget.pace import SessionTimes, read_session_times
from bigbatch.tune.console.confirmation_words import confirmation_in_words
from bigbatch.tune.console.findings import print_plan
from bigbatch.tune.plan.checked_plan import make_plan
from bigbatch.tune.plan.machine import devices_held
from bigbatch.tune.plan.options import SearchOptions
from bigbatch.tune.plan.search_plan import SearchPlan
from bigbatch.tune.runs.answer import answer_of
from bigbatch.tune.search import budgeting
from bigbatch.tune.search.budgeting import check_budget
from bigbatch.tune.storage.frontier_file import frontier_json
from bigbatch.tune.storage.store import StudyStore
from helpers.refusals import refusal

EPOCHS, EPOCH_S = 2, 36.0


def plan_of(folder: Path, **options: Any) -> SearchPlan:
    first = {"space": "smoke", "study": "s", "output": str(folder), "workers": 1, "max_epochs": EPOCHS}
    return make_plan(SearchOptions(**{**first, **options}))


def resumed(folder: Path, **options: Any) -> SearchPlan:
    return make_plan(SearchOptions(study="s", output=str(folder), resume=True, **options))


def printed(plan: SearchPlan) -> str:
    out = io.StringIO()
    print_plan(plan, Console(file=out, width=200))
    return out.getvalue()


def study(
    folder: Path, trials: int, *, epochs: int = EPOCHS, epoch_s: float = EPOCH_S, **options: Any
) -> tuple[SearchPlan, StudyStore]:
    """A study whose epochs took ``epoch_s`` each; its last trial is the best."""
    plan = plan_of(folder, max_epochs=epochs, **options)
    store = StudyStore.create(plan.folder, plan.study, plan.to_dict(), None)
    for number in range(trials):
        trial, value = store.study.ask(), 0.5 + 0.01 * number
        config = TrainConfig(epochs=epochs).replace_keys({"optimizer.peak_lr": 0.1 + number})
        trial.set_user_attr("config", config.to_dict())
        for epoch in range(1, epochs + 1):
            trial.set_user_attr(f"epoch/{epoch:05d}", {"epoch": epoch, "val_top1": value, "train_s": epoch_s})
        store.study.tell(trial, value)
    return plan, store


@pytest.mark.parametrize(
    ("options", "limit"),
    [
        ({}, 12),
        ({"budget_gpu_hours": 5.0}, None),
        ({"time_budget": "4h"}, None),
        ({"budget_gpu_hours": 5.0, "time_budget": "4h"}, None),
        ({"budget_gpu_hours": 5.0, "trials": 7}, 7),
        ({"trials": 7}, 7),
    ],
)
def test_the_number_of_trials_is_a_limit_only_where_nothing_else_is(tmp_path, options, limit):
    plan = plan_of(tmp_path, space="large_batch", **options)
    assert plan.trial_limit == limit == plan.to_dict()["trials"]
    said = printed(plan)
    assert ("as many as the budget allows" in said) == (limit is None)
    assert ("epochs = " in said) == (limit is not None), "the highest cost is the budget"
    assert limit is None or f" {EPOCHS * limit} epochs = " in said


def test_a_budget_below_one_epoch_is_refused_in_one_line_and_nothing_is_lost(tmp_path):
    _, store = study(tmp_path, 1, epochs=1, budget_gpu_hours=0.5)
    store.close()
    before = {path: path.read_bytes() for path in store.folder.rglob("*") if path.is_file()}

    def lasts(**options: Any) -> None:
        plan = resumed(tmp_path, **options)
        store = StudyStore.open(plan.folder, None)
        try:
            check_budget(plan, store)
        finally:
            store.close()

    words = r"an epoch 36 s .* got --budget-gpu-hours 0.005\..* or more"
    refusal(lambda: lasts(budget_gpu_hours=0.005), words)
    words = r"at least \d+ s are needed: .*36 s.*got --time-budget 20s. Write --time-budget"
    refusal(lambda: lasts(time_budget="20s", budget_gpu_hours=1.0), words)
    lasts(budget_gpu_hours=0.1)
    assert before == {path: path.read_bytes() for path in store.folder.rglob("*") if path.is_file()}


def test_a_budget_below_the_start_of_a_search_is_refused_with_the_number_before_anything_starts(tmp_path, monkeypatch):
    """Where Ray took 20 s to start, the first trial 30 s, the end 10 s: 60 s of each device."""
    monkeypatch.setattr(budgeting, "read_session_times", lambda folder: SessionTimes(20.0, 30.0, 10.0))
    devices = devices_held(plan_of(tmp_path).machine, plan_of(tmp_path).share)
    words = refusal(lambda: check_budget(plan_of(tmp_path, budget_gpu_hours=59.0 * devices / 3600)))
    least = re.match(r"at least (\S+) worker hours are needed: ", words)
    assert 60 * devices / 3600 <= float(least[1]) <= 1.1 * 60 * devices / 3600
    assert f"the start takes about 50 s, an epoch 0 s and the end 10 s, on {devices} device" in words
    enough = re.search(r"Write --budget-gpu-hours (\S+) or more", words)
    for hours in (enough[1], least[1]):
        check_budget(plan_of(tmp_path, budget_gpu_hours=float(hours)))
    said = "at least 60 s are needed: .* got --time-budget 59s. Write --time-budget 66s"
    refusal(lambda: check_budget(plan_of(tmp_path, time_budget="59s")), said)
    check_budget(plan_of(tmp_path, time_budget="60s"))
    assert not (tmp_path / "s").exists()


def test_a_session_tells_the_next_one_what_its_start_and_its_end_take(tmp_path):
    plan = plan_of(tmp_path)
    assert read_session_times(plan.folder) == SessionTimes()
    store = StudyStore.create(plan.folder, plan.study, plan.to_dict(), None)
    store.ledger.hold(1)
    store.ledger.note(ray_start_s=3.0)
    store.ledger.ending()
    store.close()
    (plan.folder / "ledger" / "0002.json").write_text("{damaged")
    found = read_session_times(plan.folder)
    assert (found.ray_start_s, found.trial_start_s) == (3.0, SessionTimes().trial_start_s)
    assert 0.0 <= found.ending_s < 10.0


def test_what_is_left_of_a_budget_is_not_worth_starting_ray_for_if_no_epoch_fits(tmp_path, monkeypatch):
    plan, store = study(tmp_path, 1, epochs=1, epoch_s=100.0, budget_gpu_hours=0.5)
    devices = plan.share.concurrency * plan.share.workers
    assert budgeting.refused_at_once(plan, store) is None
    store.ledger.begin(0, 1)
    begun = time.monotonic()
    monkeypatch.setattr(store.ledger, "_clock", lambda: begun + 0.5 * 3600 - 90.0 * devices)
    assert budgeting.refused_at_once(plan, store) == NO_ROOM_IN_BUDGET
    monkeypatch.setattr(store.ledger, "_clock", lambda: begun + 0.5 * 3600 + 10.0 * devices)
    assert budgeting.refused_at_once(plan, store) == BUDGET_SPENT
    store.close()


def line_of(plan: SearchPlan, store: StudyStore) -> str:
    """The line about confirmations at the end of such a search."""
    answer = answer_of(store.study.trials, plan.to_dict(), plan.objectives)
    left = budgeting.left_to_confirm(plan, store) if plan.confirm.best else (0, 0.0)
    return confirmation_in_words(frontier_json(answer), plan.to_dict(), "bigbatch tune --resume", "worker h", left)


def test_what_was_not_confirmed_is_said_in_one_line_with_its_cost_and_the_command(tmp_path):
    cost = "3 fresh seeds would train for about 0.06 worker h: bigbatch tune --resume --confirm 1x3"
    left = "6 runs (about 0.12 worker h)"
    why: dict[str, tuple[dict[str, Any], int, str]] = {
        "default": ({"budget_gpu_hours": 0.01}, 8, f"it would take more than a fifth of the budget; {cost}"),
        # --confirm 1x3 would be another rule than the study's.
        "explicit": ({"confirm": "2x3"}, 8, f"the search ended before {left}: bigbatch tune --resume"),
        "none": ({"confirm": "none"}, 8, f"--confirm none was given; {cost}"),
        "small": ({}, 5, f"a search of fewer than 6 trials is too small for it; {cost}"),
    }  # fmt: skip
    for name, (options, trials, words) in why.items():
        plan, store = study(tmp_path / name, trials, **options)
        assert line_of(plan, store) == f"Not confirmed with fresh seeds: {words}", name
        store.close()
