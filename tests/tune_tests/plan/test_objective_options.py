"""``--objective``, ``--target``, ``--baseline`` and the bounds of a space, before anything starts."""

from pathlib import Path
from typing import Any

import pytest

from bigbatch.train_loop.config import ConfigError
from bigbatch.tune.console.findings import objective_lines
from bigbatch.tune.plan.arguments import parse_options, tune_parser
from bigbatch.tune.plan.checked_plan import make_plan
from bigbatch.tune.plan.options import SearchOptions
from bigbatch.tune.plan.search_plan import SearchPlan
from bigbatch.tune.runs.learned import baseline_of
from bigbatch.tune.storage.description import read_description
from bigbatch.tune.storage.store import StudyStore
from helpers.refusals import refusal

OWN = """
def space(trial, workload):
    return {"lr": trial.suggest_float("lr", 0.1, 1.0)}


def train(config, report, resume):
    report(epoch=1, acc=config["lr"])
"""


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(OWN)
    return tmp_path / "own.py"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"objective": "val_top"}, "Did you mean 'val_top1'"),
        ({"objective": "val_loss", "target": "val_top1=0.9"}, "got --objective and --target. Keep one of them."),
        ({"objective": "val_loss,gpu_hours"}, "Write --objectives val_loss,gpu_hours."),
        ({"objective": "val_top1=0.9"}, "Write --target val_top1=0.9."),
        ({"target": "val_top1"}, "--target takes METRIC=VALUE"),
        ({"target": "val_top5=0.9"}, "names a metric that each trial reports; got 'val_top5'"),
        ({"objectives": "val_top1,gpu_hours", "stopping": "asha"}, "Write --stopping none."),
        ({"objectives": "val_top1,gpu_hours", "strategy": "curves"}, "Write --strategy tpe."),
    ],
)
def test_bad_input_meets_one_line_that_names_the_fix(given, said):
    assert said in refusal(lambda: make_plan(SearchOptions(space="smoke", **given)))


@pytest.mark.parametrize(
    "given", [{"objective": "val_top1:max"}, {"target": "val_top1=0.9"}, {"objectives": "val_loss,train_top1"}], ids=str
)
def test_top_1_is_no_objective_where_targets_are_no_classes(own: Path, given: dict[str, Any]) -> None:
    own.write_text(
        "import torch\nfrom torch import nn\n"
        "def data():\n    return [[(torch.ones(3), 0.5)] * 32, [(torch.ones(3), 0.5)] * 8]\n"
        "def net(workload):\n    return nn.Linear(3, 1)\n"
        "def mse(outputs, targets):\n    return ((outputs[:, 0] - targets) ** 2).mean()\n"
    )
    mine: dict[str, Any] = {"data": "own.py:data", "model": "own.py:net", "loss": "own.py:mse"}
    assert make_plan(SearchOptions(space="smoke", **mine)).objectives.text == "val_loss:min"
    with pytest.raises(ConfigError, match="_top1 needs targets that are classes.* Write --objective val_loss:min"):
        make_plan(SearchOptions(space="smoke", **mine, **given))


def test_a_resumed_study_keeps_its_objective_and_refuses_another():
    plan = make_plan(SearchOptions(space="smoke", study="s", objective="val_loss"))
    StudyStore.create(plan.folder, "s", plan.to_dict(), None).close()
    assert make_plan(SearchOptions(study="s", resume=True)).objectives.text == "val_loss:min"
    assert make_plan(SearchOptions(study="s", resume=True, objective="val_loss:min")).objectives.text == "val_loss:min"
    with pytest.raises(ConfigError, match=r"the objective was val_loss:min; got val_top1=0\.9\. Leave it out"):
        make_plan(SearchOptions(study="s", resume=True, target="val_top1=0.9"))


def test_several_objectives_stop_no_trial_and_have_no_frontier():
    plan = make_plan(SearchOptions(objectives="val_top1:max,gpu_hours:min", strategy="qmc"))
    assert plan.stopping == "none" and plan.frontier is None
    assert plan.to_dict()["objective"] == "val_top1:max,gpu_hours:min"


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("'epoch_z', at_most=60", "Did you mean 'epoch_s'"),
        ("'val_top1', at_least=0.5", "bounds what a trial costs; got 'val_top1'"),
        ("'epoch_s'", "has no bound; write at_most"),
        ("'epoch_s', at_most=1, at_least=2", "needs at_least <= at_most"),
    ],
)
def test_a_bound_that_means_nothing_is_refused(own, call, said):
    own.write_text(
        "def space(trial, workload):\n"
        "    lr = trial.suggest_float('peak_lr', 0.1, 1.0)\n"
        f"    trial.set_constraint({call})\n"
        "    return workload.config({'optimizer': 'sgd', 'global_size': 64, 'peak_lr': lr})\n"
    )
    assert said in refusal(lambda: make_plan(SearchOptions(space="own.py")))


def options(*words: str, objective: str = "acc:max") -> SearchOptions:
    name = "--target" if "=" in objective else "--objectives"
    mine = ["--trainable", "own.py:train", "--space", "own.py", name, objective]
    return SearchOptions(**parse_options(tune_parser(""), [*mine, *words]))  # type: ignore[arg-type]


def plan(*words: str, **keywords: str) -> SearchPlan:
    return make_plan(options(*words, **keywords))


@pytest.mark.parametrize("words", [("acc=0.1",), ("0.1",)])
def test_the_option_says_it_of_the_objective(words: tuple[str, ...]) -> None:
    found = plan(*(f"--baseline={word}" for word in words))
    assert found.baseline == {"acc": 0.1} == found.to_dict()["baseline"]
    assert ("baseline", "acc 0.1 by a constant prediction") in objective_lines(found)
    assert baseline_of([], found.to_dict(), found.objectives.first) == 0.1


@pytest.mark.parametrize("words", [("acc=0.1,rmse=2",), ("rmse=2", "acc=0.1")])
def test_several_objectives_are_named(words: tuple[str, ...]) -> None:
    found = plan(*(f"--baseline={word}" for word in words), objective="acc:max,rmse:min,gpu_hours:min")
    assert found.baseline == {"acc": 0.1, "rmse": 2.0}


def test_a_built_in_run_takes_it_for_what_it_would_measure(own: Path) -> None:
    asked: dict[str, Any] = {"space": "smoke", "model": "resnet18"}
    assert make_plan(SearchOptions(**asked)).baseline == {}
    found = make_plan(SearchOptions(**asked, baseline=("0.4",)))
    assert found.baseline == {"val_top1": 0.4}
    assert baseline_of([], found.to_dict(), found.objectives.first) == 0.4
    for wrong in ("40", "-0.1"):
        with pytest.raises(ConfigError, match=f"--baseline of val_top1 is a fraction from 0 to 1; got {wrong}. Write"):
            make_plan(SearchOptions(**asked, baseline=(wrong,)))


def test_a_resumed_study_keeps_it_until_it_is_said_again(own: Path) -> None:
    first = plan("--study", "first", "--baseline", "acc=0.1")
    StudyStore.create(first.folder, first.study, first.to_dict(), None).close()
    again = ("--study", "first", "--resume")
    assert plan(*again).baseline == {"acc": 0.1}
    other = plan(*again, "--baseline", "0.3")
    assert other.baseline == {"acc": 0.3} and other.identity() == first.identity()
    store = StudyStore.open(first.folder, None)
    store.add_session({}, **other.to_dict())
    store.close()
    assert read_description(first.folder)["baseline"] == {"acc": 0.3} == plan(*again).baseline


@pytest.mark.parametrize(
    ("text", "objective", "said"),
    [
        ("accuracy=0.1", "acc:max", "names an objective, acc; got 'accuracy'. Write --baseline acc=0.1."),
        ("rms=3", "acc:max,rmse:min", "names an objective, acc or rmse; got 'rms'. Write --baseline rmse=3."),
        ("acc=high", "acc:max", "a finite number; got 'acc=high'. Write e.g. acc=0.1."),
        ("acc=0.1,acc=0.2", "acc:max", "names each metric once; got acc. Keep one of them."),
        ("gpu_hours=3", "acc:max,gpu_hours:min", "names an objective, acc; got 'gpu_hours'."),
        ("acc=0.1", "acc:max=0.9", "is of an objective that training improves; got acc:max=0.9. Leave it out."),
    ],
)
def test_what_it_cannot_be_is_refused_in_one_line(text: str, objective: str, said: str) -> None:
    refused = refusal(lambda: make_plan(options("--baseline", text, objective=objective)))
    assert refused.startswith("--baseline ") and said in refused
