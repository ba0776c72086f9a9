"""Reports of searches for something else than one accuracy, or over a function of the user's."""

import html
import json
import math
import re
from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState

from bigbatch.tune.commands.report import report_main
from bigbatch.tune.commands.show import show_main
from bigbatch.tune.console.answer_words import number_text, seconds_words
from bigbatch.tune.report.page import report_page
from bigbatch.tune.report.recorded_study import RecordedStudy, open_recorded
from bigbatch.tune.runs.answer import answer_of
from bigbatch.tune.runs.objective import UNREACHED_H, Reported
from bigbatch.tune.runs.objectives import Objectives, read_objectives
from bigbatch.tune.storage.store import StudyStore
from bigbatch.tune.storage.summary import StudySummary
from helpers.invented_studies import invented_study
from helpers.lone_studies import made


def searched(objectives: Objectives, values: list[tuple[float, ...]]) -> RecordedStudy:
    """A study in which each trial finished with these values."""
    study = optuna.create_study(directions=objectives.directions)
    for i, found in enumerate(values):
        trial = study.ask()
        trial.suggest_float("rate", 0.1, 1.0)
        optimizer = {"name": "sgd", "peak_lr": 0.1 * (i + 1), "momentum": 0.9}
        trial.set_user_attr("config", {"epochs": 1, "optimizer": optimizer, "batch": {"global_size": 64 << i % 3}})
        trial.set_user_attr(
            "epoch/00001", {"epoch": 1, "val_top1": 0.5 + i / 50, "val_loss": 2 - i / 10, "train_s": 1.0}
        )
        trial.set_user_attr("gpu_hours", 0.1)
        study.tell(trial, list(found), state=TrialState.COMPLETE)
    summary = StudySummary(Path("runs/s"), "done", description={"val_size": 100, "workers": 1})
    answer = answer_of(study.trials, summary.description, objectives)
    return RecordedStudy(summary, tuple(study.trials), objectives, answer)


def seen(study: RecordedStudy) -> str:
    text = report_page(study)
    assert "could not be drawn" not in text
    text = re.sub(r"<(script|style)\b.*?</\1>", " ", text, flags=re.DOTALL)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", text))


def test_several_objectives_have_a_front() -> None:
    """Of three trials the second is beaten by the third in both; the first is dearest and best."""
    objectives = read_objectives("x", "val_top1:max,gpu_hours:min", Reported(10))
    text = seen(searched(objectives, [(0.9, 3.0), (0.7, 2.0), (0.8, 1.0)]))
    assert "The Pareto front: the trials that no other one beats" in text
    assert "objective validation top-1, higher is better objective device hours, lower is better" in text
    front = text[text.index("The Pareto front") : text.index("The configuration to copy")]
    assert "0 90.0 % 3 h" in front and "2 80.0 % 1 h" in front and "70.0 %" not in front
    assert "The best trial is 0, with 90.0 % in the first objective." in text
    ties = searched(objectives, [(0.8, 1.0), (0.9, 3.0), (0.9, 2.0)])
    assert ties.best is not None and [ties.best.number, *(run.number for run in ties.best_first)] == [2, 2, 1, 0]


def test_a_target_that_some_trials_missed() -> None:
    objectives = read_objectives("x", "val_top1=0.6", Reported(10))
    text = seen(searched(objectives, [(0.5,), (UNREACHED_H + 0.1,), (0.25,)]))
    assert "The best trial is 2, with 0.25 h in the first objective." in text and "fewer are better" in text
    assert str(UNREACHED_H) not in text and "1,000,000" not in text


@pytest.mark.parametrize("text", ["val_loss:min", "epoch_s:min", "memory_bytes:min", "images_per_s:max"])
def test_another_metric_has_its_own_units(text: str) -> None:
    objectives = read_objectives("x", text, Reported(10))
    words = seen(searched(objectives, [(2.0 + i / 7,) for i in range(12)]))
    best = 0 if text.endswith("min") else 11
    objective = objectives.first
    assert f"The best is trial {best}: {objective.metric.title} {objective.worth(2.0 + best / 7)}" in words


def test_what_is_not_finite_is_a_dash() -> None:
    assert [number_text(value) for value in (math.nan, math.inf, None)] == ["–"] * 3
    assert [seconds_words(value) for value in (math.nan, math.inf, None)] == ["–"] * 3


def test_a_part_that_edited_files_break_says_so_and_the_others_are_there(tmp_path: Path) -> None:
    folder = invented_study(tmp_path / "s", 12, objective="val_top1:max,gpu_hours:min")  # its trials have one value
    text = report_page(open_recorded(folder))
    assert "This part could not be written" in text and "The command that repeats it" in text
    assert text.count('id="answer"') == 1


LR = optuna.distributions.FloatDistribution(0.1, 1.0)
LAYER = optuna.distributions.CategoricalDistribution([None, "a/b"])


def finished_trial(number: int) -> optuna.trial.FrozenTrial:
    """The rate decides, and nothing else was measured."""
    lr = 0.1 * (number + 1)
    trainable = {"name": "/a/my.py:train", "options": {"lr": lr}}
    config = {"schema_version": 2, "epochs": 2, "seed": 0, "trainable": trainable}
    records = [{"epoch": e, "epochs": 2, "train_s": 1.0, "metrics": {"score": lr * e}} for e in (1, 2)]
    attrs = {f"epoch/{record['epoch']:05d}": record for record in records}
    layer = {"layer": None} if number == 8 else {}
    return made(
        {"lr": lr, **layer}, {"lr": LR, **dict.fromkeys(layer, LAYER)}, {1: lr, 2: 2 * lr}, config=config, **attrs
    )


@pytest.fixture
def study(tmp_path: Path) -> Path:
    facts = {"trainable": "/a/my.py:train", "objective": "score:max", "space": "my", "data": "own", "max_epochs": 2,
             "model": "my.py:train", "num_classes": 0, "train_size": 0, "trials": 9}  # fmt: skip
    store = StudyStore.create(tmp_path / "s", "s", facts, None)
    for number in range(9):
        store.study.add_trial(finished_trial(number))
    store.refresh(force=True)
    store.close()
    return tmp_path / "s"


def test_show_has_the_functions_parameters_and_says_what_to_do_with_the_best(
    study: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert show_main([str(study)]) == 0
    said = capsys.readouterr().out
    assert "trainable  /a/my.py:train" in said
    assert "The best is trial 8: score 1.8 on the examples that chose it" in said
    assert said.endswith("\n  --trials 1 --max-epochs 30 --study OTHER --set lr=0.9 layer=null\n")
    assert "bigbatch train" not in said and "images" not in said


def test_the_report_shows_the_config_to_copy_and_no_settings_of_our_own_loop(study: Path) -> None:
    assert report_main([str(study), "-o", str(study / "r.html")]) == 0
    page = (study / "r.html").read_text()
    text = page.partition("<body")[2].partition("<script")[0]
    assert html.escape(json.dumps({"lr": 0.9}, indent=2)) in text
    assert "/a/my.py:train" in text
    # The best one chose None; the others were not asked.
    assert re.findall(r'data-label="layer">(.+?)<', text) == ["None", *"–" * 8]
    for word in ("global batch", "peak learning rate", "bigbatch train", "training images"):
        assert word not in text.partition("What was asked")[0].partition("The answer")[2], word
