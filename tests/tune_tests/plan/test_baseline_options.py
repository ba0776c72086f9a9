"""``--baseline`` and ``BASELINE``: what the plan keeps, what a resumed study keeps, and what is refused in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bigbatch.train_loop.config import ConfigError
from bigbatch.tune.console.outcome import objective_lines
from bigbatch.tune.plan.arguments import parse_options, tune_parser
from bigbatch.tune.plan.checked_plan import make_plan
from bigbatch.tune.plan.options import SearchOptions
from bigbatch.tune.plan.search_plan import SearchPlan
from bigbatch.tune.plan.submission_check import check_by_parts
from bigbatch.tune.runs.learned import baseline_of
from bigbatch.tune.storage.description import read_description
from bigbatch.tune.storage.store import StudyStore

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


def options(*words: str, objective: str = "acc:max") -> SearchOptions:
    name = "--target" if "=" in objective else "--objectives"
    mine = ["--trainable", "own.py:train", "--space", "own.py", name, objective]
    return SearchOptions(**parse_options(tune_parser(""), [*mine, *words]))  # type: ignore[arg-type]


def plan(*words: str, **keywords: str) -> SearchPlan:
    return make_plan(options(*words, **keywords))


@pytest.mark.parametrize("words", [("acc=0.1",), ("0.1",), (" acc = 1e-1",)])
def test_the_option_says_it_of_the_objective(words: tuple[str, ...]) -> None:
    found = plan(*(f"--baseline={word}" for word in words))
    assert found.baseline == {"acc": 0.1} == found.to_dict()["baseline"]
    assert ("baseline", "acc 0.1 by a constant prediction") in objective_lines(found)
    assert baseline_of([], found.to_dict(), found.objectives.first) == 0.1


@pytest.mark.parametrize("words", [("acc=0.1,rmse=2",), ("rmse=2", "acc=0.1")])
def test_several_objectives_are_named(words: tuple[str, ...]) -> None:
    found = plan(*(f"--baseline={word}" for word in words), objective="acc:max,rmse:min,gpu_hours:min")
    assert found.baseline == {"acc": 0.1, "rmse": 2.0}


def test_a_space_says_it_too_of_any_metric_and_the_option_says_it_again(own: Path) -> None:
    own.write_text(OWN + "\nBASELINE = {'acc': 0.1, 'perplexity': 900}\n")
    assert plan().baseline == {"acc": 0.1} and plan("--baseline", "0.2").baseline == {"acc": 0.2}
    assert plan(objective="perplexity:min").baseline == {"perplexity": 900.0}
    assert plan(objective="rmse:min").baseline == {} == plan(objective="acc:max=0.9").baseline
    own.write_text(OWN + "\nBASELINE = 0.25\n")
    assert plan().baseline == {"acc": 0.25} and plan(objective="acc:max=0.9").baseline == {}


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
        ("0.1", "acc:max,rmse:min", "got '0.1 alone'. Write --baseline acc=0.1."),
        ("acc=high", "acc:max", "a finite number; got 'acc=high'. Write e.g. acc=0.1."),
        ("acc=nan", "acc:max", "a finite number; got 'acc=nan'"),
        ("acc=", "acc:max", "a finite number; got 'acc='"),
        ("=0.1", "acc:max", "a finite number; got '=0.1'"),
        ("acc=0.1,", "acc:max", "a finite number; got ''"),
        ("acc=0.1,acc=0.2", "acc:max", "names each metric once; got acc. Keep one of them."),
        ("0.1,0.2", "acc:max", "names each metric once; got two numbers. Keep one of them."),
        ("acc=0.1,0.2", "acc:max", "got '0.2 alone'. Write --baseline acc=0.2."),
        ("gpu_hours=3", "acc:max,gpu_hours:min", "names an objective, acc; got 'gpu_hours'."),
        ("acc=0.1", "acc:max=0.9", "is of an objective that training improves; got acc:max=0.9. Leave it out."),
    ],
)
def test_what_it_cannot_be_is_refused_in_one_line_also_on_a_login_node(text: str, objective: str, said: str) -> None:
    for check in (make_plan, check_by_parts):
        with pytest.raises(ConfigError) as refused:
            check(options("--baseline", text, objective=objective))
        assert str(refused.value).startswith("--baseline ") and said in str(refused.value)
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("value", "objective", "said"),
    [
        ("'low'", "acc:max", "a finite number by metric; got 'low' in "),
        ("True", "acc:max", "a finite number by metric; got True in "),
        ("{'acc': float('inf')}", "acc:max", "a finite number by metric; got {'acc': inf} in "),
        ("{3: 0.1}", "acc:max", "a finite number by metric; got {3: 0.1} in "),
        (
            "0.1",
            "acc:max,rmse:min",
            "is by metric, here acc or rmse; got one number. Write e.g. BASELINE = {'acc': 0.1}",
        ),
        ("{'acccc': 0.1}", "acc:max", "is by metric, here acc; got 'acccc'. Write e.g. BASELINE = {'acc': 0.1}"),
    ],
)
def test_a_spaces_is_checked_too(own: Path, value: str, objective: str, said: str) -> None:
    own.write_text(f"{OWN}\nBASELINE = {value}\n")
    with pytest.raises(ConfigError) as refused:
        plan(objective=objective)
    assert str(refused.value).startswith("BASELINE of ") and said in str(refused.value)
    assert "\n" not in str(refused.value)
