"""``--trainable``: what a plan takes from a training function of the user's own, and what it refuses."""

import shlex
from pathlib import Path
from typing import Any

import pytest

from bigbatch.train_loop.config import ConfigError
from bigbatch.tune.console.columns import own_next_step
from bigbatch.tune.console.confirmation_words import confirm_lines
from bigbatch.tune.plan.checked_plan import make_plan
from bigbatch.tune.plan.options import SearchOptions
from bigbatch.tune.plan.own_code import reported_names
from bigbatch.tune.plan.search_plan import SearchPlan
from bigbatch.tune.runs.objective import TimeToTarget
from bigbatch.tune.runs.objectives import objectives_of
from bigbatch.tune.search.running import configurations_of
from bigbatch.tune.storage.store import StudyStore
from helpers.refusals import refusal

OWN = '''"""Says what it was given."""
DEFAULTS = {"trials": 5, "max_epochs": 7}

def space(trial, workload):
    return {"lr": trial.suggest_float("lr", 0.1, 1.0), "layers": [8, trial.suggest_categorical("last", [4, 16])]}

def initial_points(workload):
    return [{"lr": 0.5, "last": 16}]

def train(config, report, resume):
    report(epoch=1, value=config["lr"])

def two(config, report): ...
def number(trial, workload): return 3
def epochs(trial, workload): return {"epochs": 3}
def nested(trial, workload): return {"a": {"b": 3}}
def trains(trial, workload): return workload.config({"peak_lr": 0.1})
'''


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of the user's in the current folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(OWN)
    return tmp_path / "own.py"


def options(**changes: Any) -> SearchOptions:
    given: dict[str, Any] = {"trainable": "own.py:train", "space": "own.py", "objective": "accuracy:max", **changes}
    return SearchOptions(**given)


def plan(**changes: Any) -> SearchPlan:
    return make_plan(options(**changes))


def sampled(found: SearchPlan) -> dict[str, Any]:
    """What the function of a plan's first trial gets."""
    import optuna

    study = optuna.create_study()
    study.enqueue_trial({"lr": 0.5, "last": 16})
    return configurations_of(found).new(study.ask()).to_dict()


def test_the_function_gets_what_its_space_returns_and_the_study_keeps_only_that(own: Path) -> None:
    found = plan(seed=3)
    assert found.trials == 5 and found.max_epochs == 7 and found.objectives.text == "accuracy:max"
    trainable = {"name": f"{own}:train", "options": {"lr": 0.5, "layers": [8, 16]}}
    assert sampled(found) == {"schema_version": 4, "epochs": 7, "seed": 3, "trainable": trainable}
    assert found.to_dict()["trainable"] == f"{own}:train" and set(found.ranges) == {"lr", "last"}
    assert found.space.initial_points(found.workload) == [{"lr": 0.5, "last": 16}]
    assert not found.enqueued and found.frontier is None and str(found.confirm) == "none"


def test_the_options_that_train_the_best_in_full_give_the_function_the_same_config(own: Path) -> None:
    own.write_text(OWN.replace("[4, 16]", "[4, 16, 'a b', None]"))
    for last in (4, "a b", None):
        words = shlex.split(own_next_step("best.json", {"lr": 0.15979694049089213, "last": last}, 20).splitlines()[-1])
        assert words[:7] == ["--trials", "1", "--max-epochs", "40", "--study", "OTHER", "--set"]
        found = sampled(plan(trials=1, max_epochs=40, set=words[7:]))
        assert found["trainable"]["options"] == {"lr": 0.15979694049089213, "layers": [8, last]}
    assert "--set" not in own_next_step("best.json", {}, 20), "the search's command has them all"


def test_a_frontier_a_target_and_confirmations_are_those_of_other_searches(own: Path) -> None:
    own.write_text(OWN + '\nFRONTIER = "last"\n')
    found = plan(confirm="2x3", tolerance="1%")
    assert found.frontier is not None and (found.frontier.name, found.frontier.values) == ("last", (4, 16))
    assert str(found.confirm) == "2x3" and str(plan().confirm) == "none", "only accuracies are confirmed by default"
    resumed = plan(confirm=str(plan().confirm))  # as study.json keeps it
    assert confirm_lines(resumed) == confirm_lines(plan()) and "by default" in confirm_lines(resumed)[0][1]
    fixed = plan(set=("last=4",)).frontier
    assert fixed is not None and fixed.values == (4,)
    own.write_text(OWN + '\nFRONTIER = "lr"\n')
    with pytest.raises(ConfigError, match="FRONTIER of a space names a choice, or a whole number"):
        plan()
    target = plan(set=("lr=0.5",), objective=None, target="accuracy:max=0.9").objectives
    assert isinstance(target.first, TimeToTarget) and target.text == "accuracy:max=0.9"
    assert reported_names(target) == ("accuracy",)
    assert objectives_of({"trainable": "own.py:train", "objective": target.text}) == target, "as study.json keeps it"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"trainable": "own.py:traim"}, "--trainable must name a function of"),
        ({"trainable": "none.py:train"}, "--trainable must name a Python file that is there"),
        ({"trainable": "own.py:two"}, "--trainable must name a function of (config, report, resume); got"),
        ({"space": None}, "--trainable needs a space of your own, whose function returns a dict; got none"),
        ({"space": "large_batch"}, "whose function returns a dict; got 'large_batch'"),
        ({"space": "own.py:number"}, "with --trainable a space returns a dict, the function's config; got int"),
        ({"space": "own.py:epochs"}, "config['epochs'] is what --max-epochs says"),
        ({"space": "own.py:nested"}, "config.a must be a number, a word, true, false, null or a list"),
        ({"objective": None}, "--trainable needs the name of what it reports"),
        ({"objective": "accuracy"}, "needs its direction: accuracy:max or accuracy:min"),
        ({"objective": "val_top1:max"}, "an accuracy whose images BigBatch counts itself"),
        ({"objective": "epoch_s:min"}, "needs an objective that the function reports"),
        ({"objective": None, "target": "a:max=0.9", "confirm": "1x3"}, "--confirm compares means of one metric"),
        ({"data": "digits"}, "--trainable brings its own data, network and optimizer; got --data too"),
        ({"warm_start": ("runs/a",)}, "--warm-start takes folders of studies, such as runs/first; got 'runs/a'"),
        ({"set": ("epochs=3",)}, "epochs has its own option"),
        ({"set": ("lr=3",)}, "lr must be a number of 0.1 to 1"),
        ({"set": ("lr",)}, "--set takes NAME=VALUE with --trainable"),
        ({"set": ("a=1", "a=2")}, "a name is set once; got 'a' twice"),
    ],
)
def test_what_cannot_be_searched_is_refused_in_one_line(own: Path, changes: dict[str, Any], said: str) -> None:
    assert said in refusal(lambda: plan(**changes))


def test_the_curves_of_another_study_are_read_for_a_metric_that_the_function_reports(own: Path) -> None:
    before = plan(study="before")
    store = StudyStore.create(before.folder, "before", before.to_dict(), None)
    trial = store.study.ask()
    config = configurations_of(before).new(trial).to_dict()
    records = {f"epoch/{epoch:05d}": {"epoch": epoch, "metrics": {"accuracy": epoch / 10}} for epoch in range(1, 8)}
    for name, value in ({"config": config} | records).items():
        trial.set_user_attr(name, value)
    store.study.tell(trial, 0.7)
    store.refresh(force=True)
    store.close()
    (by_journal,) = plan(warm_start=(str(before.folder),)).warm_start
    assert [curve.gains for curve in by_journal.curves] == [{1: 0.1, 2: 0.2, 4: 0.4, 7: 0.7}]
    (before.folder / "optuna.journal").unlink()  # as of a study in a database
    assert plan(warm_start=(str(before.folder),)).warm_start == (by_journal,)


def test_a_resumed_study_knows_its_function_and_completes_its_settings(own: Path) -> None:
    kept = options(set=("batch=many", "lr=0.25"), workers=2).kept()
    assert kept["trainable"] == f"{own}:train" and kept["space"] == str(own)
    again = SearchOptions(resume=True, study="s", set=("lr=0.5",)).over(kept)
    assert again.trainable == f"{own}:train" and again.set == ("batch=many", "lr=0.5") and again.workers == 2
