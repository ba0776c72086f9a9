"""What samplers see of a study of thousands."""

from __future__ import annotations

import optuna
import pytest
from optuna.distributions import FloatDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial

from bigbatch.tune.models.study_view import MOST_TRIALS, BestAndRecent
from bigbatch.tune.proposers.samplers import PerTrialSampler, sampler_factory


def trials(count: int, running: int) -> list[FrozenTrial]:
    """Finished trials whose value is 1/7 of their number modulo 7; number ``running`` still runs."""
    study = optuna.create_study(direction="maximize")
    for number in range(count):
        if number == running:
            study.add_trial(create_trial(state=TrialState.RUNNING, params={}, distributions={}))
        else:
            study.add_trial(create_trial(value=number % 7 / 7))
    return study.get_trials(deepcopy=False)


def test_a_small_study_is_seen_whole() -> None:
    small = trials(MOST_TRIALS, running=3)
    assert BestAndRecent(maximize=True).among(small) == small


def test_of_a_large_one_the_best_the_recent_and_the_running_ones_are_seen_in_order() -> None:
    many = trials(4 * MOST_TRIALS, running=3)
    for maximize, value in ((True, 6 / 7), (False, 0.0)):
        seen = BestAndRecent(maximize=maximize).among(many)
        numbers = [trial.number for trial in seen]
        assert numbers == sorted(set(numbers)) and len(seen) == MOST_TRIALS + 1
        assert seen[-MOST_TRIALS // 2 :] == many[-MOST_TRIALS // 2 :]
        earlier = seen[: -MOST_TRIALS // 2]
        assert 3 in numbers and {t.value for t in earlier if t.state == TrialState.COMPLETE} == {value}


@pytest.mark.parametrize("name", ["tpe", "gp"])
def test_a_sampler_learns_from_the_part_that_is_shown(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    study, space = optuna.create_study(direction="maximize"), FloatDistribution(0.0, 1.0)
    for at in range(30):
        value = 1 - abs(at / 30 - 0.7)
        study.add_trial(create_trial(value=value, params={"x": at / 30}, distributions={"x": space}))
    counts: list[int] = []
    monkeypatch.setattr(BestAndRecent, "among", lambda self, trials: counts.append(len(trials)) or list(trials)[-12:])
    history = BestAndRecent(maximize=True)
    study.sampler = PerTrialSampler(sampler_factory(name, 0, 30, ("x",), history=history))
    asked = study.ask()
    assert 0.0 <= asked.suggest_float("x", 0.0, 1.0) <= 1.0
    assert counts and set(counts) <= {30, 31}, "what is shown is chosen among all trials"
