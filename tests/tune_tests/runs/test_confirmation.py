"""Which trials of a finished search are confirmed with fresh seeds, and how sure their means are."""

import dataclasses
import json
import math
from typing import Any

import numpy as np
import pytest
from optuna.trial import FrozenTrial, TrialState, create_trial
from scipy.stats import norm, t

from bigbatch.train_loop.config import ConfigError, TrainConfig
from bigbatch.tune.console.answer_words import answer_in_words
from bigbatch.tune.runs.confirm_rule import AFFORDABLE, NOTHING, ConfirmRule, confirm_rule
from bigbatch.tune.runs.confirmation import (
    Confirmation,
    ConfirmationFacts,
    best_of_each_value,
    missing_confirmations,
    trials_to_confirm,
)
from bigbatch.tune.runs.frontier import FrontierFacts, frontier_of
from bigbatch.tune.runs.learned import FRESH_SEEDS
from bigbatch.tune.runs.objective import Objective
from bigbatch.tune.runs.reported import Examples, confirmed_trials, mean_over_seeds_interval
from bigbatch.tune.runs.run import count_ended
from bigbatch.tune.storage.frontier_file import frontier_json

BATCHES = FrontierFacts(
    "global_batch_size",
    (128, 256, 512),
    examples=Examples(1000),
    objective=Objective(worst=0.1),
    description={"num_classes": 10},
)
WHOLE = dataclasses.replace(BATCHES, name=None, values=(None,))
"""Of a search that compares no values."""


def trial(
    number: int,
    value: float | None,
    batch: int = 128,
    *,
    state: TrialState = TrialState.COMPLETE,
    epoch_s: float = 1.0,
    holdout: float | None = None,
    config: dict[str, object] | None = None,
    **attrs: object,
) -> FrozenTrial:
    """A trial of a study, 10 epochs of ``epoch_s`` seconds long."""
    record = {"val_top1": value, "train_s": epoch_s, "holdout_top1": holdout}
    user_attrs = {f"epoch/{epoch:05d}": {"epoch": epoch, **record} for epoch in range(1, 11)}
    made = create_trial(
        state=state,
        value=value if state == TrialState.COMPLETE else None,
        user_attrs={**user_attrs, "config": {"epochs": 10, "number": number, **(config or {})}, **attrs},
    )
    made.number, made.params = number, {"global_batch_size": batch}
    return made


def facts(rule: ConfirmRule, frontier: FrontierFacts = BATCHES, seed: int = 0) -> ConfirmationFacts:
    return ConfirmationFacts(rule, seed, frontier)


def confirmed_numbers(trials: list[FrozenTrial], of: ConfirmationFacts) -> list[int]:
    return [trial.number for trial, _ in trials_to_confirm(trials, of)]


def best_of(trials: list[FrozenTrial], objective: Objective | None = None) -> int:
    """The best trial where no values are compared."""
    found = frontier_of(trials, dataclasses.replace(WHOLE, objective=objective or WHOLE.objective))
    return found.leading.trial


SEARCH = [
    trial(0, 0.95, 128),
    trial(1, 0.93, 256),
    trial(2, 0.947, 256),
    trial(3, 0.90, 512),
    trial(4, None, 512, state=TrialState.PRUNED),
    trial(5, 0.949, 128),
]
"""Best: trial 0. Answer: batch 256 by trial 2, which is 0.3 points worse."""


def test_the_answer_comes_first_then_the_best_then_other_batches_then_second_places() -> None:
    missing = missing_confirmations(SEARCH, facts(ConfirmRule(2, 2), seed=7))
    by_trial = list(dict.fromkeys(one.trial for one in missing))
    assert by_trial == [2, 0, 3, 1, 5]
    assert missing[:2] == [Confirmation(2, 8), Confirmation(2, 9)]
    assert all(one.seed in (8, 9) for one in missing) and len(missing) == 10


def test_without_a_frontier_the_best_of_the_whole_search_are_confirmed() -> None:
    missing = missing_confirmations(SEARCH, facts(ConfirmRule(3, 1), frontier=WHOLE))
    assert missing == [Confirmation(0, 1), Confirmation(5, 1), Confirmation(2, 1)]


def test_only_what_is_not_there_is_missing_and_confirmations_confirm_no_other() -> None:
    """Whatever the state: a killed search has WAITING ones, which run by themselves."""
    rule = facts(ConfirmRule(1, 3))
    there = [
        trial(6, 0.99, 256, confirms=2, confirmation_seed=1),
        trial(7, None, 256, confirms=2, confirmation_seed=3, state=TrialState.WAITING),
        trial(8, None, 128, confirms=0, confirmation_seed=2, state=TrialState.FAIL),
    ]
    missing = missing_confirmations([*SEARCH, *there], rule)
    assert missing == [one for one in missing_confirmations(SEARCH, rule) if one not in {
        Confirmation(2, 1), Confirmation(2, 3), Confirmation(0, 2)
    }]  # fmt: skip
    assert missing[0] == Confirmation(2, 2) and count_ended([*SEARCH, *there]) == count_ended(SEARCH) == 6


def test_fresh_seeds_are_never_the_searchs_and_stay_in_range() -> None:
    last = 2**31 - 1
    seeds = [one.seed for one in missing_confirmations(SEARCH[:1], facts(ConfirmRule(1, 3), seed=last))]
    assert seeds == [0, 1, 2]
    for seed in seeds:
        TrainConfig(seed=seed)


def test_the_same_configuration_twice_is_confirmed_once() -> None:
    same = [trial(n, 0.9 + n / 1000, config={"number": 0}) for n in range(3)]
    assert confirmed_numbers(same, facts(ConfirmRule(3, 1))) == [2]


def test_the_best_of_what_was_given_is_confirmed_too_where_two_are_and_comes_first_among_equal_ones() -> None:
    """Trial 8 goes on with recipe 6. At 256 it ties with trial 2, at 128 the recipe is worse than two others."""
    recipe = {"epochs": 10}
    search = [
        *SEARCH,
        trial(6, None, 256, state=TrialState.PRUNED, paused_in_epoch=1, given_config=recipe),
        trial(7, 0.91, 128, given_config=recipe),
        trial(8, 0.947, 256, continues=6),
        trial(9, 0.90, 128, given_config=recipe),
    ]

    def of(rule: ConfirmRule) -> dict[object, list[int]]:
        return {batch: [t.number for t in found] for batch, found in best_of_each_value(search, facts(rule)).items()}

    assert of(ConfirmRule(1, 3)) == {128: [0], 256: [8], 512: [3]}
    assert of(ConfirmRule(2, 3)) == {128: [0, 7], 256: [8, 2], 512: [3]}
    assert of(ConfirmRule(3, 3)) == {128: [0, 5, 7], 256: [8, 2, 1], 512: [3]}
    equal = [trial(10 + i, 1.0, 256, confirms=n, confirmation_seed=1) for i, n in enumerate((2, 8))]
    frontier = frontier_of([*search, *equal], BATCHES)
    assert frontier is not None and frontier.leading.trial == 8
    assert best_of([*search, *equal]) == 8
    better = [trial(10, 1.0, 256, confirms=2, confirmation_seed=1), trial(11, 0.999, 256, confirms=8)]
    assert best_of([*search, *better]) == 2, "one more right answer is better, whatever is published"


def test_the_default_confirms_the_answer_and_the_best_where_that_costs_little() -> None:
    assert confirmed_numbers(SEARCH, facts(AFFORDABLE)) == [2, 0]  # 2 × 3 × 10 s of 180 s
    dear = [trial(t.number, t.value, t.params["global_batch_size"], state=t.state, epoch_s=3600.0) for t in SEARCH]
    assert trials_to_confirm(dear, facts(AFFORDABLE)) == []  # 10 hours a run, a fifth of the search is 12
    many = [*dear, *(trial(n, 0.5, epoch_s=3600.0) for n in range(6, 15))]
    assert confirmed_numbers(many, facts(AFFORDABLE)) == [2]  # a fifth of 150 hours
    assert trials_to_confirm(SEARCH[:5], facts(AFFORDABLE)) == [], "three runs beside five trials"


def test_the_default_takes_two_seeds_where_three_cost_too_much_but_not_a_single_one() -> None:
    """180 worker seconds are always allowed: three runs of 60 s, two of 61 to 90 s, none of more."""
    for run_s, seeds in ((60.0, [1, 2, 3]), (61.0, [1, 2]), (90.0, [1, 2]), (91.0, None)):
        search = [trial(n, 0.9 - n / 100, 128, epoch_s=run_s / 10 if n == 0 else 0.1) for n in range(8)]
        found = trials_to_confirm(search, facts(AFFORDABLE))
        assert [list(each) for _, each in found] == ([] if seeds is None else [seeds]), run_s


def confirming(number: int, *values: float | None, first: int) -> list[FrozenTrial]:
    """Confirmations of a trial of FALLING with seeds 1, 2, …; None: it runs."""
    batch = FALLING[number].params["global_batch_size"]
    return [
        trial(first + i, value, batch, confirms=number, confirmation_seed=i + 1,
              state=TrialState.RUNNING if value is None else TrialState.COMPLETE)
        for i, value in enumerate(values)
    ]  # fmt: skip


FALLING = [
    trial(0, 0.95, 32), trial(1, 0.949, 64), trial(2, 0.94, 128), trial(3, 0.948, 256), trial(4, 0.946, 512),
    trial(5, 0.90, 512),
]  # fmt: skip
"""The best is batch 32, the answer 512. 64 and 256 are within half a point as well, 128 is a point worse."""
FIVE = dataclasses.replace(BATCHES, values=(32, 64, 128, 256, 512), examples=Examples(100_000))


def test_where_fresh_seeds_refute_the_answer_the_default_confirms_the_next_good_value_until_one_holds() -> None:
    of = facts(AFFORDABLE, FIVE)
    best = confirming(0, 0.948, 0.949, 0.95, first=6)
    refuted, held = confirming(4, 0.93, 0.94, 0.94, first=9), confirming(4, 0.946, 0.945, 0.944, first=9)
    assert confirmed_numbers(FALLING, of) == [4, 0]
    assert confirmed_numbers([*FALLING, *held, *best], of) == [4, 0]
    assert confirmed_numbers([*FALLING, *refuted, *best[:2]], of) == [4, 0], "one is still to run"
    assert confirmed_numbers([*FALLING, *refuted, *confirming(0, 0.948, 0.949, None, first=6)], of) == [4, 0]
    fell = [*FALLING, *refuted, *best]
    assert missing_confirmations(fell, of) == [Confirmation(3, seed) for seed in (1, 2, 3)]
    begun = [*fell, *confirming(3, 0.947, None, first=12)]
    assert missing_confirmations(begun, of) == [Confirmation(3, 3)], "what the first seed came to changes nothing"
    again = [*fell, *confirming(3, 0.93, 0.93, 0.93, first=12)]
    assert missing_confirmations(again, of) == [Confirmation(1, seed) for seed in (1, 2, 3)]
    last = [*again, *confirming(1, 0.93, 0.93, 0.93, first=15)]
    assert missing_confirmations(last, of) == [], "the best trial's batch is left, and it is confirmed"
    answers = [frontier_of(study, of.frontier) for study in (fell, [*fell, *confirming(3, 0.947, first=12)], last)]
    assert [found.answer_row.value for found in answers if found and found.answer_row] == [32, 256, 32]


def test_a_value_that_is_worse_by_one_example_may_be_good_enough_and_one_that_is_worse_by_more_is_not() -> None:
    """256 is worse by one of 180 images, more than half a point; 128 by four points, which 180 images hardly show."""
    values = {0: 0.95, 1: 0.94, 2: 0.91, 3: 0.95 - 1 / 180, 4: 0.946, 5: 0.9}
    search = [trial(t.number, values[t.number], t.params["global_batch_size"]) for t in FALLING]
    of = facts(AFFORDABLE, dataclasses.replace(FIVE, examples=Examples(180)))
    fell = [*search, *confirming(0, 0.95, 0.95, 0.95, first=6), *confirming(4, 0.9, 0.9, 0.9, first=9)]
    assert {one.trial for one in missing_confirmations(fell, of)} == {3}
    assert missing_confirmations([*fell, *confirming(3, 0.9, 0.9, 0.9, first=12)], of) == []


def test_an_answer_that_is_the_best_of_all_is_refuted_by_what_was_chosen_for_the_next_value() -> None:
    of = facts(AFFORDABLE, FIVE)
    search = [*FALLING, trial(6, 0.951, 512)]
    seeds = [trial(7 + i, 0.92, 512, confirms=6, confirmation_seed=i + 1) for i in range(3)]
    close = [trial(7 + i, 0.944, 512, confirms=6, confirmation_seed=i + 1) for i in range(3)]
    assert confirmed_numbers(search, of) == confirmed_numbers([*search, *close], of) == [6]
    assert confirmed_numbers([*search, *seeds], of) == [6, 3]
    held = [trial(10 + i, 0.946, 256, confirms=3, confirmation_seed=i + 1) for i in range(3)]
    found = frontier_of([*search, *seeds, *held], of.frontier)
    assert missing_confirmations([*search, *seeds, *held], of) == [] and found and found.answer_row
    assert found.answer_row.value == 256


def test_runs_that_ended_without_a_result_refute_nothing() -> None:
    of, best = facts(AFFORDABLE, FIVE), confirming(0, 0.948, 0.949, 0.95, first=6)

    def of_the_answer(state: TrialState, first: int, **attrs: Any) -> list[FrozenTrial]:
        return [
            trial(first + i, None, 512, confirms=4, confirmation_seed=i + 1, state=state, **attrs) for i in range(3)
        ]

    lost = of_the_answer(TrialState.FAIL, 9)
    assert missing_confirmations([*FALLING, *best, *lost], of) == [], "--retry-failed repeats them"
    again = [trial(12 + i, None, 512, confirms=4, confirmation_seed=i + 1, state=TrialState.RUNNING, retries=9 + i)
             for i in range(3)]  # fmt: skip
    assert missing_confirmations([*FALLING, *best, *lost, *again], of) == []
    diverged = of_the_answer(TrialState.FAIL, 9, diverged=True)
    assert {one.trial for one in missing_confirmations([*FALLING, *best, *diverged], of)} == {3}


def test_what_follows_a_refuted_answer_may_cost_as_much_again_but_no_more_of_a_budget() -> None:
    """180 s for the first two trials, 180 s more for those that follow; of a budget 180 s for all. At 60 s a run the
    best trial is too dear, and the answer is refuted by what was chosen for the next value."""

    def search(run_s: float) -> list[FrozenTrial]:
        slow = [trial(t.number, t.value, t.params["global_batch_size"], epoch_s=run_s / 10) for t in FALLING]
        return [*slow, *confirming(0, 0.948, 0.949, 0.95, first=6), *confirming(4, 0.93, 0.94, 0.94, first=9)]

    of = facts(AFFORDABLE, FIVE)
    seeds = {
        run_s: [len(each) for _, each in trials_to_confirm(search(run_s), of)] for run_s in (20.0, 36.0, 60.0, 91.0)
    }
    assert seeds == {20: [3, 3, 3], 36: [3, 2, 3], 60: [3, 3], 91: []}
    budget = dataclasses.replace(of, most_worker_s=180.0)
    seeds = {run_s: [len(each) for _, each in trials_to_confirm(search(run_s), budget)] for run_s in (20.0, 22.5, 30.0)}
    assert seeds == {20: [3, 3, 3], 22.5: [3, 3, 2], 30: [3, 3]}


def test_nothing_is_confirmed_by_default_where_nothing_has_learned() -> None:
    search = [trial(n, 0.11, 128 << n % 3) for n in range(8)]
    assert trials_to_confirm(search, facts(AFFORDABLE)) == []
    assert confirmed_numbers(search, facts(ConfirmRule(1, 1))) != [], "who asks for it gets it"


def test_what_came_out_is_kept_by_seed_and_a_diverged_run_is_at_chance() -> None:
    runs = [
        trial(6, 0.94, 256, confirms=2, confirmation_seed=3, holdout=0.92),
        trial(7, 0.93, 256, confirms=2, confirmation_seed=1, holdout=0.91),
        trial(8, None, 256, confirms=2, confirmation_seed=2, state=TrialState.FAIL, diverged=True),
        trial(9, None, 256, confirms=2, confirmation_seed=4, state=TrialState.FAIL),  # a lost node says nothing
    ]
    found = confirmed_trials([*SEARCH, *runs], Objective(worst=0.1))[2]
    assert (found.seeds, found.values) == ((1, 2, 3), (0.93, 0.1, 0.94))
    assert found.holdout == (0.91, 0.1, 0.92)
    assert found.mean == pytest.approx((0.93 + 0.1 + 0.94) / 3)
    assert confirmed_trials(SEARCH, Objective(worst=0.1)) == {}


def test_the_answer_is_chosen_among_confirmed_values() -> None:
    """256 was chosen at 94.7 % and comes to 93 %; 128 to 94.8 %: more than half a point better, so it is the answer."""
    before = frontier_of(SEARCH, BATCHES)
    assert before is not None and before.answer_row and before.answer_row.value == 256
    runs = [trial(6 + i, value, 256, confirms=2, confirmation_seed=i) for i, value in enumerate((0.93, 0.929, 0.931))]
    runs += [trial(9 + i, value, 128, confirms=0, confirmation_seed=i) for i, value in enumerate((0.948, 0.947, 0.949))]
    found = frontier_of([*SEARCH, *runs], BATCHES)
    assert found is not None and found.answer_row and found.answer_row.value == 128 == found.reference.value
    assert found.leading.objective == pytest.approx(0.948) and found.leading.seeds == 3
    alone = frontier_of([*SEARCH, *runs[:3]], BATCHES)
    assert alone is not None and alone.answer_row and alone.answer_row.value == 256, "only confirmed values compare"
    assert alone.answer_row.worse_at_most is not None and alone.answer_row.worse_at_most > 0.0, "128 may be better"
    low, high = mean_over_seeds_interval((0.948, 0.947, 0.949), 1000, 0.05)
    reported = found.leading.reported
    assert (reported.low, reported.high, reported.by) == (pytest.approx(low), pytest.approx(high), FRESH_SEEDS)


def runs_of(number: int, batch: int, first: int, *, diverged: int) -> list[FrozenTrial]:
    """Three confirmations of a trial at 93 %, the last of which diverged."""
    lost = {"state": TrialState.FAIL, "diverged": True}
    return [
        trial(first + i, None if i >= 3 - diverged else 0.93, batch, confirms=number, confirmation_seed=i,
              **(lost if i >= 3 - diverged else {}))  # type: ignore[arg-type]
        for i in range(3)
    ]  # fmt: skip


@pytest.mark.parametrize("diverged", [1, 3])
def test_what_diverged_with_a_fresh_seed_is_the_answer_only_where_nothing_else_is_left(diverged: int) -> None:
    """The answer of the search, batch 256, is the only one that was confirmed."""
    trials = [*SEARCH, *runs_of(2, 256, 6, diverged=diverged)]
    found = frontier_of(trials, BATCHES)
    assert found is not None and found.answer_row and found.answer_row.value == 128, (
        "94.7 % with one seed, and it diverges with others"
    )
    row = next(row for row in found.rows if row.value == 256)
    assert row.best is not None and (row.best.trial, row.best.seeds) == (1, 0), "the next best at 256"
    assert best_of(trials) == 0
    assert confirmed_trials(trials, Objective(worst=0.1))[2].diverged == diverged
    lone = [trials[2], *trials[6:]]
    only = frontier_of(lone, BATCHES)
    assert only is not None and only.leading.trial == 2 and only.leading.seeds_diverged == diverged
    assert best_of(lone) == 2
    said = " ".join(answer_in_words(frontier_json(only)))
    lost = f"{diverged} of its 3 runs with fresh seeds diverged; each counts as chance."
    assert (lost if diverged < 3 else "Nothing has learned yet") in said, "what diverges with each seed is at chance"


@pytest.mark.parametrize("choosing", [200, 0])
def test_a_holdout_is_advised_only_where_the_search_sees_examples(choosing: int) -> None:
    """With ``--trainable`` it sees none, and refuses ``--holdout``."""
    found = frontier_json(frontier_of([*SEARCH, *runs_of(2, 256, 6, diverged=0)], BATCHES))
    said = " ".join(answer_in_words(found | {"examples": {"noun": "examples", "choosing": choosing}}))
    assert "what fits them by luck is still in this value." in said
    assert ("--holdout" in said) is bool(choosing)


def test_a_repeated_confirmation_counts_once() -> None:
    """``--retry-failed`` repeats it with the same seed, as a new trial."""
    trials = [*SEARCH, *runs_of(2, 256, 6, diverged=1), trial(9, 0.96, 256, confirms=2, confirmation_seed=2, retries=8)]
    found = confirmed_trials(trials, Objective(worst=0.1))[2]
    assert (found.seeds, found.values, found.diverged) == ((0, 1, 2), (0.93, 0.93, 0.96), 0)
    frontier = frontier_of(trials, BATCHES)
    best = next(row.best for row in frontier.rows if row.value == 256)
    assert best is not None and (best.seeds, best.seeds_diverged) == (3, 0)
    assert best.objective == pytest.approx((0.93 + 0.93 + 0.96) / 3)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("3x5", ConfirmRule(3, 5)),
        ("1 × 3", ConfirmRule(1, 3)),
        ("none", NOTHING),
        ("auto", AFFORDABLE),
        (None, AFFORDABLE),
    ],
)
def test_rules_are_read_as_people_write_them(text: str | None, rule: ConfirmRule) -> None:
    assert confirm_rule(text, 12) == rule
    assert text is None or confirm_rule(str(rule), 12) == rule


@pytest.mark.parametrize("text", ["3", "0x3", "3x0", "3x5x7", "3x101"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--confirm takes BESTxSEEDS.*Write e\.g\. --confirm 3x5"):
        confirm_rule(text, 12)


def test_more_trials_than_the_search_has_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"got 3 of 2\. Write --confirm 2x5 or less"):
        confirm_rule("3x5", 2)


# How sure


def test_the_interval_of_a_mean_by_hand() -> None:
    """Many images: only the seeds are left, by Student's t. Equal seeds: only the images, here in a normal's range."""
    values = (0.91, 0.93, 0.95)
    low, high = mean_over_seeds_interval(values, 10**9, 0.05)
    half = t.ppf(0.975, 2) * 0.02 / math.sqrt(3)
    assert (low, high) == (pytest.approx(0.93 - half, abs=1e-4), pytest.approx(0.93 + half, abs=1e-4))
    low, high = mean_over_seeds_interval((0.9, 0.9, 0.9), 100_000, 0.05)
    half = norm.ppf(0.975) * math.sqrt(0.9 * 0.1 / 100_000)
    assert (low, high) == (pytest.approx(0.9 - half, abs=2e-5), pytest.approx(0.9 + half, abs=2e-5))
    assert mean_over_seeds_interval((1.0, 1.0, 1.0), 180, 0.05) == (pytest.approx(0.025 ** (1 / 180), abs=1e-9), 1.0)


@pytest.mark.parametrize(("seeds", "spread", "shared"), [(2, 0.0, 0.0), (2, 0.25, 1.6), (5, 0.25, 0.0), (5, 0.1, 1.6)])
def test_the_interval_holds_the_truth_in_95_of_100_cases(seeds: int, spread: float, shared: float) -> None:
    """Simulated runs (probit): the images differ in difficulty, the seeds in skill, by up to 3 points of accuracy."""
    rng, studies, images = np.random.default_rng(5), 600, 300
    # Sums of normals are normal: the accuracy with any seed on any image is Φ(level / √(1 + variances)).
    truth = norm.cdf(1.5 / math.sqrt(1 + shared**2 + spread**2))
    held = 0
    for _ in range(studies):
        skill = 1.5 + spread * rng.normal(size=(seeds, 1))
        right = rng.random((seeds, images)) < norm.cdf(skill + shared * rng.normal(size=images))
        low, high = mean_over_seeds_interval(right.mean(axis=1).tolist(), images, 0.05)
        held += low <= truth <= high
    assert held / studies >= 0.932  # two standard errors of 600 draws below 95 %


def test_the_range_of_another_metrics_mean_is_students_and_a_diverged_run_has_no_mean() -> None:
    """By hand: 0.5, 0.7, 0.6 have the mean 0.6, the standard deviation 0.1 and t(0.975, 2) = 4.303."""
    loss = Objective("val_loss", "minimize", math.nan)
    on_loss = dataclasses.replace(BATCHES, objective=loss)
    runs = [trial(6 + i, v, 256, confirms=2, confirmation_seed=i) for i, v in enumerate((0.5, 0.7, 0.6))]
    row = next(row for row in frontier_of([*SEARCH, *runs], on_loss).rows if row.value == 256)
    assert row.best is not None and row.best.trial == 2 and row.best.reported.value == pytest.approx(0.6)
    low, high = row.best.reported.low, row.best.reported.high
    assert (low, high) == pytest.approx((0.6 - 4.303 * 0.1 / 3**0.5, 0.6 + 4.303 * 0.1 / 3**0.5), abs=1e-4)
    lost = trial(9, None, 256, confirms=2, confirmation_seed=3, state=TrialState.FAIL, diverged=True)
    found = confirmed_trials([*SEARCH, *runs, lost], loss)[2]
    assert found.diverged == 1 and math.isnan(found.mean)
    worse = trial(10, 1.5, 256, confirms=1, confirmation_seed=1)
    assert best_of([*SEARCH, *runs, lost, worse], loss) == 1, "any mean is better than none"
    frontier = frontier_of([*SEARCH, *runs, lost, worse], on_loss)
    assert frontier is not None and frontier.leading.trial == 1
    alone = [*SEARCH[:3], lost]
    frontier = frontier_of(alone, on_loss)
    assert frontier is not None and frontier.leading.trial == 1, "what diverged with another seed is no answer"
    assert "NaN" not in (text := json.dumps(frontier_json(frontier))) and "Infinity" not in text
    assert best_of(alone, loss) == 1
