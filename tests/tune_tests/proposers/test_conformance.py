"""What every strategy with every stopping keeps on every storage, driven by the real manager."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
from optuna.trial import TrialState

from bigbatch.tune.models.names import CAPABILITIES, STOPPINGS
from bigbatch.tune.runs.run import CONTINUES_ATTR
from bigbatch.tune.storage.store import StudyStore
from helpers.conducted import Killed, Search, check_whole, in_journal, in_memory, kill_at_write, same_after_kills
from helpers.waiting import wait_until

pytestmark = pytest.mark.without_ray

NAMED = [name for name in STOPPINGS if name != "auto"]
SOME = [(strategy, "look") for strategy in CAPABILITIES] + [("curves", stopping) for stopping in NAMED[1:]]
"""Every name at least once."""
ALL = [
    pair if pair in SOME else pytest.param(*pair, marks=pytest.mark.exhaustive)
    for pair in itertools.product(CAPABILITIES, NAMED)
]


@pytest.mark.parametrize(("strategy", "stopping"), ALL)
def test_a_search_in_memory_makes_the_same_decisions_after_kills_between_any_two_steps(strategy, stopping, tmp_path):
    trials = same_after_kills(strategy, stopping, in_memory, tmp_path)
    tried = [t for t in trials if CONTINUES_ATTR not in t.user_attrs]
    assert len({str(t.params) for t in tried}) == len(tried), "trials that run at the same time differ"
    for trial in trials:
        lamb = trial.params["optimizer"] == "lamb"
        assert ("one_minus_beta1" in trial.params, "one_minus_momentum" in trial.params) == (lamb, not lamb)
    assert {t.params["global_batch_size"] for t in trials} == {128, 256, 512, 1024}
    if stopping == "look":
        done = {t.params["global_batch_size"] for t in trials if t.state == TrialState.COMPLETE}
        paused = {t.params["global_batch_size"] for t in trials if t.state == TrialState.PRUNED}
        assert done == paused | done and any(CONTINUES_ATTR in t.user_attrs for t in trials)


@pytest.mark.parametrize(
    ("strategy", "stopping"), [SOME[0], *(pytest.param(*pair, marks=pytest.mark.exhaustive) for pair in SOME[1:])]
)
def test_a_search_in_a_journal_makes_the_same_decisions_after_kills(strategy, stopping, tmp_path):
    same_after_kills(strategy, stopping, in_journal, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "stopping"), [("curves", "look"), pytest.param("tpe", "asha", marks=pytest.mark.exhaustive)]
)
def test_a_search_in_postgresql_makes_the_same_decisions_after_kills(strategy, stopping, postgres, tmp_path):
    psycopg = pytest.importorskip("psycopg", reason="needs the database's driver: pip install 'psycopg[binary]'")

    def answers() -> bool:
        try:
            psycopg.connect(postgres.replace("+psycopg", "")).close()
        except psycopg.OperationalError:  # its port is open before it has started up
            return False
        return True

    wait_until(answers, "PostgreSQL does not start up")

    def in_database(folder: Path) -> Callable[[], StudyStore]:
        return lambda: (
            StudyStore.open(folder, postgres)
            if folder.exists()
            else StudyStore.create(folder, folder.name, {}, postgres)
        )

    same_after_kills(strategy, stopping, in_database, tmp_path)


def interrupted_in_writes(strategy: str, stopping: str, open_store: Callable[[], StudyStore], every: int) -> Search:
    """A search whose driver dies in the middle of a write, again and again, each time after some more writes."""
    search, writes = Search(strategy, stopping, open_store), every
    for _ in range(200):
        kill_at_write(search.store.study._storage, writes)
        try:
            search.run()
            return search
        except Killed:
            pass
        search.kill()
        search.steps, writes = 0, every + (writes + 7) % 23
    raise AssertionError("it does not come to an end")


@pytest.mark.parametrize("every", [29, pytest.param(42, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("stopping", NAMED)
def test_a_driver_that_dies_in_the_middle_of_writes_loses_and_doubles_nothing(stopping, every, tmp_path):
    search = interrupted_in_writes("curves", stopping, in_memory(tmp_path / "s"), every)
    check_whole(search.trials)
    assert all(t.state.is_finished() for t in search.trials)
    search.store.close()


@pytest.mark.parametrize("strategy", CAPABILITIES)
def test_seeds_differ(strategy, tmp_path):
    searches = [Search(strategy, "none", in_memory(tmp_path / str(seed)), seed).run(until=40) for seed in (3, 4)]
    one, other = ([t.params for t in search.trials] for search in searches)
    assert one != other and one[1:3] != other[1:3]
    for search in searches:
        search.store.close()
