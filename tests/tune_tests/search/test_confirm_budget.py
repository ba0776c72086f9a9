"""``--confirm`` and a budget: what the plan says, what is refused, and what is said when it is too little."""

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from bigbatch.train_loop.config import ConfigError, TrainConfig
from bigbatch.tune.console.confirmation_words import confirmation_in_words
from bigbatch.tune.console.findings import print_plan
from bigbatch.tune.plan.checked_plan import make_plan
from bigbatch.tune.plan.options import SearchOptions
from bigbatch.tune.plan.search_plan import SearchPlan
from bigbatch.tune.runs.answer import answer_of
from bigbatch.tune.runs.observer import TrialView
from bigbatch.tune.search.budgeting import (
    ConfirmBudgetNote,
    check_confirm_fits,
    confirmation_facts,
    cost_in_words,
    devices_at_least,
    left_to_confirm,
)
from bigbatch.tune.storage.frontier_file import frontier_json
from bigbatch.tune.storage.store import StudyStore

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
    return next((line for line in out.getvalue().splitlines() if line.startswith("confirm ")), "")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"space": "large_batch", "batch": "128,256,512", "confirm": "1x3"},
         "the best trial of each batch with 3 fresh seeds (at most 9 runs)"),
        ({"space": "large_batch", "batch": "128,256", "confirm": "2x1", "budget_gpu_hours": 3.0},
         "the 2 best trials of each batch with 1 fresh seed (at most 4 runs); the budget keeps room for them"),
        ({"confirm": "3x5"}, "the 3 best trials with 5 fresh seeds (15 runs)"),
        ({"trials": 8},
         "the best trial with 3 fresh seeds (at most 3 runs), as far as a fifth of the search's time allows"),
        ({"space": "large_batch", "batch": "128,256", "time_budget": "4h"},
         "the answer and the best trial with 3 fresh seeds (at most 6 runs), as far as a fifth of the budget allows"),
        ({"confirm": "none"}, f"nothing (--confirm none); {HOW}"),
        ({"trials": 5}, f"nothing (fewer than 6 trials); {HOW}"),
        ({"objective": "val_loss:min"}, f"nothing (only accuracies are by default); {HOW}"),
        ({"target": "val_top1=0.9"}, ""),
    ],
)  # fmt: skip
def test_the_plan_says_what_will_be_confirmed(tmp_path, options, said):
    assert printed(plan_of(tmp_path, **options)).removeprefix("confirm").strip() == said


def test_the_default_rule_may_use_a_fifth_of_the_smaller_budget(tmp_path):
    each: list[dict[str, Any]] = [{}, {"budget_gpu_hours": 2.0}, {"budget_gpu_hours": 2.0, "time_budget": "60s"}]
    facts = [confirmation_facts(plan_of(tmp_path / str(i), **options)) for i, options in enumerate(each)]
    most = [one.most_worker_s for one in facts if one is not None]
    plan = plan_of(tmp_path / "slots")
    assert most[:2] == [None, pytest.approx(1440.0)]
    assert most[2] == pytest.approx(min(1440.0, 12.0 * plan.share.concurrency * plan.workers))


def study(folder: Path, trials: int, **options: Any) -> tuple[SearchPlan, StudyStore]:
    """A study whose whole runs took ``RUN_S`` each; the last one is the best."""
    plan = plan_of(folder, **options)
    store = StudyStore.create(plan.folder, plan.study, plan.to_dict(), None)
    for number in range(trials):
        trial = store.study.ask()
        config = TrainConfig(epochs=EPOCHS).replace_keys({"optimizer.peak_lr": 0.1 + number})
        trial.set_user_attr("config", config.to_dict())
        for epoch in range(1, EPOCHS + 1):
            record = {"epoch": epoch, "val_top1": 0.5 + 0.01 * number, "train_s": EPOCH_S}
            trial.set_user_attr(f"epoch/{epoch:05d}", record)
        store.study.tell(trial, 0.5 + 0.01 * number)
    return plan, store


def test_confirmations_that_exceed_the_whole_budget_are_refused_in_one_line_where_epochs_are_known(tmp_path):
    first, store = study(tmp_path, 2, budget_gpu_hours=100.0)
    store.close()
    before = {path: path.read_bytes() for path in store.folder.rglob("*") if path.is_file()}

    def opened(**options: Any) -> None:
        plan = resumed(tmp_path, **options)
        found = StudyStore.open(plan.folder, None)
        check_confirm_fits(plan, found)
        found.close()

    devices = devices_at_least(first)
    waves = -(-50 // devices)
    hours = waves * devices * RUN_S / 3600
    with pytest.raises(ConfigError, match=rf"got 1x50, at least {hours:.2g} hours .* and 0.5 hours") as met:
        opened(confirm="1x50", budget_gpu_hours=0.5)
    assert "\n" not in str(met.value) and "Write --budget-gpu-hours" in str(met.value)
    assert before == {path: path.read_bytes() for path in store.folder.rglob("*") if path.is_file()}
    opened(confirm="1x50", budget_gpu_hours=1.05 * hours)
    opened(budget_gpu_hours=0.5)
    opened(confirm="none", budget_gpu_hours=0.5)
    again = StudyStore.open(first.folder, None)
    plan = resumed(tmp_path, confirm="1x50", budget_gpu_hours=0.5)
    again.describe(plan.to_dict())  # as a session that has begun with these options
    check_confirm_fits(plan, again)
    again.close()


def test_a_search_that_learns_of_it_later_says_so_once_and_goes_on(tmp_path):
    said: list[str] = []
    note = ConfirmBudgetNote(plan_of(tmp_path, confirm="1x50", budget_gpu_hours=0.5), said.append)
    view = TrialView(0, {}, TrainConfig(epochs=EPOCHS))
    for epoch in range(1, 4):
        view.records.append({"epoch": epoch, "train_s": EPOCH_S})
        note.epoch_ended(view, view.records[-1])
        assert len(said) == (epoch >= 2), "the first epoch may be slow"
    assert said[0].startswith("--confirm 1x50 takes at least 1") and "more than the whole budget of 0.5" in said[0]
    fits = ConfirmBudgetNote(plan_of(tmp_path / "2", confirm="1x5", budget_gpu_hours=0.5), said.append)
    fits.epoch_ended(view, view.records[-1])
    assert len(said) == 1


def line_of(plan: SearchPlan, store: StudyStore) -> str:
    """The line about confirmations at the end of such a search."""
    answer = answer_of(store.study.trials, plan.to_dict(), plan.objectives)
    left = left_to_confirm(plan, store) if plan.confirm.best else (0, 0.0)
    return confirmation_in_words(frontier_json(answer), plan.to_dict(), "bigbatch tune --resume", "worker h", left)


def test_what_was_not_confirmed_is_said_in_one_line_with_its_cost_and_the_command(tmp_path):
    cost = "3 fresh seeds would train for about 0.06 worker h: bigbatch tune --resume --confirm 1x3"
    why: dict[str, tuple[dict[str, Any], int, str]] = {
        "default": ({"budget_gpu_hours": 0.01}, 8, "it would take more than a fifth of the budget"),
        "explicit": ({"confirm": "2x3"}, 8, "the search ended before"),
        "none": ({"confirm": "none"}, 8, "--confirm none was given"),
        "small": ({}, 5, "a search of fewer than 6 trials is too small for it"),
    }  # fmt: skip
    for name, (options, trials, words) in why.items():
        plan, store = study(tmp_path / name, trials, **options)
        assert line_of(plan, store) == f"Not confirmed with fresh seeds: {words}; {cost}", name
        store.close()
    plan, store = study(tmp_path / "again", 8, budget_gpu_hours=0.25, confirm="2x3")
    assert cost_in_words(plan, store) == "Confirmations: 6 runs, about 0.12 worker hours by the epochs of this study."
    store.close()
