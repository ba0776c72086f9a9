"""What the curve model says of whole studies: in any unit, with runs that learn nothing, and how sure it is of ends."""

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import optuna
import pytest
from invented_curves import invented_table
from optuna.distributions import FloatDistribution
from optuna.trial import TrialState
from replay.curves import CurveTable
from replay.search import replay_named

from bigbatch.tune.models.curve_data import CurveEncoder, Learned
from bigbatch.tune.models.curve_model import CurvePoints
from bigbatch.tune.models.protocol import Dimension, SearchFacts
from bigbatch.tune.runs.knowledge import Curve, KnownStudy
from bigbatch.tune.runs.objective import Objective
from bigbatch.tune.runs.run import DIVERGED_ATTR
from helpers.lone_studies import made, new_study

X = FloatDistribution(0.0, 1.0)
EPOCHS = 16
FACTS = SearchFacts((Dimension("x", X),), 200, EPOCHS, objective=Objective("v", worst=0.1))


def in_unit(table: CurveTable, unit: float, direction: str) -> CurveTable:
    """The table with its values in another unit; as a loss, what is missing to one."""
    loss = direction == "minimize"
    curves = tuple(replace(c, values=tuple(unit * (1 - v if loss else v) for v in c.values)) for c in table.curves)
    return replace(table, curves=curves, objective=Objective("own", "minimize" if loss else "maximize"))


@pytest.mark.parametrize(("direction", "unit"), [("minimize", 2.0**-30), ("maximize", 2.0**20)])
def test_a_search_does_not_depend_on_the_unit_of_its_metric(direction: str, unit: float) -> None:
    """Powers of two, which change no digit of a value; they are about 1e-9 and 1e6."""
    table = invented_table("wide", 7, 60)

    def trials(unit: float) -> list[tuple[float, int, float | None]]:
        epochs = replay_named(in_unit(table, unit, direction), strategy="curves", stopping="look", slots=2, trials=20)
        return [(e.hours, e.trial, None if e.value is None else e.value / unit) for e in epochs]

    assert trials(unit) == trials(1.0)


def add(study: optuna.Study, x: float, values: Mapping[int, float], state: TrialState = TrialState.PRUNED) -> None:
    diverged = {DIVERGED_ATTR: True} if state == TrialState.FAIL else {}
    study.add_trial(made({"x": x}, {"x": X}, values, state, config={"epochs": EPOCHS}, **diverged))


def whole(end: float) -> dict[int, float]:
    """A run that comes from chance, 0.1, to ``end``."""
    return {epoch: 0.1 + (end - 0.1) * (1 - math.exp(-epoch / 3)) for epoch in range(1, EPOCHS + 1)}


def learned_of(study: optuna.Study, facts: SearchFacts = FACTS) -> Learned:
    return CurveEncoder(facts).learn(study)


def study_with(lost: str, epochs: int = EPOCHS) -> optuna.Study:
    """Runs that end the better the nearer x is to 0.3; those above 0.7 are lost in some way."""
    study = new_study()
    for x in np.linspace(0.02, 0.98, 17).tolist():
        if x < 0.7:
            add(study, x, whole(0.9 - 0.4 * (x - 0.3) ** 2), TrialState.COMPLETE)
        elif lost == "diverged":
            add(study, x, {1: 0.1}, TrialState.FAIL)
        elif lost == "stuck":
            add(study, x, {e: 0.1 + 0.004 * math.sin(7 * e * x) for e in range(1, epochs + 1)})
        else:  # it learned, and then lost it all
            add(study, x, {e: v if e < 6 else 0.1 for e, v in whole(0.8).items() if e <= epochs})
    return study


@pytest.mark.parametrize(("lost", "epochs"), [("stuck", EPOCHS), ("stuck", EPOCHS // 2), ("fallen back", EPOCHS)])
def test_runs_that_have_learnt_nothing_say_as_much_as_runs_that_diverged(lost: str, epochs: int) -> None:
    mine, theirs = learned_of(study_with(lost, epochs)), learned_of(study_with("diverged"))
    at = CurvePoints(np.linspace(0, 1, 21)[:, None], np.ones(21), np.full(21, -1))
    assert np.array(mine.model.predict(at)) == pytest.approx(np.array(theirs.model.predict(at)))
    assert mine.standardised(0.8) == pytest.approx(theirs.standardised(0.8))


def test_a_run_that_may_still_begin_to_learn_and_one_whose_chance_level_is_not_known_are_curves_like_others() -> None:
    early, unknown = study_with("stuck", EPOCHS // 2 - 1), replace(FACTS, objective=Objective("v", worst=math.nan))
    for learned in (learned_of(early), learned_of(study_with("stuck"), unknown)):
        assert not any(curve.diverged for curve in learned.curves)
    assert sum(curve.diverged for curve in learned_of(study_with("stuck")).curves) == 5


def test_other_studies_runs_that_have_learnt_nothing_say_as_much_as_their_diverged_ones() -> None:
    def predicted(diverged: bool) -> np.ndarray:
        trials = [Curve(i, {"x": i / 16}, whole(0.9 - 0.02 * i), EPOCHS) for i in range(12)]
        stuck = {} if diverged else dict.fromkeys(range(1, EPOCHS + 1), 0.1)
        trials += [Curve(i, {"x": i / 16}, stuck, EPOCHS, diverged) for i in range(12, 17)]
        model = learned_of(new_study(), replace(FACTS, knowledge=(KnownStudy("old", tuple(trials)),))).model
        return np.array(model.predict(CurvePoints(np.linspace(0, 1, 9)[:, None], np.ones(9), np.full(9, -1))))

    assert predicted(False) == pytest.approx(predicted(True))
