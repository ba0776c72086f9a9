"""Optuna's samplers learn from trials that diverged and from other studies. The study keeps the truth."""

import itertools
import math
import statistics
from dataclasses import replace
from pathlib import Path

import numpy as np
import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState, create_trial

from bigbatch.search_spaces.constraints import SpaceTrial
from bigbatch.tune.models.names import CAPABILITIES
from bigbatch.tune.models.protocol import Dimension, SearchFacts
from bigbatch.tune.proposers.known_trials import MOST_KNOWN, KnownTrials
from bigbatch.tune.proposers.samplers import PerTrialSampler, quiet_optuna
from bigbatch.tune.proposers.shown_trials import with_bad_ends
from bigbatch.tune.runs.feasible import INFEASIBLE_ATTR
from bigbatch.tune.runs.knowledge import KnownStudy, KnownTrial
from bigbatch.tune.runs.objective import Objective, TimeToTarget
from bigbatch.tune.runs.run import CONTINUES_ATTR, DIVERGED_ATTR, PAUSED_ATTR, REFUSED_ATTR, has_diverged
from bigbatch.tune.strategies import make_strategy
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
    ("strategy", "stopping", "objectives"),
    [("tpe", "asha", (TOP1,)), ("tpe", "none", SEVERAL), ("gp", "none", (OWN,)), ("cmaes", "asha", (TARGET,))],
)
def test_fewer_trials_diverge_than_of_a_random_search(tmp_path, strategy, stopping, objectives):
    seeds, count = (range(1), 24) if strategy == "gp" else (range(2), 40)
    found = [_searched(tmp_path / f"{s}", strategy, stopping, s, objectives, count) for s in seeds]
    shares = [late_share(trials, count // 2, has_diverged) for trials in found]
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


def test_bad_ends_come_last_for_each_sampler_and_are_no_outliers():
    best, middle = made(0, TrialState.COMPLETE, value=0.9), made(1, TrialState.COMPLETE, value=0.4)
    stopped = made(2, TrialState.PRUNED, intermediate_values={1: 0.2})
    trials = [best, middle, stopped, diverged(3)]
    tpe = with_bad_ends(trials, "tpe", [UP])
    assert tpe[:3] == trials[:3] and tpe[3].state == TrialState.PRUNED and not tpe[3].intermediate_values
    assert [t.value for t in with_bad_ends(trials, "gp", [UP]) if t.state == TrialState.COMPLETE] == [0.9, 0.4, 0.4]
    assert with_bad_ends(trials, "cmaes", [UP])[3].value == 0.2
    assert with_bad_ends(trials, "cmaes", [DOWN])[3].value == 0.9
    assert trials[3].state == TrialState.FAIL, "the given trials are not changed"
    two = [made(n, TrialState.COMPLETE, values=v) for n, v in enumerate(([0.9, 5.0], [0.4, 2.0]))]
    two.append(diverged(2))
    assert with_bad_ends(two, "tpe", [UP, DOWN])[2].values == [0.4, 5.0]


def test_bad_ends_alone_are_not_shown_and_other_failures_never():
    assert with_bad_ends([diverged(0), diverged(1)], "tpe", [UP])[0].state == TrialState.FAIL
    crashed = made(1, TrialState.FAIL)
    assert with_bad_ends([made(0, TrialState.COMPLETE, value=0.5), crashed], "gp", [UP])[1] is crashed


def test_a_paused_trial_whose_continuation_diverged_speaks_for_nothing():
    paused = made(0, TrialState.PRUNED, intermediate_values={1: 0.9}, user_attrs={PAUSED_ATTR: 1})
    trials = [paused, diverged(1, **{CONTINUES_ATTR: 0}), made(2, TrialState.COMPLETE, value=0.3)]
    assert [t.number for t in with_bad_ends(trials, "tpe", [UP])] == [1, 2]


def test_what_was_refused_is_a_bad_end_if_all_its_parameters_were_drawn():
    refused = made(1, TrialState.FAIL, user_attrs={REFUSED_ATTR: True})
    partly = create_trial(state=TrialState.FAIL, user_attrs={REFUSED_ATTR: True})
    partly.number = 2
    found = with_bad_ends([made(0, TrialState.COMPLETE, value=0.3), refused, partly], "cmaes", [UP])
    assert [t.state for t in found] == [TrialState.COMPLETE, TrialState.COMPLETE, TrialState.FAIL]


def test_infeasible_trials_say_nothing_of_the_objective_to_a_gaussian_process_and_are_bad_for_cmaes():
    values = [made(n, TrialState.COMPLETE, value=v) for n, v in enumerate((0.2, 0.5, 0.9))]
    beyond = made(3, TrialState.PRUNED, intermediate_values={1: 0.99}, user_attrs={INFEASIBLE_ATTR: {"epoch_s": 0.5}})
    assert with_bad_ends([*values, beyond], "gp", [UP])[3].value == 0.5
    assert with_bad_ends([*values, beyond], "cmaes", [UP])[3].value == 0.2
    assert with_bad_ends([*values, beyond], "tpe", [UP])[3] is beyond, "it knows the constraints"


RATE, DECAY = FloatDistribution(0.001, 1.0, log=True), FloatDistribution(1e-6, 1e-2, log=True)
BATCH = CategoricalDistribution((256, 1024))
KNOWING = sorted(name for name, can in CAPABILITIES.items() if can.knows_others and name != "curves")
EPOCHS = 8


def away(lr: float, wd: float) -> float:
    """Decades from the best place."""
    return math.hypot(math.log10(lr / 0.2), math.log10(wd / 5e-6))


def value(lr: float, wd: float) -> float:
    return 0.9 - 0.1 * away(lr, wd)


def old_study(sign: float = 1.0, trials: int = 40) -> KnownStudy:
    """Two batches whose levels do not compare, with the same best place, or with the same worst one."""
    drawn = np.random.default_rng(0).random((trials, 2))
    places = [(0.001 * 1000**u, 1e-6 * 1e4**v) for u, v in drawn.tolist()]
    known = [
        KnownTrial(i, {"lr": lr, "wd": wd}, {EPOCHS: sign * value(lr, wd) - i % 2}, EPOCHS, group=64 * (1 + i % 2))
        for i, (lr, wd) in enumerate(places)
    ]
    return KnownStudy("old", tuple(known))


def facts_of(*known: KnownStudy, frontier: bool = False) -> SearchFacts:
    dimensions = (Dimension("lr", RATE), Dimension("wd", DECAY), *([Dimension("batch", BATCH)] if frontier else []))
    objective, name = Objective("v", worst=0.1), "batch" if frontier else None
    return SearchFacts(dimensions, 12, EPOCHS, objective=objective, knowledge=known, frontier=name)


def search(strategy: str, facts: SearchFacts, trials: int) -> optuna.Study:
    quiet_optuna()
    study = optuna.create_study(direction="maximize")
    for _ in range(trials):
        study.sampler = PerTrialSampler(make_strategy(strategy, "none", facts).sampler)
        trial = study.ask()
        trial.set_user_attr("config", {"epochs": EPOCHS})
        if facts.frontier:
            trial._suggest("batch", BATCH)
        end = value(trial._suggest("lr", RATE), trial._suggest("wd", DECAY))
        trial.report(end, EPOCHS)
        study.tell(trial, end)
    return study


def best_so_far(strategy: str, *known: KnownStudy, frontier: bool) -> float:
    """The distance of the best trial so far: the mean over the trials of two searches."""
    found: list[float] = []
    for seed in range(2):
        study = search(strategy, replace(facts_of(*known, frontier=frontier), seed=seed), 9)
        found += itertools.accumulate((away(t.params["lr"], t.params["wd"]) for t in study.trials), min)
    return float(np.mean(found))


@pytest.mark.parametrize(("strategy", "frontier"), [("cmaes", True), ("gp", False), ("tpe", True)])
def test_what_is_known_leads_to_what_is_good(strategy, frontier):
    assert KNOWING == ["cmaes", "gp", "tpe"]
    without = best_so_far(strategy, frontier=frontier)
    assert best_so_far(strategy, old_study(), frontier=frontier) < 0.8 * without


@pytest.mark.parametrize("strategy", KNOWING)
def test_old_trials_are_no_trials_of_the_study(strategy):
    study = search(strategy, facts_of(old_study()), 8)
    assert [t.number for t in study.trials] == list(range(8))
    old = {trial.params["lr"] for trial in old_study().trials}
    assert not old & {t.params["lr"] for t in study.trials} and not study.user_attrs


def test_a_study_that_is_refuted_tells_nothing_and_old_trials_give_way_to_results():
    study = search("random", facts_of(), 10)
    told = KnownTrials(facts_of(old_study())).told(study)
    assert len(told) == 40 and not KnownTrials(facts_of(old_study(-1.0))).told(study)
    best = max(told, key=lambda trial: trial.values[0])
    assert away(best.params["lr"], best.params["wd"]) < 0.7
    assert sorted(round(t.values[0], 6) for t in told[:4])[0] < 0 < told[0].values[0], "both the best and the worst"

    seen: list[list[int]] = []

    class Watching(optuna.samplers.RandomSampler):
        def sample_relative(self, study: optuna.Study, trial: FrozenTrial, search_space: object) -> dict[str, object]:
            seen.append([t.number for t in study.get_trials()])
            return {}

    from bigbatch.tune.proposers.known_trials import knowing_others

    proposer = knowing_others(lambda number: Watching(seed=0), facts_of(old_study()))
    for number in range(0, 4):
        proposer(number).sample_relative(study, study.trials[-1], {})
    old = [[n for n in numbers if n < 0] for numbers in seen]
    assert [len(numbers) for numbers in old] == [MOST_KNOWN - 10, 0, MOST_KNOWN - 10, 0], "every second one sees none"
    assert old[0] == [-1] * len(old[0]) and seen[0][len(old[0]) :] == list(range(10))


@pytest.mark.parametrize("strategy", ["tpe", "gp"])
def test_a_study_without_a_finished_trial_makes_no_value_worthless(strategy):
    """It may still run, or all its trials were stopped. Its mean then is no number."""
    whole = old_study()
    cut = tuple(replace(t, values={4: t.values[EPOCHS]}) for t in whole.trials[:9])
    facts = facts_of(whole, KnownStudy("cut", cut))
    study = search(strategy, facts, 9)
    made = KnownTrials(facts)
    scored = made.scored(study, study.get_trials(deepcopy=False))
    assert len(scored) == 9 and all(math.isfinite(t.values[0]) for t in scored)
    alone = KnownTrials(facts_of(whole)).scored(study, study.get_trials(deepcopy=False))
    assert [t.values for t in scored] == [t.values for t in alone]


@pytest.mark.parametrize("direction", ["maximize", "minimize"])
def test_a_few_good_trials_all_have_good_scores_in_their_order(direction):
    """By their ranks alone, the worse one of two would have a bad score."""
    sign = 1 if direction == "maximize" else -1
    objective = Objective("v", direction, worst=sign * -2.0)
    facts = replace(facts_of(old_study(sign)), objective=objective)
    study = optuna.create_study(direction=direction)
    for lr in (0.2, 0.25):
        trial = study.ask({"lr": FloatDistribution(lr, lr), "wd": FloatDistribution(5e-6, 5e-6)})
        trial.report(sign * value(lr, 5e-6), EPOCHS)
        study.tell(trial, sign * value(lr, 5e-6))
    first, second = (t.values[0] for t in KnownTrials(facts).scored(study, study.trials))
    assert sign * first >= sign * second > 0.5
    assert max(sign * t.values[0] for t in KnownTrials(facts).told(study)) > 1.5


@pytest.mark.parametrize(("strategy", "stopping"), [("tpe", "none"), ("curves", "look")])
def test_a_search_with_knowledge_makes_the_same_decisions_after_kills(strategy, stopping, tmp_path: Path):
    first = curve_search("random", "none", in_memory(tmp_path / "first")).run()
    known = [
        KnownTrial(i, {**t.params, "lr_multiplier": t.params["lr_multiplier"] * 0.99**k}, dict(t.intermediate_values),
                   conducted.EPOCHS, group=t.params["global_batch_size"])
        for k in range(3) for i, t in enumerate(first.trials) if len(t.intermediate_values) == conducted.EPOCHS
    ]  # fmt: skip
    knowledge = (KnownStudy("first", tuple(known)),)
    without = curve_search(strategy, stopping, in_memory(tmp_path / "without")).run()
    assert summary(same_after_kills(strategy, stopping, in_memory, tmp_path, knowledge)) != summary(without.trials)
