"""The figures of a report: what they compute, and that plotly takes each of them."""

import math
import random
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from optuna.trial import FrozenTrial, TrialState

from bigbatch.tune.report.figure import (
    BLUE,
    GREY,
    MOST_POINTS,
    ORANGE,
    PURPLE,
    RED,
    TEAL,
    fewer_trials,
    plain,
    plotly_figure,
    plotly_text,
)
from bigbatch.tune.report.figures import all_figures, frontier, parameter_importance
from bigbatch.tune.report.markup import FigureBook, joined
from bigbatch.tune.report.rate_figures import fitted_law, rate_figures
from bigbatch.tune.report.recorded_study import RecordedStudy, open_recorded
from bigbatch.tune.report.sections import OUTSIDE, asked_part, hours_by_outcome
from bigbatch.tune.storage.summary import StudySummary
from helpers.answered_studies import StudySpec, run, write_study
from helpers.invented_studies import invented_study

EXPECTED = set(
    "frontier history-over-hours learning-curves parameter-importance rate-by-batch-lars rate-by-batch-lamb "
    "rate-by-batch-sgd".split()
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return invented_study(tmp_path_factory.mktemp("runs") / "kept", 90)


def trial_of(
    number: int, value: float | None, config: dict[str, Any], params: dict[str, Any] | None = None, **more: Any
) -> FrozenTrial:
    began = datetime(2026, 11, 1) + timedelta(seconds=more.pop("start", 0.0))
    kinds: dict[str, BaseDistribution] = {
        name: CategoricalDistribution(["a", "b"]) if isinstance(value, str) else FloatDistribution(0, 1)
        for name, value in (params or {}).items()
    }
    return FrozenTrial(
        number=number, trial_id=number, state=TrialState.FAIL if value is None else TrialState.COMPLETE, value=value,
        datetime_start=began, datetime_complete=began + timedelta(seconds=more.pop("length", 1.0)),
        params=params or {}, distributions=kinds, user_attrs={"config": config, **more}, system_attrs={},
        intermediate_values={},
    )  # fmt: skip


def points_of(trials: list[FrozenTrial], **about: object) -> RecordedStudy:
    return RecordedStudy(StudySummary(Path("s"), "done", description=dict(about)), tuple(trials))


def test_plotly_takes_every_figure_of_a_whole_study(folder: Path) -> None:
    pytest.importorskip("plotly")
    made = {one.name: plotly_figure(one) for one in all_figures(open_recorded(folder)) if one.data}
    assert set(made) == EXPECTED
    for name, figure in made.items():
        assert any(len(trace.x or ()) for trace in figure.data), name


def test_words_stand_in_the_frontier_in_their_own_order(tmp_path: Path) -> None:
    words = (True, "1.0", "poly")
    runs = [run("poly", 0.95), run("1.0", 0.96), run(True, 0.9)]
    study = open_recorded(write_study(tmp_path / "words", StudySpec(runs, {"val_size": 2000}, words, "schedule.name")))
    assert "<dt>each name</dt><dd>True, 1.0, poly</dd>" in str(joined(asked_part(study, FigureBook())))
    figure = frontier(study)
    assert figure.layout["xaxis"]["type"] == "category"  # type: ignore[index]  # else plotly takes 1.0 for a number
    assert figure.layout["xaxis"]["categoryarray"] == ["True", "1.0", "poly"]  # type: ignore[index]
    assert "The ring is the last name" in figure.caption


def test_the_fitted_law_is_found_again() -> None:
    """Rates that follow 0.03 · B^0.7 exactly, at several momenta and trust coefficients."""
    trials = []
    for i, batch in enumerate((128, 256, 512, 1024)):
        momentum, trust = 0.9 - 0.05 * i, 0.001 * (1 + i)
        rate = 0.03 * batch**0.7 * (1 - momentum) / 0.1 / (trust / 0.001)
        optimizer = {"name": "lars", "peak_lr": rate, "momentum": momentum, "trust_coefficient": trust}
        trials.append(trial_of(i, 0.9, {"epochs": 2, "optimizer": optimizer, "batch": {"global_size": batch}}))
        worse = {**optimizer, "peak_lr": 30 * rate}
        trials += [
            trial_of(0, 0.5, {"epochs": 2, "optimizer": worse, "batch": {"global_size": batch}}) for _ in range(2)
        ]
    law = fitted_law(points_of(trials), "lars")
    assert law is not None and law.batches == 4
    assert law.exponent == pytest.approx(0.7, abs=1e-9) and law.factor == pytest.approx(0.03, rel=1e-9)
    assert law.error == pytest.approx(0.0, abs=1e-6)
    assert fitted_law(points_of(trials), "sgd") is None


@pytest.mark.parametrize("batches", [(128,), (128, 256)])
def test_a_published_law_far_from_the_study_is_seen(batches: tuple[int, ...]) -> None:
    optimizer = {"name": "lars", "peak_lr": 1e-3, "momentum": 0.9, "trust_coefficient": 0.001}
    trials = [
        trial_of(i, 0.9, {"epochs": 2, "optimizer": optimizer, "batch": {"global_size": batch}})
        for i, batch in enumerate(batches)
    ]
    (figure,) = rate_figures(points_of(trials))
    layout: Any = figure.layout
    law: Any = figure.data[-1]
    low, high = layout["yaxis"]["range"]
    assert law["name"].startswith("MLPerf") and all(low < math.log10(rate) < high for rate in law["y"])
    assert ("markers" in law["mode"]) == (len(batches) == 1)  # a line through one point is nothing


def test_the_parameter_that_decides_is_the_most_important_one() -> None:
    rng = random.Random(0)
    params: list[dict[str, Any]] = [
        {"decides": rng.random(), "idle": rng.random(), "choice": rng.choice("ab")} for _ in range(80)
    ]
    trials = [trial_of(i, 1 - abs(p["decides"] - 0.5), {"optimizer": {"name": "sgd"}}, p) for i, p in enumerate(params)]
    figure = parameter_importance(points_of(trials))
    shares = dict(zip(figure.data[0]["y"], figure.data[0]["x"], strict=True))  # type: ignore[call-overload]
    assert shares["decides"] > 70 and sum(shares.values()) == pytest.approx(100)
    few = points_of(trials[:5])
    assert "there are 5" in parameter_importance(few).missing


def test_the_hours_add_up_to_what_the_ledger_holds(folder: Path) -> None:
    study = open_recorded(folder)
    found = hours_by_outcome(study)
    assert sum(found.values()) == pytest.approx(study.summary.held_s / 3600)
    assert found[OUTSIDE] == pytest.approx(0.15 / 1.15 * study.summary.held_s / 3600, rel=1e-6)
    assert {"finished", "stopped early", "paused", "diverged", "failed"} <= set(found)


def test_a_figure_of_many_trials_keeps_the_best(folder: Path) -> None:
    study = open_recorded(folder)
    few = fewer_trials(study, study.searched, 20)
    assert few == list(study.best_first[:20])
    assert len(fewer_trials(study, study.searched)) == len(study.searched) and MOST_POINTS > 90


def test_a_study_that_minimises(tmp_path: Path) -> None:
    """Its best is the smallest, and its values are no percentages."""
    study = optuna.create_study(direction="minimize")
    for i in range(12):
        trial = study.ask()
        trial.suggest_float("rate", 0.1, 1.0)
        trial.set_user_attr(
            "config", {"epochs": 1, "optimizer": {"name": "sgd", "peak_lr": 0.1}, "batch": {"global_size": 64}}
        )
        trial.set_user_attr("epoch/00001", {"epoch": 1, "val_loss": 2.0 - i / 10})
        study.tell(trial, 2.0 - i / 10)
    from bigbatch.tune.runs.objective import Reported
    from bigbatch.tune.runs.objectives import read_objectives

    recorded = RecordedStudy(
        StudySummary(tmp_path, "done"), tuple(study.trials), read_objectives("x", "val_loss:min", Reported(10))
    )
    assert recorded.best_first[0].number == 11
    assert {f.name for f in all_figures(recorded) if f.data} >= {"learning-curves", "rate-by-batch-sgd"}


def test_json_for_a_page_has_no_number_that_json_lacks() -> None:
    assert plain({"a": [math.nan, math.inf, 1 / 3, True, None, "x"], 2: (1,)}) == {
        "a": [None, None, 0.333333, True, None, "x"],
        "2": [1],
    }
    assert plotly_text("<a href='x'>&") == "&lt;a href='x'&gt;&amp;"


@pytest.mark.parametrize("ground", ["#ffffff", "#1b1f24"])
def test_the_colours_stand_out_from_both_pages(ground: str) -> None:
    """Against WCAG's contrast ratio, whose formula is written out here; 3 is its bound for graphics."""

    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    for colour in (BLUE, ORANGE, TEAL, RED, PURPLE, GREY):
        low, high = sorted((luminance(colour), luminance(ground)))
        assert (high + 0.05) / (low + 0.05) >= 2.8, colour
