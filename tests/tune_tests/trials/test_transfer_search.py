"""``--transfer-to`` by the real conductor without Ray: order of the trials, predictions, kills, findings."""

from __future__ import annotations

import math
import zlib
from pathlib import Path
from typing import Any

import pytest
from optuna.trial import TrialState

from bigbatch.train_loop.config import TrainConfig
from bigbatch.tune.plan.checked_plan import make_plan
from bigbatch.tune.plan.options import SearchOptions
from bigbatch.tune.plan.search_plan import SearchPlan
from bigbatch.tune.search.follow_up_findings import follow_up_findings
from bigbatch.tune.strategies.follow_up import first_part, second_part
from bigbatch.tune.study.answer import answer_of
from bigbatch.tune.study.trial_facts import FOLLOWS_ATTR, count_ended
from helpers.conducted import summary
from helpers.planned import PlannedSearch, config_of

TARGET, TRIALS, EPOCHS = 1024, 16, 12
EXPONENT = 0.7
"""Of the law by which the best rate follows the batch, for each optimizer."""


def best_rate(batch: int) -> float:
    return 0.02 * (batch / 128) ** EXPONENT


def curve(config: TrainConfig, epoch: int) -> float:
    """Less, the further the rate is from the law. The larger the batch, the worse."""
    batch = config.batch.global_size
    away = math.log(config.optimizer.peak_lr * 0.1 / (1 - config.optimizer.momentum) / best_rate(batch))
    luck = zlib.crc32(repr(config).encode()) % 1000 / 1_000_000
    return 0.95 - 0.02 * away**2 - 0.005 * math.log2(batch / 128) - luck - 0.3 * (1 / epoch - 1 / EPOCHS)


def plan_of(folder: Path, **options: Any) -> SearchPlan:
    given = {"output": str(folder / "runs"), "model": "resnet18", "batch": "128,256", "transfer_to": "1k",
             "trials": TRIALS, "set": ("optimizer=sgd",), "enqueue": ("none",),
             "confirm": "none", "max_epochs": EPOCHS}  # fmt: skip
    return make_plan(SearchOptions(**{**given, **options}))


def search_of(plan: SearchPlan, folder: Path) -> PlannedSearch:
    return PlannedSearch(plan, folder, curve)


@pytest.mark.parametrize("stopping", ["none", "asha", "look"])
def test_the_target_comes_last_and_runs_whole(tmp_path: Path, stopping: str) -> None:
    search = search_of(plan_of(tmp_path, stopping=stopping), tmp_path).run()
    there, before = second_part(search.trials), first_part(search.trials)
    assert count_ended(search.trials) == TRIALS and len(there) == 4
    assert {t.params["global_batch_size"] for t in before} == {128, 256}
    assert {t.params["global_batch_size"] for t in there} == {TARGET}
    assert all(t.state == TrialState.COMPLETE for t in there), "none is stopped or paused"
    assert all(t.datetime_start > max(b.datetime_complete for b in before) for t in there)


def test_the_prediction_comes_first_and_is_near_the_law(tmp_path: Path) -> None:
    search = search_of(plan_of(tmp_path, stopping="none"), tmp_path).run()
    first, *others = second_part(search.trials)
    said = first.user_attrs[FOLLOWS_ATTR]
    assert said["kind"] == "prediction" and all(t.user_attrs[FOLLOWS_ATTR]["kind"] == "around" for t in others)
    config = config_of(first)
    assert config.optimizer.peak_lr == pytest.approx(said["peak_lr"])
    rate = config.optimizer.peak_lr * 0.1 / (1 - config.optimizer.momentum)
    assert 0.5 < rate / best_rate(TARGET) < 2, "within the scatter of good rates, from batches 8 and 4 times smaller"
    best_before = max(t.values[0] for t in first_part(search.trials))
    assert 0.85 < said["objective"] <= best_before
    assert len({config_of(t).optimizer.peak_lr for t in (first, *others)}) == 4, "no two are equal"
    for trial in others:
        assert 1 / 8 < config_of(trial).optimizer.peak_lr / config.optimizer.peak_lr < 8, "a narrow prior"


def test_the_answer_may_be_the_target(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, stopping="none")
    search = search_of(plan, tmp_path).run()
    best = answer_of(search.trials, plan.to_dict(), plan.objectives)
    assert best is not None and best.usable and plan.frontier is not None and TARGET in plan.frontier.values
    assert max(t.values[0] for t in second_part(search.trials)) > 0.9


@pytest.mark.parametrize("kills", [(3,), (150,), (155, 165, 175, 185, 195)])
@pytest.mark.parametrize("strategy", ["curves", "tpe", "random"])
def test_a_killed_search_goes_on_with_the_same_trials(tmp_path: Path, strategy: str, kills: tuple[int, ...]) -> None:
    plan = plan_of(tmp_path, stopping="none", strategy=strategy)
    whole = search_of(plan, tmp_path / "whole").run()
    killed = search_of(plan, tmp_path / "killed").run(kills)
    assert summary(killed.trials) == summary(whole.trials)
    said = [[t.user_attrs.get(FOLLOWS_ATTR) for t in search.trials] for search in (whole, killed)]
    assert said[0] == said[1]


@pytest.mark.parametrize("every", [23, 61, 97])
def test_a_kill_at_any_write_loses_and_doubles_nothing(tmp_path: Path, every: int) -> None:
    search = search_of(plan_of(tmp_path, stopping="none"), tmp_path).run_with_kills_at_writes([every] * 40)
    there = second_part(search.trials)
    assert len(search.trials) == TRIALS and len(there) == 4
    assert all(list(t.intermediate_values) == list(range(1, EPOCHS + 1)) for t in search.trials)
    assert [t.user_attrs[FOLLOWS_ATTR]["kind"] for t in there] == ["prediction", "around", "around", "around"]


def test_two_optimizers_are_predicted_where_there_is_room(tmp_path: Path) -> None:
    search = search_of(plan_of(tmp_path, set=(), stopping="none"), tmp_path).run()
    kinds = [(t.user_attrs[FOLLOWS_ATTR]["kind"], t.params["optimizer"]) for t in second_part(search.trials)]
    assert [kind for kind, _ in kinds] == ["prediction", "prediction", "around", "around"]
    assert kinds[0][1] != kinds[1][1]


def test_without_a_finished_trial_the_smaller_batches_get_the_rest(tmp_path: Path) -> None:
    search = search_of(plan_of(tmp_path, stopping="none"), tmp_path)
    search.fails = lambda trial: trial.number < 12
    search.run()
    assert count_ended(search.trials) == TRIALS
    assert search.trials[12].params["global_batch_size"] < TARGET, "nothing is known yet"
    assert search.trials[15].params["global_batch_size"] == TARGET


def test_the_findings_say_what_was_predicted_and_what_came_out(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, stopping="none")
    search = search_of(plan, tmp_path).run()
    lines = follow_up_findings(search.trials, plan.objectives.first)
    first, best = second_part(search.trials)[0], max(second_part(search.trials), key=lambda t: t.values[0])
    said = first.user_attrs[FOLLOWS_ATTR]
    assert len(lines) == 2
    assert f"predicted peak_lr {said['peak_lr']:.3g}" in lines[0] and f"{100 * said['objective']:.1f} %" in lines[0]
    assert f"What came out (trial {first.number}): {100 * first.values[0]:.1f} %" in lines[0]
    times = config_of(best).optimizer.peak_lr / said["peak_lr"]
    assert f"trial {best.number} with" in lines[1] and f"{times:.2f} × the predicted rate of sgd" in lines[1]
