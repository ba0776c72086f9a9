"""How a search spends its trials over the values of its frontier, with every strategy."""

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import optuna
import pytest
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from optuna.trial import TrialState

from bigbatch.tune.models.names import STRATEGIES
from bigbatch.tune.models.protocol import Dimension, SearchFacts
from bigbatch.tune.proposers.frontier_sampler import TrialAllocator, among_peers
from bigbatch.tune.proposers.samplers import quiet_optuna
from bigbatch.tune.runs.objective import Objective
from bigbatch.tune.runs.run import CONFIRMS_ATTR, CONTINUES_ATTR, PAUSED_ATTR, RETRIES_ATTR
from bigbatch.tune.strategies import make_strategy
from helpers.lone_studies import new_study, next_trial, rise

BATCHES = (128, 256, 512, 1024)
DIMENSIONS = (
    Dimension("optimizer", CategoricalDistribution(("lars", "sgd"))),
    Dimension("batch", CategoricalDistribution(BATCHES)),
    Dimension("lr_multiplier", FloatDistribution(1 / 16, 16.0, log=True)),
)
NAMES: dict[str, BaseDistribution] = {d.name: d.distribution for d in DIMENSIONS}
FACTS = SearchFacts(DIMENSIONS, trials=12, max_epochs=4, seed=1, objective=Objective(), frontier="batch")


def accuracy(params: dict[str, Any]) -> float:
    """Best at multiplier 4 with sgd. The batch decides more than all else, and the smallest one is the best."""
    away = abs(math.log(params["lr_multiplier"] / 4)) / math.log(64)
    return 0.95 - 0.1 * BATCHES.index(params["batch"]) - 0.2 * away - 0.05 * (params["optimizer"] != "sgd")


def ask(study: optuna.Study, strategy: str, facts: SearchFacts) -> tuple[optuna.trial.Trial, dict[str, Any]]:
    """The next trial of a driver that has just been started: it remembers nothing."""
    trial = next_trial(study, make_strategy(strategy, "none", facts))
    params = {name: trial._suggest(name, distribution) for name, distribution in NAMES.items()}
    trial.set_user_attr("config", {"epochs": facts.max_epochs})
    return trial, params


def search(
    strategy: str,
    facts: SearchFacts = FACTS,
    at_once: int = 1,
    worth: Callable[[dict[str, Any]], float] = accuracy,
    trials: int | None = None,
) -> optuna.Study:
    quiet_optuna()
    study = new_study()
    for _ in range(0, trials or facts.trials, at_once):
        running = [ask(study, strategy, facts) for _ in range(at_once)]
        for trial, params in running:
            rise(study, trial, worth(params), facts.max_epochs)
    return study


def batches(study: optuna.Study) -> list[int]:
    return [trial.params["batch"] for trial in study.trials]


@pytest.mark.parametrize(
    ("strategy", "trials", "at_once"), [*((name, 12, 1) for name in STRATEGIES[1:]), ("tpe", 21, 3)]
)
def test_each_batch_is_tried_early_and_gets_half_of_an_equal_share(strategy, trials, at_once):
    study = search(strategy, dataclasses.replace(FACTS, trials=trials), at_once)
    assert set(batches(study)[:4]) == set(BATCHES)
    counts = Counter(batches(study))
    assert sum(counts.values()) == trials and min(counts.values()) >= trials / 4 / 2, counts


def begun(study: optuna.Study, batch: int, **attrs: object) -> optuna.trial.Trial:
    study.enqueue_trial({"batch": batch}, user_attrs=attrs)
    return study.ask({"batch": CategoricalDistribution(BATCHES)})


def told(study: optuna.Study, batch: int, value: float | None, **attrs: object) -> optuna.trial.FrozenTrial:
    """A trial of that batch that has ended; without a value it still runs."""
    trial = begun(study, batch, **attrs)
    if value is not None:
        study.tell(trial, value)
    return study.trials[trial.number]


def study_of(values: Mapping[int, tuple[float, ...]]) -> optuna.Study:
    study = new_study()
    for batch, ends in values.items():
        for value in ends:
            told(study, batch, value)
    return study


def choice(study: optuna.Study, **changes: Any) -> object:
    facts = dataclasses.replace(FACTS, **changes)
    return TrialAllocator(facts).next_value(study, len(study.trials))


def test_where_nothing_better_is_possible_the_rest_goes_to_the_larger_batches():
    perfect = {128: (1.0,) * 3, 256: (1.0,) * 3, 512: (0.999, 1.0), 1024: (0.98, 0.975)}
    for more in range(8):
        assert choice(study_of(perfect | {1024: (0.98, 0.975, *(0.97,) * more)})) == 1024
    assert choice(study_of(dict.fromkeys(BATCHES, (1.0,) * 3) | {256: (1.0,) * 2})) == 256, "then where least was tried"
    errors = dataclasses.replace(FACTS.objective, name="val_loss", direction="minimize")
    losses = {128: (0.5,) * 3, 256: (0.5,) * 3, 512: (0.501, 0.5), 1024: (1.9, 2.0)}
    assert choice(study_of(losses), objective=errors) == 512, "a loss has no end that is known"


def test_the_rest_goes_to_the_largest_batch_that_may_be_within_the_tolerance():
    near = {128: (0.97, 0.95), 256: (0.97, 0.94), 512: (0.97, 0.95), 1024: (0.964, 0.93)}
    assert choice(study_of(near)) == 1024
    far = near | {1024: (0.70, 0.68)}
    assert choice(study_of(far)) == 512, "the answer becomes surer where no larger one can be"
    middle = {128: (0.97, 0.95), 256: (0.969, 0.94), 512: (0.962, 0.94), 1024: (0.60, 0.40)}
    assert choice(study_of(middle)) == 512


def test_running_trials_count_so_that_slots_differ():
    study = new_study()
    first = [told(study, int(str(choice(study))), None).params["batch"] for _ in range(4)]
    assert sorted(first) == list(BATCHES) and first[:2] == [1024, 128]


def test_enqueued_trials_keep_their_value_and_count():
    study = new_study()
    for _ in range(2):
        study.enqueue_trial({"batch": 1024, "lr_multiplier": 1.0})
    study.enqueue_trial({"optimizer": "lars"})
    asked = [ask(study, "tpe", FACTS)[1] for _ in range(9)]
    assert [params["batch"] for params in asked[:2]] == [1024, 1024]
    assert asked[2]["optimizer"] == "lars"
    counts = Counter(params["batch"] for params in asked)
    assert counts[1024] <= 3 and min(counts.values()) >= 2


def test_an_interrupted_trial_keeps_its_value_and_counts():
    study = new_study()
    trial, params = ask(study, "tpe", FACTS)
    study._storage.set_trial_state_values(trial._trial_id, TrialState.WAITING)
    assert choice(study) != params["batch"]
    again, kept = ask(study, "tpe", FACTS)
    assert (again.number, kept) == (trial.number, params)


def test_what_counts_in_anothers_place_counts_once():
    study = study_of({128: (0.9,), 256: (0.9,), 512: (0.9,)})
    paused = told(study, 1024, 0.5, **{PAUSED_ATTR: 1})
    told(study, 1024, 0.9, **{CONTINUES_ATTR: paused.number})
    told(study, 1024, 0.9, **{RETRIES_ATTR: paused.number + 1})
    for _ in range(5):
        told(study, 1024, 0.9, **{CONFIRMS_ATTR: paused.number + 1})
    for batch in (128, 256, 512):
        told(study, batch, 0.9)
    assert choice(study) == 1024, "it has one configuration, the others two"


@pytest.mark.parametrize("strategy", ["tpe", "curves"])
def test_what_the_batches_share_is_learned_from_all_of_them(strategy):
    """The last proposals are nearer to the best multiplier than random ones, though the batch decides more."""

    def distance(strategy: str, seed: int) -> float:
        study = search(strategy, dataclasses.replace(FACTS, trials=32, seed=seed), at_once=2)
        late = [trial.params["lr_multiplier"] for trial in study.trials[20:]]
        return float(np.median([abs(math.log(value / 4)) for value in late]))

    ours = np.mean([distance(strategy, seed) for seed in range(2)])
    random = np.mean([distance("random", seed) for seed in range(2)])
    assert ours < 0.6 * random


def test_a_trial_is_ranked_among_those_of_its_own_batch():
    study = study_of({128: (0.99, 0.95, 0.97), 1024: (0.50, 0.30, 0.40), 256: (0.8,)})
    ranked = among_peers(FACTS, study.trials)
    normal = [t.values[0] for t in ranked]
    assert normal[0:3] == pytest.approx(normal[3:6]), "the batches' bests compare, and so do their others"
    assert normal[0] > normal[2] > normal[1]
    assert [normal[2], normal[6]] == pytest.approx([0.0, 0.0]), "the middle one, and one without peers"
    assert all("batch" not in t.params and "batch" not in t.distributions for t in ranked)
    assert [t.values[0] for t in study.trials[:2]] == [0.99, 0.95], "the study's own trials are as they were"


def test_stopped_trials_are_ranked_by_the_epoch_in_which_they_stopped():
    study = new_study()
    for value, epochs in ((0.9, 3), (0.5, 1), (0.6, 1)):
        trial = begun(study, 128)
        for epoch in range(1, epochs + 1):
            trial.report(value * epoch / 3, epoch)
        study.tell(trial, state=TrialState.PRUNED)
    ranked = among_peers(FACTS, study.trials)
    # After epoch 1 they had 0.30, 0.17 and 0.20.
    assert [list(t.intermediate_values) for t in ranked] == [[3], [1], [1]]
    assert ranked[1].intermediate_values[1] < ranked[2].intermediate_values[1]
    assert ranked[1].intermediate_values[1] == pytest.approx(normal_score(0, 3))
    assert ranked[0].intermediate_values[3] == pytest.approx(normal_score(0, 1))


def normal_score(place: int, of: int) -> float:
    from scipy.stats import norm

    return float(norm.ppf((place + 0.5) / of))
