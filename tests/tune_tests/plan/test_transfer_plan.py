"""``--transfer-to``: how the trials are divided, what the strategy may propose, and what makes no sense."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna
import pytest

from bigbatch.train_loop.config import ConfigError
from bigbatch.tune.plan.checked_plan import make_plan
from bigbatch.tune.plan.options import SearchOptions
from bigbatch.tune.plan.search_plan import SearchPlan
from bigbatch.tune.plan.transfer_plan import TransferPlan
from bigbatch.tune.search.first_trials import enqueue_first_trials
from bigbatch.tune.search.running import facts_of
from bigbatch.tune.strategies.shares import frontier_values
from bigbatch.tune.study.store import StudyStore


def plan_of(folder: Path, **options: Any) -> SearchPlan:
    return make_plan(SearchOptions(**{"output": str(folder), "model": "resnet18", **options}))


def test_a_quarter_of_the_trials_is_for_the_target(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, batch="128,256", transfer_to="1k", trials=16)
    assert plan.transfer == TransferPlan(1024, (128, 256), first=12, trials=4)
    assert plan.frontier is not None and plan.frontier.values == (128, 256, 1024)
    assert "12 trials at 128, 256; then 4 whole runs at 1,024" in plan.transfer.describe(open_ended=False)


def test_without_batches_the_smaller_ones_of_the_space_are_tuned(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, transfer_to="1k")
    assert plan.transfer is not None and plan.transfer.batches == (128, 256, 512)
    assert plan_of(tmp_path, transfer_to="1200").transfer == TransferPlan(1200, (128, 256, 512, 1024), 9, 3)


def test_one_batch_is_enough(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, batch="128", transfer_to="1k", trials=8)
    assert plan.transfer == TransferPlan(1024, (128,), first=5, trials=3)
    assert "global_batch_size" in plan.ranges


def test_nothing_is_proposed_or_tried_first_at_the_target(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, batch="128,256", transfer_to="1k", trials=16)
    facts = facts_of(plan)
    assert facts.trials == 12 and frontier_values(facts) == (128, 256)
    study = optuna.create_study()
    enqueue_first_trials(plan, study)
    waiting = [trial.system_attrs["fixed_params"]["global_batch_size"] for trial in study.get_trials()]
    assert waiting and set(waiting) <= {128, 256}


def test_a_resumed_study_keeps_its_target(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, study="moved", batch="128,256", transfer_to="1k", trials=16)
    StudyStore.create(plan.folder, plan.study, plan.to_dict(), None).close()
    again = plan_of(tmp_path, study="moved", resume=True)
    assert again.transfer == plan.transfer and again.identity() == plan.identity()
    for other in ("512", "1200"):
        with pytest.raises(ConfigError, match="--resume continues a study as it was planned"):
            plan_of(tmp_path, study="moved", resume=True, transfer_to=other)


OWN = "def space(trial, workload):\n    return workload.config({'peak_lr': trial.suggest_float('peak_lr', .1, 1)})\n"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"batch": "128,256", "transfer_to": "256"}, "above those at which the search tunes; got 256 and .* batch 256"),
        ({"batch": "512", "transfer_to": "128"}, "above those at which .* got 128 and the largest batch 512"),
        ({"transfer_to": "64"}, "got 64 and the smallest batch 128"),
        ({"transfer_to": "2k"}, "at most the 1,437 training images; got 2048"),
        ({"transfer_to": "1001", "workers": 2}, "must divide over the 2 workers"),
        ({"transfer_to": "big"}, "takes one batch.*'big'"),
        ({"transfer_to": "512,1k"}, "takes one batch.*'512,1k'"),
        ({"transfer_to": "1k", "set": ("batch=512",)}, "tunes at other batches first; got --set batch=512"),
        ({"transfer_to": "1k", "set": ("peak_lr=0.1", "optimizer=sgd")}, "predicts the rate; got --set peak_lr=0.1"),
        ({"transfer_to": "1k", "trials": 5}, "needs 3 trials or more .* got --trials 5. Write --trials 6"),
        ({"transfer_to": "1k", "target": "val_top1=0.9"}, "needs a search for one metric; got val_top1=0.9"),
        ({"transfer_to": "1k", "space": "own.py"}, "FRONTIER is the global batch .* got space 'own'"),
    ],
)
def test_what_makes_no_sense_meets_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(OWN)
    with pytest.raises(ConfigError, match=said) as caught:
        plan_of(tmp_path, **options)
    assert "\n" not in str(caught.value) and "--transfer-to" in str(caught.value)
