"""Optuna's samplers learn from trials that diverged. The study keeps the truth."""

import math
import statistics
from pathlib import Path

import pytest
from optuna.distributions import FloatDistribution
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState, create_trial

from bigbatch.search_spaces.trial import SpaceTrial
from bigbatch.tune.proposers.shown_trials import with_bad_ends
from bigbatch.tune.runs.knowledge import Curve, KnownStudy
from bigbatch.tune.runs.objective import Objective, TimeToTarget
from bigbatch.tune.runs.run import CONTINUES_ATTR, DIVERGED_ATTR, PAUSED_ATTR, REFUSED_ATTR, has_diverged
from helpers import conducted
from helpers.conducted import curve_search, in_memory, same_after_kills, summary
from helpers.simulated_search import Params, late_share, own_search

RATES = {"lr": FloatDistribution(1e-4, 1.0, log=True), "decay": FloatDistribution(1e-6, 1e-2, log=True)}
UP, DOWN = StudyDirection.MAXIMIZE, StudyDirection.MINIMIZE
TOP1 = Objective(worst=0.1)
OWN = Objective("val_f1", "maximize", math.nan)
TARGET = TimeToTarget(reach=TOP1, target=0.55)


def space(trial: SpaceTrial) -> None:
    for name, found in RATES.items():
        trial.suggest_float(name, found.low, found.high, log=found.log)


def diverges_above(params: Params, epoch: int) -> dict[str, object]:
    """Half of the range diverges; the best rates are a fifth of a power of ten below."""
    away = math.log10(params["lr"]) + 2.7
    value = math.nan if params["lr"] > 1e-2 else max(0.1, 0.6 - 0.06 * away**2) * epoch / 4
    return {"val_top1": value, "metrics": {"val_f1": value}, "train_s": 100.0 + 10 * away**2}


SEVERAL = (TOP1, Objective("epoch_s", "minimize"))


@pytest.mark.parametrize(
    ("stopping", "objectives"),
    [("asha", (TOP1,)), ("none", SEVERAL), ("none", (OWN,)), ("asha", (TARGET,))],
)
def test_fewer_trials_diverge_than_of_a_random_search(tmp_path, stopping, objectives):
    found = [_searched(tmp_path / f"{s}", "tpe", stopping, s, objectives, 40) for s in range(2)]
    shares = [late_share(trials, 20, has_diverged) for trials in found]
    assert statistics.mean(shares) < 0.35, "of random ones half do, and of samplers that pass over them 80 to 100 %"


def _searched(
    folder: Path, strategy: str, stopping: str, seed: int, objectives: tuple[Objective, ...], trials: int
) -> list[FrozenTrial]:
    search = own_search(
        folder, RATES, space, diverges_above, strategy=strategy, stopping=stopping, trials=trials, seed=seed,
        objectives=objectives,
    )  # fmt: skip
    found = search.run().trials
    lost = [t for t in found if t.params["lr"] > 1e-2]
    assert lost and all(has_diverged(t) and not t.values for t in lost), "the study keeps its truth"
    return found


def made(number: int, state: TrialState, **more: object) -> FrozenTrial:
    found = create_trial(state=state, params={"lr": 0.1}, distributions={"lr": RATES["lr"]}, **more)  # type: ignore[arg-type]
    found.number = number
    return found


def diverged(number: int, **attrs: object) -> FrozenTrial:
    return made(number, TrialState.FAIL, user_attrs={DIVERGED_ATTR: True, **attrs})


def test_bad_ends_come_last_and_are_no_outliers():
    best, middle = made(0, TrialState.COMPLETE, value=0.9), made(1, TrialState.COMPLETE, value=0.4)
    stopped = made(2, TrialState.PRUNED, intermediate_values={1: 0.2})
    trials = [best, middle, stopped, diverged(3)]
    shown = with_bad_ends(trials, [UP])
    assert shown[:3] == trials[:3] and shown[3].state == TrialState.PRUNED and not shown[3].intermediate_values
    assert trials[3].state == TrialState.FAIL, "the given trials are not changed"
    two = [made(n, TrialState.COMPLETE, values=v) for n, v in enumerate(([0.9, 5.0], [0.4, 2.0]))]
    two.append(diverged(2))
    assert with_bad_ends(two, [UP, DOWN])[2].values == [0.4, 5.0]


def test_bad_ends_alone_are_not_shown_and_other_failures_never():
    assert with_bad_ends([diverged(0), diverged(1)], [UP])[0].state == TrialState.FAIL
    crashed = made(1, TrialState.FAIL)
    assert with_bad_ends([made(0, TrialState.COMPLETE, value=0.5), crashed], [UP])[1] is crashed


def test_a_paused_trial_whose_continuation_diverged_speaks_for_nothing():
    paused = made(0, TrialState.PRUNED, intermediate_values={1: 0.9}, user_attrs={PAUSED_ATTR: 1})
    trials = [paused, diverged(1, **{CONTINUES_ATTR: 0}), made(2, TrialState.COMPLETE, value=0.3)]
    assert [t.number for t in with_bad_ends(trials, [UP])] == [1, 2]


def test_what_was_refused_is_a_bad_end_if_all_its_parameters_were_drawn():
    refused = made(1, TrialState.FAIL, user_attrs={REFUSED_ATTR: True})
    partly = create_trial(state=TrialState.FAIL, user_attrs={REFUSED_ATTR: True})
    partly.number = 2
    found = with_bad_ends([made(0, TrialState.COMPLETE, value=0.3), refused, partly], [UP])
    assert [t.state for t in found] == [TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL]


def test_a_search_with_knowledge_makes_the_same_decisions_after_kills(tmp_path: Path):
    first = curve_search("random", "none", in_memory(tmp_path / "first")).run()
    known = [
        Curve(i, {**t.params, "lr_multiplier": t.params["lr_multiplier"] * 0.99**k}, dict(t.intermediate_values),
                   conducted.EPOCHS, group=t.params["global_batch_size"])
        for k in range(3) for i, t in enumerate(first.trials) if len(t.intermediate_values) == conducted.EPOCHS
    ]  # fmt: skip
    knowledge = (KnownStudy("first", tuple(known)),)
    without = curve_search("curves", "look", in_memory(tmp_path / "without")).run()
    assert summary(same_after_kills("curves", "look", in_memory, tmp_path, knowledge)) != summary(without.trials)
