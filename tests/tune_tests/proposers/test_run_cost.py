"""What a run would cost: against runs of known cost, and what `curves` proposes where costs differ."""

from __future__ import annotations

import numpy as np
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial

from bigbatch.tune.models.curve_history import Curve
from bigbatch.tune.models.protocol import Dimension, SearchFacts
from bigbatch.tune.proposers.curves import USUAL, CurvesSampler, surcharge
from bigbatch.tune.runs.objective import Objective
from bigbatch.tune.runs.run import EPOCH_ATTR, WORKERS_ATTR
from helpers.as_they_are import curves_of
from helpers.lone_studies import new_study

KINDS = CategoricalDistribution(("quick", "slow"))
DIMENSIONS = (Dimension("x", FloatDistribution(0, 1)), Dimension("kind", KINDS))
FACTS = SearchFacts(DIMENSIONS, trials=60, max_epochs=10, seed=3, objective=Objective("v", worst=0.0))


def curve(number: int, epoch_s: float | None, epochs: int = 10) -> Curve:
    return Curve(number, {}, {epochs: 0.5}, epochs, epoch_s=epoch_s)


def test_what_costs_six_times_the_median_is_four_times_more_than_usual() -> None:
    """Four runs of 10 s an epoch at x = 0, two of 60 s at x = 1; the median is 10 s."""
    at = np.array([[0.0], [0.0], [0.0], [0.0], [1.0], [1.0]])
    curves = [curve(i, 10.0) for i in range(4)] + [curve(i, 60.0) for i in (4, 5)]
    cheap, expensive = surcharge(curves, at, range(6), np.array([[0.0], [1.0]]))
    assert cheap == 0
    assert expensive == pytest.approx(np.log(6 / USUAL), abs=0.1)
    longer = [curve(i, 10.0) for i in range(4)] + [curve(i, 10.0, epochs=60) for i in (4, 5)]
    assert surcharge(longer, at, range(6), np.array([[1.0]]))[0] == pytest.approx(expensive)


def test_small_differences_unknown_costs_and_too_few_peers_say_nothing() -> None:
    at, asked = np.array([[0.0], [0.0], [1.0], [1.0]]), np.array([[0.0], [1.0]])
    slightly = [curve(0, 10.0), curve(1, 10.0), curve(2, 13.0), curve(3, 13.0)]
    assert not surcharge(slightly, at, range(4), asked).any()
    unknown = [curve(0, 10.0), curve(1, 10.0), curve(2, None), curve(3, None)]
    assert not surcharge(unknown, at, range(4), asked).any()
    far = [curve(0, 10.0), curve(1, 10.0), curve(2, 10.0), curve(3, 90.0)]
    assert surcharge(far, at, range(4), asked)[1] > 0
    assert not surcharge(far, at, [0, 1], asked).any(), "two peers"
    assert not surcharge(far, at, [1, 2, 3], np.empty((0, 1))).any()


def run(x: float, kind: str, epoch_s: float, more: float = 0.0) -> FrozenTrial:
    """A finished run: it comes further at a larger x, and by ``more``."""
    values = {epoch: (0.3 + 0.3 * x) * epoch / 10 + more for epoch in range(1, 11)}
    records = {f"{EPOCH_ATTR}{e:05d}": {"epoch": e, "train_s": epoch_s} for e in values}
    return create_trial(
        state=TrialState.COMPLETE,
        value=values[10],
        params={"x": x, "kind": kind},
        distributions={"x": FloatDistribution(0, 1), "kind": KINDS},
        intermediate_values=values,
        user_attrs={"config": {"epochs": 10, "schedule": {"warmup_epochs": 0.0}}, **records},
    )


def slow_among_proposed(slow_s: float, more: float) -> int:
    """How many of 40 proposals are slow, after 24 runs of which 8 are slow and come further by ``more``."""
    study = new_study()
    for i in range(24):
        x = (i % 8) / 8
        study.add_trial(run(x, "slow", slow_s, more) if i % 3 == 0 else run(x, "quick", 10.0))
    blank = create_trial(state=TrialState.RUNNING)
    return sum(CurvesSampler(FACTS, n).propose(study, blank, {})["kind"] == "slow" for n in range(24, 64))


def test_what_costs_eight_times_as_much_must_promise_much_more() -> None:
    assert slow_among_proposed(10.0, more=0.01) > 20
    assert slow_among_proposed(80.0, more=0.01) < 10
    assert slow_among_proposed(80.0, more=0.1) > 20


def test_the_time_of_an_epoch_is_the_median_of_those_of_the_run() -> None:
    """The first epoch also starts processes. A run without records has no cost."""
    study = new_study()
    study.add_trial(run(0.5, "quick", 10.0))
    (first,) = study.get_trials()
    first.user_attrs[f"{EPOCH_ATTR}00001"]["train_s"] = 300.0
    (one,) = curves_of([first], FACTS)
    assert one.epoch_s == pytest.approx(10.0) and one.run_s == pytest.approx(100.0)
    first.user_attrs[WORKERS_ATTR] = 4
    assert curves_of([first], FACTS)[0].epoch_s == pytest.approx(40.0), "device seconds"
    first.user_attrs[f"{EPOCH_ATTR}00002"]["train_s"] = float("inf")
    assert curves_of([first], FACTS)[0].epoch_s == pytest.approx(40.0), "an error of the record"
    early = {key: value for key, value in first.user_attrs.items() if key <= f"{EPOCH_ATTR}00001"}
    first.user_attrs, known = early, first.user_attrs
    assert curves_of([first], FACTS)[0].run_s is None, "its first epoch alone, in which processes start"
    first.user_attrs = known
    first.user_attrs = {key: value for key, value in first.user_attrs.items() if not key.startswith(EPOCH_ATTR)}
    assert curves_of([first], FACTS)[0].run_s is None
