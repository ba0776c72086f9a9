"""A budget in the plan, on the screen and in study.json, as the only limit and beside ``--confirm``; its refusals."""

import dataclasses
import io
import json
import math
import os
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from bigbatch.train_loop.config import ConfigError, TrainConfig
from bigbatch.tune.budget.budget import BUDGET_SPENT, NO_ROOM_IN_BUDGET
from bigbatch.tune.budget.pace import SessionTimes, read_session_times
from bigbatch.tune.console.confirmation_words import confirmation_in_words
from bigbatch.tune.console.display import SearchProgress, summary_line
from bigbatch.tune.console.findings import print_plan
from bigbatch.tune.console.plan_notes import plan_notes
from bigbatch.tune.plan.checked_plan import make_plan
from bigbatch.tune.plan.machine import Machine, Node, devices_held, first_share
from bigbatch.tune.plan.options import SearchOptions
from bigbatch.tune.plan.search_plan import SearchPlan
from bigbatch.tune.runs.answer import answer_of
from bigbatch.tune.runs.observer import TrialView
from bigbatch.tune.search import budgeting
from bigbatch.tune.search.budgeting import check_budget_lasts, check_budget_starts
from bigbatch.tune.storage.frontier_file import frontier_json
from bigbatch.tune.storage.store import StudyStore
from helpers.refusals import refusal

EPOCHS, EPOCH_S = 2, 36.0
RUN_S = EPOCHS * EPOCH_S
HOW = "--confirm 1x3 trains the best again with three fresh seeds"


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


def test_a_resumed_study_keeps_its_budget_as_the_only_limit(tmp_path):
    plan = plan_of(tmp_path, budget_gpu_hours=5.0)
    StudyStore.create(plan.folder, plan.study, plan.to_dict(), None).close()
    assert json.loads((plan.folder / "study.json").read_text())["trials"] is None
    again = resumed(tmp_path)
    assert again.open_ended and again.budget_gpu_hours == 5.0
    assert make_plan(SearchOptions(study="s", output=str(tmp_path), resume=True, trials=3)).trial_limit == 3


def test_every_gpu_is_used_where_a_budget_is_the_limit():
    machine = Machine((Node(256, 64),))
    assert first_share(machine, 1, 16, open_ended=True, per_gpu=1).concurrency == 64
    assert first_share(machine, 1, 16, open_ended=False, per_gpu=1).concurrency == 16


def test_the_display_counts_without_a_total_and_shows_what_the_budget_leaves():
    lasts = [math.inf]
    progress = SearchProgress(None, 2, {}, budget_s=lambda: lasts[0])
    assert summary_line(progress).plain.startswith("0 trials ended")
    assert "time left: unknown" in summary_line(progress).plain
    lasts[0] = 3700.0
    assert "about 1:01:40 left" in summary_line(progress).plain
    counted = SearchProgress(100, 1, {}, budget_s=lambda: 60.0)
    ended = TrialView(0, {}, TrainConfig(epochs=1), state="COMPLETE", started_at=0.0)
    counted.put(ended)
    assert "1 of 100 trials ended" in summary_line(counted).plain
    assert "about 1:00 left" in summary_line(counted).plain, "the budget ends before the trials do"


def test_a_budget_below_one_epoch_is_refused_in_one_line_and_nothing_is_lost(tmp_path):
    _, store = study(tmp_path, 1, epochs=1, budget_gpu_hours=0.5)
    store.close()
    before = {path: path.read_bytes() for path in store.folder.rglob("*") if path.is_file()}

    def lasts(**options: Any) -> None:
        plan = resumed(tmp_path, **options)
        store = StudyStore.open(plan.folder, None)
        try:
            check_budget_lasts(plan, store)
        finally:
            store.close()

    words = r"the shortest epoch of this study 36 s .* got --budget-gpu-hours 0.005\..* or more"
    refusal(lambda: lasts(budget_gpu_hours=0.005), words)
    words = r"at least \d+ s are needed: .*36 s.*got --time-budget 20s. Write --time-budget"
    refusal(lambda: lasts(time_budget="20s", budget_gpu_hours=1.0), words)
    lasts(budget_gpu_hours=0.1)
    assert before == {path: path.read_bytes() for path in store.folder.rglob("*") if path.is_file()}


def earlier_session(folder: Path, host: str = os.uname().nodename, **seconds: float) -> None:
    """A session that some study beside ours has ended."""
    folder.mkdir(parents=True, exist_ok=True)
    facts = {"schema_version": 1, "host": host, "held_device_s": 1.0, "trial_device_s": {}, **seconds}
    (folder / f"{len(list(folder.iterdir())) + 1:04d}.json").write_text(json.dumps(facts))


def test_a_budget_below_the_start_of_a_search_is_refused_with_the_number_before_anything_starts(tmp_path):
    """Here Ray took 20 s to start, the first trial 30 s, the end 10 s: 60 s of each device."""
    earlier_session(tmp_path / "other" / "ledger", ray_start_s=20.0, trial_start_s=30.0, ending_s=10.0)
    earlier_session(tmp_path / "strange" / "ledger", host="elsewhere", ray_start_s=2000.0)
    (tmp_path / "strange" / "ledger" / "0002.json").write_text("{damaged")
    devices = devices_held(plan_of(tmp_path).machine, plan_of(tmp_path).share)
    words = refusal(lambda: check_budget_starts(plan_of(tmp_path, budget_gpu_hours=59.0 * devices / 3600)))
    least = re.match(r"at least (\S+) worker hours are needed: ", words)
    assert 60 * devices / 3600 <= float(least[1]) <= 1.1 * 60 * devices / 3600
    assert f"starting Ray and the first trial takes about 50 s and the end 10 s, on {devices} device" in words
    enough = re.search(r"Write --budget-gpu-hours (\S+) or more", words)
    for hours in (enough[1], least[1]):
        check_budget_starts(plan_of(tmp_path, budget_gpu_hours=float(hours)))
    said = "at least 60 s are needed: .* got --time-budget 59s. Write --time-budget 66s"
    refusal(lambda: check_budget_starts(plan_of(tmp_path, time_budget="59s")), said)
    check_budget_starts(plan_of(tmp_path, time_budget="60s"))
    assert not (tmp_path / "s").exists()


def test_a_session_tells_the_next_one_what_its_start_and_its_end_take(tmp_path):
    plan = plan_of(tmp_path)
    assert read_session_times(plan.folder) == SessionTimes()
    earlier_session(tmp_path / "other" / "ledger", ray_start_s=20.0, trial_start_s=30.0, ending_s=10.0)
    store = StudyStore.create(plan.folder, plan.study, plan.to_dict(), None)
    store.ledger.hold(1)
    store.ledger.note(ray_start_s=3.0)
    store.ledger.ending()
    store.close()
    found = read_session_times(plan.folder)
    assert (found.ray_start_s, found.trial_start_s) == (3.0, 30.0), "its own, and what only the other one has measured"
    assert 0.0 <= found.ending_s < 10.0, "its own"
    for ending_s in (11.0, 12.0, 900.0):
        earlier_session(tmp_path / "beside" / "ledger", ending_s=ending_s)
    assert read_session_times(tmp_path / "new").ending_s in (11.0, 11.5), "one busy machine decides nothing"


def test_what_is_left_of_a_budget_is_not_worth_starting_ray_for_if_no_epoch_fits(tmp_path):
    plan, store = study(tmp_path, 1, epochs=1, epoch_s=100.0, budget_gpu_hours=0.5)
    devices = plan.share.concurrency * plan.share.workers
    assert budgeting.refused_at_once(plan, store) is None
    store.ledger.begin(0, 1, since_s=0.5 * 3600 - 90.0 * devices)
    assert budgeting.refused_at_once(plan, store) == NO_ROOM_IN_BUDGET
    store.ledger.begin(1, 1, since_s=100.0 * devices)
    assert budgeting.refused_at_once(plan, store) == BUDGET_SPENT
    store.close()


def test_nothing_is_refused_or_chosen_by_the_guess_where_a_budget_is_the_only_limit(tmp_path):
    """On digits the guess is 12 trials: too few for the look, for 20 confirmed ones and nine given ones."""
    given = []
    for i in range(9):
        path = tmp_path / f"given-{i}.json"
        path.write_text(json.dumps(TrainConfig().replace_keys({"optimizer.peak_lr": 0.1 + i / 10}).to_dict()))
        given.append(str(path))
    asked = {"space": "large_batch", "max_epochs": 20, "confirm": "20x1", "enqueue": given}
    plan = plan_of(tmp_path, **asked, budget_gpu_hours=50.0)
    assert plan.stopping == "look" and len(plan.enqueued) == 9
    for few in ("confirm", "enqueue"):
        with pytest.raises(ConfigError, match=f"--{few}"):
            plan_of(tmp_path, **{**asked, "confirm": None, "enqueue": None, few: asked[few]}, trials=12)
    assert plan_of(tmp_path, space="large_batch", max_epochs=20, trials=12).stopping == "asha"
    many = dataclasses.replace(plan, trials=4, share=dataclasses.replace(plan.share, concurrency=8))
    assert not any("start at the same time" in text for text in plan_notes(many))
    limited = dataclasses.replace(many, open_ended=False)
    assert any("all 4 trials start at the same time" in text for text in plan_notes(limited))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"space": "large_batch", "batch": "128,256,512", "confirm": "1x3"},
         "the best trial of each batch with 3 fresh seeds (at most 9 runs)"),
        ({"space": "large_batch", "batch": "128,256,512", "time_budget": "4h"},
         "the answer and the best trial with 3 fresh seeds, as far as a fifth of the budget allows"),
        ({"confirm": "none"}, f"nothing (--confirm none); {HOW}"),
        ({"trials": 5}, f"nothing (fewer than 6 trials); {HOW}"),
    ],
)  # fmt: skip
def test_the_plan_says_what_will_be_confirmed(tmp_path, options, said):
    lines = printed(plan_of(tmp_path, **options)).splitlines()
    (line,) = [line for line in lines if line.startswith("confirm ")] or [""]
    assert line.removeprefix("confirm").strip() == said


def test_the_default_rule_may_use_a_fifth_of_the_smaller_budget(tmp_path):
    each: list[dict[str, Any]] = [{}, {"budget_gpu_hours": 2.0}, {"budget_gpu_hours": 2.0, "time_budget": "60s"}]
    facts = [budgeting.confirmation_facts(plan_of(tmp_path / str(i), **options)) for i, options in enumerate(each)]
    most = [one.most_worker_s for one in facts if one is not None]
    plan = plan_of(tmp_path / "slots")
    assert most[:2] == [None, pytest.approx(1440.0)]
    assert most[2] == pytest.approx(min(1440.0, 12.0 * plan.share.concurrency * plan.workers))


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
    plan, store = study(tmp_path / "again", 8, budget_gpu_hours=0.25, confirm="2x3")
    said = "Confirmations: 6 runs, about 0.12 worker hours by the epochs of this study."
    assert budgeting.cost_in_words(plan, store) == said
    store.close()
