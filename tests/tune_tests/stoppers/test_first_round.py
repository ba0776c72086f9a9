"""The first round of ``look``: what is looked at before anything goes on, which trials go on then, and when; and where
``curves`` begins."""

from dataclasses import replace

import numpy as np
import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState
from replay.curves import CurveTable, RecordedCurve
from replay.search import replay_named

from bigbatch.search_spaces.priors import LogNormal
from bigbatch.tune.models.protocol import Dimension, SearchFacts, Strategy, TrialDecision
from bigbatch.tune.models.unit_space import SobolSampler
from bigbatch.tune.runs.objective import Objective
from bigbatch.tune.runs.run import CONTINUES_ATTR, GIVEN_ATTR, PAUSED_ATTR
from bigbatch.tune.strategies import make_strategy
from helpers.lone_studies import made, new_study, next_trial

X = FloatDistribution(0.0, 1.0)
FACTS = SearchFacts((Dimension("x", X),), 200, 20, objective=Objective("v", worst=0.0), open_ended=True)
WORDS = CategoricalDistribution(("sgd", "lars", "lamb"))
PRIOR = LogNormal(3.0, 2.0)
SPACE = (
    Dimension("words", WORDS),
    Dimension("rate", FloatDistribution(0.01, 100.0, log=True), prior=PRIOR),
    Dimension("decay", FloatDistribution(1e-6, 1e-2, log=True)),
    Dimension("steps", IntDistribution(1, 9)),
    Dimension("batch", CategoricalDistribution((32, 64, 128))),
    Dimension("beta", FloatDistribution(0.5, 0.7), {"words": ("lamb",)}),
)


def looked_at(study: optuna.Study, strategy: Strategy, early: float, *, may_go_on: bool = False) -> int:
    """A new trial comes to its look with this value, and pauses. Or it may go on to its end."""
    trial = next_trial(study, strategy)
    trial.suggest_float("x", 0, 1)
    for epoch, value in enumerate((early / 2, early), start=1):
        trial.report(value, epoch)
    decision = strategy.look(study, study.get_trials(deepcopy=False)[trial.number], 2)
    if may_go_on and decision == TrialDecision.GO_ON:
        study.tell(trial, early)
        return trial.number
    assert decision == TrialDecision.PAUSE
    trial.set_user_attr(PAUSED_ATTR, 2)
    study.tell(trial, state=TrialState.PRUNED)
    return trial.number


def continued(study: optuna.Study, strategy: Strategy, **limits: object) -> int | None:
    """The number of the paused trial that the next slot continues; it runs from then on."""
    paused = strategy.to_continue(study, **limits)  # type: ignore[arg-type]
    if paused is None:
        return None
    study.enqueue_trial(paused.params, user_attrs={CONTINUES_ATTR: paused.number})
    study.ask()
    return paused.number


@pytest.mark.parametrize(("slots", "looks"), [(1, 8), (4, 8), (8, 16)])
@pytest.mark.parametrize("open_ended", [True, False])
def test_two_trials_for_each_slot_and_at_least_eight_are_looked_at_then_the_best_of_them_go_on(
    slots: int, looks: int, open_ended: bool
) -> None:
    strategy = make_strategy("random", "look", replace(FACTS, slots=slots, open_ended=open_ended))
    study, early = new_study(), {}
    for place in range(looks):
        assert continued(study, strategy) is None, f"after {place} looks"
        value = 0.1 + 0.5 * ((place * 0.618) % 1)
        early[looked_at(study, strategy, value)] = value
    order = [continued(study, strategy) for _ in range(slots)]
    assert order == sorted(early, key=lambda number: -early[number])[:slots], "as the values at the look say"
    after = []
    for _ in range(8):
        if (number := continued(study, strategy)) is None:
            looked_at(study, strategy, 0.01, may_go_on=True)
        after.append(number)
    assert sum(number is not None for number in after) == 2, "from then on every fourth slot"


def test_values_at_the_look_decide_until_a_run_has_ended_and_the_model_from_then_on() -> None:
    """The runs that ended say that a high value at the look means a bad end."""
    strategy, study = make_strategy("random", "look", FACTS), new_study()

    def add(x: float, values: dict[int, float], state: TrialState, **attrs: int) -> None:
        study.add_trial(made({"x": x}, {"x": X}, values, state, **attrs))

    for place in range(10):
        add(0.1 * place, {1: 0.05 + 0.05 * place, 2: 0.1 + 0.05 * place}, TrialState.PRUNED, **{PAUSED_ATTR: 2})
    first = strategy.to_continue(study)
    assert first is not None and first.number == 9
    for place in (9, 7, 5, 3):
        x = 0.1 * place
        values = {epoch: 0.1 + 0.05 * place + (0.8 - 0.1 * place) * epoch / 20 for epoch in range(1, 21)}
        add(x, values, TrialState.COMPLETE, **{CONTINUES_ATTR: place})
    assert study.trials[10].values[0] < study.trials[13].values[0]
    while len(study.trials) % 4 != 3:
        looked_at(study, strategy, 0.01, may_go_on=True)
    then = strategy.to_continue(study)
    assert then is not None and then.number not in (8, 6), "the model: the higher at the look, the worse at the end"


@pytest.mark.parametrize(
    ("lasts", "goes_on"), [(0.9, True), (1.2, True), (1.3, False), (1.99, False), (2.0, True), (9.0, True)]
)
def test_slots_look_at_more_trials_first_if_after_a_run_they_could_do_nothing(lasts: float, goes_on: bool) -> None:
    """A budget that lasts for one run and a half: half a run is worth nothing afterwards, and five looks before it."""
    strategy, study = make_strategy("random", "look", replace(FACTS, slots=4)), new_study()
    for place in range(8):
        looked_at(study, strategy, 0.1 * place)
    found = continued(study, strategy, lasts=lambda paused, times: times <= lasts)
    assert found == (7 if goes_on else None)
    if not goes_on:
        looked_at(study, strategy, 0.9)  # one more than the first round has is not let go either


def hour_long_runs(jitter: float = 0.0) -> CurveTable:
    """200 runs of 20 epochs and about an hour each."""
    rng = np.random.default_rng(7)
    rows = []
    for end, slower in zip(rng.uniform(0.3, 0.9, 200), 1 + jitter * rng.normal(size=200), strict=True):
        values = tuple(float(end * epoch / (epoch + 2)) for epoch in range(1, 21))
        seconds = tuple(180.0 * float(slower) * epoch for epoch in range(1, 21))
        rows.append(RecordedCurve({"x": float(end)}, values, seconds, 20))
    return CurveTable("an hour", tuple(rows))


@pytest.mark.parametrize(("slots", "runs"), [(1, 1.15), (2, 1.3), (8, 1.6), (1, 1.9), (2, 2.2)])
def test_a_small_budget_ends_with_a_whole_run_though_epochs_are_not_all_as_long(slots: int, runs: float) -> None:
    found = replay_named(hour_long_runs(jitter=0.03), "random", "look", slots, 0, slots * runs, resume_s=30.0)
    assert sum(one.finished for one in found) >= max(1, slots // 2)


# Where curves begins


def proposal(study: optuna.Study, facts: SearchFacts, number: int) -> dict[str, object]:
    strategy = make_strategy("curves", "look", facts)
    trial = next_trial(study, strategy)
    assert trial.number == number
    for dimension in facts.dimensions:
        if dimension.is_active(trial.params):
            trial._suggest(dimension.name, dimension.distribution)
    return trial.params


def test_what_was_given_is_before_the_middle_and_what_is_fixed_stays() -> None:
    study, facts = new_study(), replace(FACTS, dimensions=SPACE)
    for place in range(2):
        study.enqueue_trial({"words": "sgd", "rate": 1.0}, user_attrs={GIVEN_ATTR: {}})
        assert proposal(study, facts, place)["rate"] == 1.0
    study.enqueue_trial({"steps": 9})
    found = proposal(study, facts, 2)
    assert found["decay"] == pytest.approx(1e-4) and found["batch"] == 64 and found["steps"] == 9
    assert proposal(study, facts, 3)["decay"] != pytest.approx(1e-4)


@pytest.mark.parametrize(("slots", "ended", "quasi_random"), [(8, False, 16), (8, True, 10), (20, False, 32)])
def test_proposals_are_quasi_random_until_a_run_has_ended_but_two_for_each_slot_at_most(
    slots: int, ended: bool, quasi_random: int
) -> None:
    facts, study = replace(FACTS, slots=slots, seed=5), new_study()
    points = []
    for number in range(34):
        params = proposal(study, facts, number)
        trial = optuna.trial.Trial(study, study.trials[number]._trial_id)
        for epoch in range(1, 21 if ended and number == 3 else 3):
            trial.report(0.2 + 0.01 * epoch + 0.2 * params["x"], epoch)  # type: ignore[operator]
        if not (ended and number == 3):
            trial.set_user_attr(PAUSED_ATTR, 2)
            study.tell(trial, state=TrialState.PRUNED)
        else:
            study.tell(trial, 0.5)
        sobol = SobolSampler(["x"], 5).sample_independent(study, study.trials[number], "x", X)
        points.append(params["x"] == sobol)
    assert points == [0 < number < quasi_random for number in range(34)]
