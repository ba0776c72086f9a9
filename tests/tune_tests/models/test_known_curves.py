"""What other studies say: to ``curves``, worth it if they agree and cheap if not; and in words."""

import numpy as np
import optuna
import pytest
from optuna.distributions import FloatDistribution
from scipy.stats import spearmanr
from warm_start import measure

from bigbatch.tune.models.curve_data import CurveEncoder
from bigbatch.tune.models.curve_model import MAX_POINTS
from bigbatch.tune.models.known_curves import KNOWN_POINTS, known_curves, rank_correlation
from bigbatch.tune.models.protocol import Dimension, SearchFacts
from bigbatch.tune.models.unit_space import UnitSpace
from bigbatch.tune.proposers.curves import CurvesSampler
from bigbatch.tune.runs.knowledge import Curve, KnownStudy
from bigbatch.tune.runs.objective import Objective

RATE = Dimension("lr", FloatDistribution(0.001, 1.0, log=True))


def hill(trials: int, at: float = 0.1, group: object = None, level: float = 0.9) -> list[Curve]:
    """Curves of eight epochs whose ends are highest at this rate."""
    rates = np.geomspace(0.001, 1.0, trials).tolist()
    ends = [level - 0.1 * np.log10(rate / at) ** 2 for rate in rates]
    return [
        Curve(i, {"lr": rate}, {2: end - 0.2, 8: end}, 8, group=group)
        for i, (rate, end) in enumerate(zip(rates, ends, strict=True))
    ]


@pytest.fixture(scope="module")
def replayed() -> dict[str, dict[str, np.ndarray]]:
    """Family → arm → regrets (seeds, 4) of twenty searches each, by the benchmark. With six, one bad search decides."""
    found = {family: measure(family, range(124, 144)) for family in ("wide", "projected")}
    return {family: {arm: np.array(each) for arm, each in arms.items()} for family, arms in found.items()}


@pytest.mark.slow
@pytest.mark.without_ray
def test_a_related_study_lowers_the_regret_at_few_trials_and_a_misleading_one_costs_little(replayed):
    none, related, reversed_ = (
        np.concatenate([arms[arm] for arms in replayed.values()]).mean(0) for arm in ("none", "related", "reversed")
    )
    assert related[0] < 0.75 * none[0] and related[1] < 0.8 * none[1], "after 4 and after 8 finished trials"
    assert reversed_[1] < none[1] + 0.005 and reversed_[3] < none[3] + 0.005, "after 8 and after 16"


def test_the_first_proposal_is_near_the_best_of_the_other_study():
    facts = SearchFacts((RATE,), trials=20, max_epochs=8, knowledge=(KnownStudy("old", tuple(hill(12, at=0.03))),))
    study = optuna.create_study(direction="maximize")
    for _ in range(3):
        trial = study.ask()
        sampler = CurvesSampler(facts, trial.number)
        proposed = sampler.sample_relative(study, study.trials[-1], {"lr": RATE.distribution})
        if trial.number % 2 == 0:
            assert 0.01 < float(str(proposed["lr"])) < 0.1, "every second of the first trials uses the knowledge"


def test_each_batch_of_another_study_is_a_task_and_all_together_have_limited_room():
    groups = [*hill(60, group=64), *hill(60, group=256, level=0.4)]
    facts = SearchFacts((RATE,), trials=20, max_epochs=8, knowledge=(KnownStudy("a", tuple(groups)),))
    known = known_curves(facts, UnitSpace(facts.dimensions), facts.knowledge)
    assert known is not None and len(known.points) == KNOWN_POINTS < MAX_POINTS
    assert set(known.points.tasks.tolist()) == {1, 2}
    assert [0.05 < float(str(params["lr"])) < 0.2 for params in known.best] == [True] * 4
    assert known_curves(facts, UnitSpace((RATE,)), ()) is None


def test_a_study_whose_best_learn_nothing_here_is_left_out_at_once_and_believed_again_if_others_learn():
    """Ranks cannot say it: all that learn nothing are alike."""
    objective = Objective("v", worst=0.1)
    known = KnownStudy("old", tuple(hill(12, at=0.1)))
    facts = SearchFacts((RATE,), trials=20, max_epochs=8, objective=objective, knowledge=(known,))
    study, encoder = optuna.create_study(direction="maximize"), CurveEncoder(facts)
    believed = []
    for rate, end in ((0.1, 0.101), (0.12, 0.102), (0.08, 0.86), (0.09, 0.85)):
        study.enqueue_trial({"lr": rate})
        trial = study.ask({"lr": RATE.distribution})
        trial.report(0.1, 1)
        believed.append(encoder.trusted(study))
        trial.report(end, 8)
        study.tell(trial, end)
        believed.append(encoder.trusted(study))
    assert believed == [(0,), (), (), (), (), (), (), (0,)]


def test_the_rank_correlation_is_spearmans():
    rng = np.random.default_rng(3)
    one = rng.integers(0, 6, 30).astype(float)  # with equal values
    other = one + rng.normal(0, 2, 30)
    assert rank_correlation(one.tolist(), other.tolist(), [None] * 30) == pytest.approx(spearmanr(one, other).statistic)
    shifted = np.concatenate([other, other - 100])  # batches do not compare
    both = rank_correlation([*one, *one], shifted.tolist(), [64] * 30 + [128] * 30)
    assert both == pytest.approx(spearmanr(one, other).statistic)
    assert rank_correlation(one[:4].tolist(), other[:4].tolist(), [None] * 4) is None
    assert rank_correlation([1.0] * 6, other[:6].tolist(), [None] * 6) is None
