"""``--fidelity`` by the real conductor without Ray: cheap runs, finalists, kills, what may be called best, findings."""

from __future__ import annotations

import json
import math
import zlib
from pathlib import Path
from typing import Any, cast

import pyarrow.parquet as pq
import pytest
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState
from rich.console import Console
from scipy.stats import spearmanr

from bigbatch.train_loop.config import TrainConfig
from bigbatch.tune.plan.checked_plan import make_plan
from bigbatch.tune.plan.options import SearchOptions
from bigbatch.tune.plan.search_plan import SearchPlan
from bigbatch.tune.search.follow_up_findings import follow_up_findings
from bigbatch.tune.search.running import configurations_of, follow_up_of, strategy_of
from bigbatch.tune.strategies.follow_up import FollowUp, FollowUpInBudget, first_part, second_part
from bigbatch.tune.strategies.protocol import Strategy
from bigbatch.tune.strategies.search_only import SearchOnly
from bigbatch.tune.study.cheap_runs import ran_cheaply
from bigbatch.tune.study.confirmed import confirmed_trials
from bigbatch.tune.study.frontier import frontier_facts, frontier_of
from bigbatch.tune.study.trial_facts import CHEAP_ATTR, CONFIRMS_ATTR, ENQUEUED_ATTR, FOLLOWS_ATTR, count_ended
from bigbatch.tune.trials.conductor import Conductor
from bigbatch.tune.watch.findings import print_findings
from bigbatch.tune.watch.views import trial_views
from helpers.conducted import summary
from helpers.planned import PlannedSearch, config_of

TRIALS, EPOCHS, CHEAP = 15, 12, 4


def curve(config: TrainConfig, epoch: int) -> float:
    """The rate matters, and how far the run has come. Cheap runs have luck of their own, so they rank otherwise."""
    away = math.log(config.optimizer.peak_lr / 0.02)
    luck = zlib.crc32(repr(config).encode()) % 1000 / 50_000
    share = epoch / config.epochs
    return 0.9 - 0.01 * away**2 - 0.1 * (config.epochs < EPOCHS) - 0.2 * (1 - share) - luck


def plan_of(folder: Path, **options: Any) -> SearchPlan:
    given = {"output": str(folder / "runs"), "model": "resnet18", "batch": "128,256,512", "trials": TRIALS,
             "fidelity": "epochs", "max_epochs": EPOCHS, "set": ("optimizer=sgd",), "enqueue": ("none",),
             "confirm": "none", "stopping": "none"}  # fmt: skip
    return make_plan(SearchOptions(**{**given, **options}))


def search_of(plan: SearchPlan, folder: Path) -> PlannedSearch:
    return PlannedSearch(plan, folder, curve)


def best_cheap(search: PlannedSearch, batch: int) -> FrozenTrial:
    cheap = [t for t in search.trials if ran_cheaply(t) and t.params["global_batch_size"] == batch]
    return max(cheap, key=lambda t: t.intermediate_values[CHEAP])


@pytest.mark.parametrize("stopping", ["none", "asha"])
def test_the_best_cheap_run_of_each_batch_is_trained_in_full(tmp_path: Path, stopping: str) -> None:
    plan = plan_of(tmp_path, stopping=stopping)
    search = search_of(plan, tmp_path).run()
    cheap, full = first_part(search.trials), second_part(search.trials)
    assert count_ended(search.trials) == TRIALS and len(cheap) == 12 and len(full) == 3
    assert all(t.state == TrialState.PRUNED and config_of(t).epochs == CHEAP for t in cheap)
    assert all(t.state == TrialState.COMPLETE and config_of(t).epochs == EPOCHS for t in full)
    assert [t.params["global_batch_size"] for t in full] == [512, 256, 128], "the largest first"
    for trial in full:
        chosen = best_cheap(search, trial.params["global_batch_size"])
        assert trial.user_attrs[FOLLOWS_ATTR]["of"] == chosen.number and trial.params == chosen.params


def test_a_cheap_run_is_the_full_one_with_less(tmp_path: Path) -> None:
    search = search_of(plan_of(tmp_path), tmp_path).run()
    for trial in second_part(search.trials):
        full, cheap = config_of(trial), config_of(search.trials[trial.user_attrs[FOLLOWS_ATTR]["of"]])
        warmup = cheap.schedule.warmup_epochs
        assert warmup == pytest.approx(full.schedule.warmup_epochs * CHEAP / EPOCHS), "its share of the run"
        assert cheap == full.replace_keys({"epochs": CHEAP, "schedule.warmup_epochs": warmup})


@pytest.mark.parametrize(
    ("fidelity", "keys"),
    [("subset=50%", {"data.subset": 0.5}), ("image_size=16", {"data.image_size": 16})],
)
def test_other_fidelities_change_one_key(tmp_path: Path, fidelity: str, keys: dict[str, object]) -> None:
    search = search_of(plan_of(tmp_path, fidelity=fidelity, set=("optimizer=sgd", "drop_last=true")), tmp_path).run()
    for trial in second_part(search.trials):
        full, cheap = config_of(trial), config_of(search.trials[trial.user_attrs[FOLLOWS_ATTR]["of"]])
        assert cheap == full.replace_keys(keys)


@pytest.mark.parametrize(("optimizer", "key"), [("lars", "trust_coefficient"), ("lamb", "peak_lr")])
def test_a_shorter_run_of_layerwise_rates_takes_longer_steps(tmp_path: Path, optimizer: str, key: str) -> None:
    """As in the prior: the step grows with the root of the missing steps; digits at 12 epochs are below all bounds."""
    search = search_of(plan_of(tmp_path, set=(f"optimizer={optimizer}",)), tmp_path).run()
    for trial in second_part(search.trials):
        full, cheap = (config_of(t).optimizer for t in (trial, search.trials[trial.user_attrs[FOLLOWS_ATTR]["of"]]))
        assert getattr(cheap, key) == pytest.approx(getattr(full, key) * math.sqrt(EPOCHS / CHEAP))
        assert cheap == full or {name for name in vars(full) if vars(full)[name] != vars(cheap)[name]} == {key}


@pytest.mark.parametrize("kills", [(3,), (60, 61), (95, 100, 105, 110)])
@pytest.mark.parametrize("strategy", ["curves", "tpe", "random"])
def test_a_killed_search_goes_on_with_the_same_decisions(tmp_path: Path, strategy: str, kills: tuple[int, ...]) -> None:
    plan = plan_of(tmp_path, strategy=strategy)
    whole = search_of(plan, tmp_path / "whole").run()
    killed = search_of(plan, tmp_path / "killed").run(kills)
    assert summary(killed.trials) == summary(whole.trials)
    for name in (FOLLOWS_ATTR, CHEAP_ATTR, "config"):
        assert [t.user_attrs.get(name) for t in killed.trials] == [t.user_attrs.get(name) for t in whole.trials]


@pytest.mark.parametrize("every", [23, 61, 97])
def test_a_kill_at_any_write_loses_and_doubles_nothing(tmp_path: Path, every: int) -> None:
    plan = plan_of(tmp_path, confirm="1x1")
    search = search_of(plan, tmp_path).run_with_kills_at_writes([every] * 40)
    cheap, full = first_part(search.trials), second_part(search.trials)
    assert (len(cheap), len(full)) == (12, 3)
    assert all(ran_cheaply(t) and list(t.intermediate_values) == list(range(1, CHEAP + 1)) for t in cheap)
    assert all(t.state == TrialState.COMPLETE and len(t.intermediate_values) == EPOCHS for t in full)
    chosen = [best_cheap(search, batch).number for batch in (512, 256, 128)]
    assert [t.user_attrs[FOLLOWS_ATTR]["of"] for t in full] == chosen
    assert sorted(t.user_attrs[CONFIRMS_ATTR] for t in search.trials if CONFIRMS_ATTR in t.user_attrs) == [
        t.number for t in full
    ]


def test_only_full_runs_are_best_in_the_frontier_or_confirmed(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, confirm="1x1")

    def better_when_cheap(config: TrainConfig, epoch: int) -> float:
        return curve(config, epoch) + 0.2 * (config.epochs < EPOCHS)

    search = PlannedSearch(plan, tmp_path, better_when_cheap).run()
    full = {t.number for t in second_part(search.trials)}
    assert {
        t.number for t in search.trials if t.state == TrialState.COMPLETE and CONFIRMS_ATTR not in t.user_attrs
    } == full
    facts = frontier_facts(plan.to_dict(), plan.objectives.first)
    assert facts is not None
    frontier = frontier_of(search.trials, facts)
    assert frontier is not None and {row.best.trial for row in frontier.rows if row.best} == full
    assert sum(row.tried for row in frontier.rows) == 12, "a finalist and its cheap run are one configuration"
    confirmed = confirmed_trials(search.trials, plan.objectives.first)
    assert confirmed.keys() == full
    assert {config_of(t).epochs for t in search.trials if CONFIRMS_ATTR in t.user_attrs} == {EPOCHS}


def test_the_study_on_disk_and_the_printed_findings_know_of_cheap_runs(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, study="s")
    search = PlannedSearch(plan, tmp_path, curve, on_disk=True).run(kills=(40, 100))
    search.store.refresh(force=True)
    views = trial_views(search.trials, plan.objectives)
    console = Console(width=300, record=True, file=(tmp_path / "out").open("w"))
    print_findings(plan, views, 1.0, search.store.ledger.used(), console)
    text = console.export_text()
    assert "3 of 15 trials ran to their end, 12 cheap runs, 0 stopped early, 0 failed" in text
    answer = json.loads((plan.folder / "frontier.json").read_text())
    assert {row["trial"] for row in answer["rows"]} == {t.number for t in second_part(search.trials)}
    assert json.loads((plan.folder / "best.json").read_text())["epochs"] == EPOCHS
    table = pq.read_table(plan.folder / "trials.parquet", columns=["fidelity", "state"]).to_pylist()
    assert [(row["fidelity"], row["state"]) for row in table] == [("epochs=4", "PRUNED")] * 12 + [
        (None, "COMPLETE")
    ] * 3
    search.store.close()


def test_a_recipe_is_tried_cheaply_and_in_full_as_it_is(tmp_path: Path) -> None:
    """Even if no parameters of the space give it."""
    plan = plan_of(tmp_path, enqueue=("recipe:goyal-sgd-8k",), set=(), batch="128,256")

    def recipes_win(config: TrainConfig, epoch: int) -> float:
        return curve(config, epoch) + 0.3 * (config.optimizer.name == "sgd" and config.schedule.name == "step")

    search = PlannedSearch(plan, tmp_path, recipes_win).run()
    asked = {one.config.batch.global_size: one.config for one in plan.enqueued}
    finals = [t for t in second_part(search.trials) if ENQUEUED_ATTR in t.user_attrs]
    assert finals
    for trial in finals:
        batch = config_of(trial).batch.global_size
        assert config_of(trial) == asked[batch]
        cheap = config_of(search.trials[trial.user_attrs[FOLLOWS_ATTR]["of"]])
        assert cheap.epochs == CHEAP
        assert cheap.schedule.step_epochs == pytest.approx([e / 3 for e in asked[batch].schedule.step_epochs])


def test_the_strategy_sees_cheap_runs_as_finished_ones_and_no_others(tmp_path: Path) -> None:
    search = search_of(plan_of(tmp_path, confirm="1x1"), tmp_path).run()
    shown: list[FrozenTrial] = []

    class Looks:
        """A strategy that keeps what it is shown."""

        def is_over(self, study: Study) -> bool:
            shown.extend(study.get_trials())
            return True

    SearchOnly(cast(Strategy, Looks())).is_over(search.store.study)
    cheap = first_part(search.trials)
    assert [t.number for t in shown] == [t.number for t in cheap] and len(cheap) == 12
    for trial, stored in zip(shown, cheap, strict=True):
        assert trial.state == TrialState.COMPLETE and stored.state == TrialState.PRUNED
        assert trial.values == [stored.intermediate_values[CHEAP]]


def test_what_fails_cheaply_is_no_finalist(tmp_path: Path) -> None:
    search = search_of(plan_of(tmp_path), tmp_path)
    search.fails = lambda trial: trial.params["global_batch_size"] == 512 and CHEAP_ATTR in trial.user_attrs
    search.run()
    assert count_ended(search.trials) == TRIALS
    assert {t.params["global_batch_size"] for t in second_part(search.trials)} == {128, 256}


def test_the_findings_say_what_was_predicted_and_what_came_out(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    search = search_of(plan, tmp_path).run()
    full = second_part(search.trials)
    lines = follow_up_findings(search.trials, plan.objectives.first)
    pairs = [(search.trials[t.user_attrs[FOLLOWS_ATTR]["of"]], t) for t in full]
    for line, (cheap, trial) in zip(lines, pairs, strict=False):
        assert f"Trial {cheap.number} with epochs=4: validation top-1 {100 * cheap.values[0]:.1f} %, 1 of " in line
        assert f"In full (trial {trial.number}): {100 * trial.values[0]:.1f} %." in line
    expected = spearmanr([c.values[0] for c, _ in pairs], [t.values[0] for _, t in pairs]).statistic
    assert lines[3:] == [f"Rank correlation of cheap and full runs: {expected:+.2f} over 3 finalists."]


def test_a_cheap_run_is_counted_by_itself(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    search = search_of(plan, tmp_path).run()
    views = trial_views(search.trials, plan.objectives)
    assert sum(view.ran_cheaply for view in views) == 12 and sum(view.state == "COMPLETE" for view in views) == 3


def give_budget(search: PlannedSearch, epochs: int, trials: int) -> None:
    """Let the search train so many epochs in all, and begin so many trials at most."""
    plan = search.plan

    def used() -> float:
        return sum(len(t.intermediate_values) for t in search.trials) / epochs

    search.conductor = Conductor(
        search.store,
        strategy_of(plan),
        configurations_of(plan),
        objective=plan.objectives.first,
        follow_up=FollowUpInBudget(cast(FollowUp, follow_up_of(plan)), used),
        trials=trials,
        workers=1,
        observers=[],
        may_start=lambda: used() < 1,
    )


def test_half_of_a_budget_is_for_full_runs(tmp_path: Path) -> None:
    """Without a number of trials, the finalists follow as soon as the first half is used, and go on to its end."""
    plan = plan_of(tmp_path, trials=None, budget_gpu_hours=1.0)
    assert plan.open_ended
    search = search_of(plan, tmp_path)
    epochs = 100
    give_budget(search, epochs, 10_000)
    search.run()
    kinds = [FOLLOWS_ATTR in t.user_attrs for t in search.trials]
    assert kinds == sorted(kinds), "cheap runs first"
    cheap = [t for t in search.trials if ran_cheaply(t)]
    assert epochs / 2 <= CHEAP * len(cheap) <= epochs / 2 + 2 * CHEAP, "two slots, which end what they have begun"
    assert kinds.count(True) >= 4


def test_cheap_runs_that_wait_leave_half_of_a_budget_for_full_ones(tmp_path: Path) -> None:
    """Published recipes and points of other studies wait from the beginning; here they alone cost nearly all of it."""
    plan = plan_of(tmp_path, trials=40, budget_gpu_hours=1.0, enqueue=(), set=())
    search = search_of(plan, tmp_path)
    waiting = len(search.trials)
    epochs = CHEAP * waiting
    give_budget(search, epochs, plan.trials)
    search.run()
    assert waiting >= 6
    full = [t for t in search.trials if FOLLOWS_ATTR in t.user_attrs and t.state == TrialState.COMPLETE]
    cheap = [t for t in search.trials if FOLLOWS_ATTR not in t.user_attrs and t.intermediate_values]
    assert full and len(cheap) <= waiting / 2 + 2, "two slots, which end what they have begun"
    left = [t for t in search.trials if t.state == TrialState.WAITING]
    assert len(left) == waiting - len(cheap), "they stay, for a larger budget"
