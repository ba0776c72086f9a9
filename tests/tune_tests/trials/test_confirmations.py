"""Confirmations at the end of a search: which trials begin, with which configuration, also after a kill."""

from typing import Any

from ray.tune.search import Searcher

from bigbatch.train_loop.config import TrainConfig
from bigbatch.tune.models.protocol import SearchFacts
from bigbatch.tune.runs.confirm_rule import ConfirmRule
from bigbatch.tune.runs.confirmation import ConfirmationFacts, missing_confirmations
from bigbatch.tune.runs.objective import Objective
from bigbatch.tune.runs.reported import confirmed_trials
from bigbatch.tune.runs.retry import retry_failed
from bigbatch.tune.runs.run import count_ended
from bigbatch.tune.storage.store import StudyStore
from bigbatch.tune.strategies import make_strategy
from bigbatch.tune.trials.bridge import OptunaBridge
from helpers.bridges import EPOCHS, make_bridge, number_of, run_out

TRIALS = 3


def rule(best: int, seeds: int) -> Any:
    facts = ConfirmationFacts(ConfirmRule(best, seeds), seed=3)
    return lambda trials: missing_confirmations(trials, facts)


def bridge_of(store: StudyStore, best: int = 1, seeds: int = 2, **more: Any) -> OptunaBridge:
    bridge = make_bridge(store, trials=TRIALS, confirm=rule(best, seeds), **more)
    bridge.recover()
    return bridge


def search(bridge: OptunaBridge, values: tuple[float, ...] = (0.5, 0.9, 0.7)) -> None:
    """Run the trials of the search to their ends."""
    for number, value in enumerate(values):
        task: Any = bridge.suggest(f"search-{number}")
        assert isinstance(task, dict) and number_of(task) == number and task["config"]["seed"] == 3
        run_out(bridge, f"search-{number}", [value] * EPOCHS)


def test_the_best_trial_is_trained_again_with_fresh_seeds(store: StudyStore) -> None:
    bridge = bridge_of(store)
    search(bridge)
    tasks: list[Any] = [bridge.suggest("c0"), bridge.suggest("c1")]
    assert bridge.suggest("c2") is None
    best = store.study.trials[1]
    for task, seed in zip(tasks, (4, 5), strict=True):
        assert isinstance(task, dict)
        config, confirmed = (TrainConfig.from_dict(c) for c in (task["config"], best.user_attrs["config"]))
        assert config == confirmed.replace_keys({"seed": seed}), "nothing but the seed differs"
        assert store.study.trials[number_of(task)].params == best.params
    run_out(bridge, "c0", [0.8] * EPOCHS)
    run_out(bridge, "c1", [0.6] * EPOCHS)
    assert bridge.suggest("c3") == Searcher.FINISHED
    found = confirmed_trials(store.study.trials, Objective())
    assert found[1].values == (0.8, 0.6)
    assert bridge.finished == count_ended(store.study.trials) == TRIALS


def test_no_confirmation_begins_while_trials_of_the_search_run(store: StudyStore) -> None:
    bridge = bridge_of(store)
    for number in range(2):
        assert isinstance(bridge.suggest(f"search-{number}"), dict)
    run_out(bridge, "search-0", [0.5] * EPOCHS)
    assert isinstance(bridge.suggest("search-2"), dict)
    run_out(bridge, "search-1", [0.9] * EPOCHS)
    assert bridge.suggest("too-early") is None, "trial 2 may still become the best one"
    run_out(bridge, "search-2", [0.95] * EPOCHS)
    task = bridge.suggest("c0")
    assert isinstance(task, dict) and store.study.trials[number_of(task)].user_attrs["confirms"] == 2


def test_a_failed_confirmation_is_repeated_only_on_request_and_with_its_seed(store: StudyStore) -> None:
    bridge = bridge_of(store, seeds=1)
    search(bridge)
    for name in ("c0", "again"):  # its processes die twice
        task: Any = bridge.suggest(name)
        bridge.on_trial_complete(name, error=True)
    assert bridge.suggest("c1") == Searcher.FINISHED and bridge.finished == TRIALS
    retry_failed(store)
    bridge = bridge_of(store, seeds=1)
    repeated = bridge.suggest("c2")
    assert isinstance(repeated, dict) and repeated["config"] == task["config"]
    run_out(bridge, "c2", [0.8] * EPOCHS)
    assert confirmed_trials(store.study.trials, Objective())[1].values == (0.8,)


def test_strategies_do_not_see_confirmations(store: StudyStore) -> None:
    """A longer search proposes what it would have proposed without them."""
    facts = SearchFacts((), TRIALS + 2, EPOCHS)

    def proposal(seeds: int) -> dict[str, Any]:
        folder = store.folder.parent / f"confirmed-{seeds}"
        own = StudyStore.create(folder, folder.name, {}, None)
        bridge = bridge_of(own, best=1, seeds=seeds)
        search(bridge)
        for name in range(seeds):
            assert isinstance(bridge.suggest(f"c{name}"), dict)
            run_out(bridge, f"c{name}", [0.99] * EPOCHS)
        assert len(own.study.trials) == TRIALS + seeds
        strategy, first = make_strategy("tpe", "asha", facts), own.study.trials[0]
        seen = strategy.sampler(40)
        found = seen.sample_relative(own.study, first, seen.infer_relative_search_space(own.study, first))
        assert strategy.is_over(own.study)
        own.close()
        return found

    assert proposal(2) == proposal(0)
