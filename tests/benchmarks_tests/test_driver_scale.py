"""The benchmark of the driver's cost, on a few trials."""

from collections.abc import Callable
from typing import Any

import driver_scale as benchmark
import pytest
from optuna.trial import FrozenTrial, TrialState, create_trial

from bigbatch.tune.strategies import make_strategy

pytestmark = pytest.mark.without_ray


def looks_at_trials(monkeypatch, run: Callable[[], object]) -> int:
    """How often ``run`` reads what a trial of a study holds."""
    count = 0

    def counted(plain: property) -> property:
        def read(trial: FrozenTrial) -> object:
            nonlocal count
            count += 1
            assert plain.fget is not None
            return plain.fget(trial)

        return property(read, plain.fset)

    with monkeypatch.context() as patched:
        for name in ("params", "user_attrs", "system_attrs", "number", "distributions"):
            patched.setattr(FrozenTrial, name, counted(vars(FrozenTrial)[name]))
        run()
    return count


def work_of(monkeypatch, keeper: Any, case: tuple[str, str], trials: int, frontier: bool) -> int:
    """What some more trials cost in a study that has ``trials``."""
    benchmark.fill(keeper.study, trials, 10, frontier)
    search = benchmark.Search(keeper, case, 100_000, slots=4, epochs=10, frontier=frontier)
    search.manager.recover()
    for _ in range(12):
        search.go_on()
    return looks_at_trials(monkeypatch, lambda: [search.go_on() for _ in range(20)])


SCALED = [("auto", "auto", True), ("tpe", "asha", False)]
MORE = [("random", "look", True), ("auto", "auto", False), ("tpe", "asha", True), ("qmc", "asha", False)]


@pytest.mark.parametrize(
    ("strategy", "stopping", "frontier"),
    [*SCALED, *(pytest.param(*case, marks=pytest.mark.exhaustive) for case in MORE)],
)
def test_a_trial_costs_as_much_in_a_study_of_thousands(monkeypatch, tmp_path, strategy, stopping, frontier):
    """Counted, not timed: in both studies the model takes as many trials as it ever does.

    A pruner takes 500 trials of one value of the frontier, which has four.
    """
    sizes = (3000, 6000) if frontier and stopping == "asha" else (600, 1800)
    small, large = (
        work_of(monkeypatch, benchmark._in_memory(tmp_path), (strategy, stopping), trials, frontier) for trials in sizes
    )
    assert 0 < large < 1.15 * small


@pytest.mark.parametrize("frontier", [pytest.param(False, marks=pytest.mark.exhaustive), True])
def test_in_a_large_study_a_strategy_that_has_seen_it_grow_decides_as_a_new_one(tmp_path, frontier):
    keeper = benchmark._in_memory(tmp_path)
    benchmark.fill(keeper.study, 320, 10, frontier)
    search = benchmark.Search(keeper, ("auto", "auto"), 100_000, slots=3, epochs=10, frontier=frontier)
    search.manager.recover()
    strategy, facts = search.manager._strategy, search.facts
    continued = []
    for _ in range(15):
        for _ in range(6):
            search.go_on()
        number = len(keeper.study.get_trials(deepcopy=False))
        asked = create_trial(state=TrialState.RUNNING, params={}, distributions={})
        asked.number = number
        found = []
        for one in (strategy, make_strategy("auto", "auto", facts)):
            sampler = one.sampler(number)
            space = sampler.infer_relative_search_space(keeper.study, asked)
            paused = one.to_continue(keeper.study)
            found.append((sampler.sample_relative(keeper.study, asked, space), paused and paused.number))
        assert found[0] == found[1]
        continued.append(found[0][1])
    assert any(number is not None for number in continued)
    assert search.manager.finished > 350, "the hyperparameters were fitted again"
