"""Several drivers on one study in a database: nothing is lost and nothing doubled, also when one of them dies."""

import itertools
import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState
from sqlalchemy import text

from bigbatch.train_loop.config import ConfigError
from bigbatch.tune.models.protocol import TrialDecision
from bigbatch.tune.runs.run import CONTINUES_ATTR, OWNER_ATTR, PAUSED_ATTR
from bigbatch.tune.storage import drivers
from bigbatch.tune.storage.database import study_lock
from bigbatch.tune.storage.drivers import entries
from bigbatch.tune.storage.store import StudyStore
from bigbatch.tune.storage.summary import summarize
from helpers.bridges import EPOCHS, make_bridge, number_of, record, run_out
from helpers.conducted import check_whole, curve_search
from helpers.simulated_search import SimulatedSearch

pytestmark = pytest.mark.without_ray


def opened(folder: Path, url: str, name: str = "s") -> StudyStore:
    """A driver in a folder of its own, as the command line opens one."""
    store = StudyStore.open(folder, url) if folder.exists() else StudyStore.create(folder, name, {}, url, join=True)
    store._pulse.close()
    return store


def vanish(store: StudyStore) -> None:
    """The driver's process is gone, and has said nothing. Only the folder's lease ends, as the kernel does it."""
    store._hold.close()
    store._hold = None


def age_heartbeats(store: StudyStore, seconds: int) -> None:
    with store.drivers._storage.engine.begin() as connection:
        aged = f"UPDATE trial_heartbeats SET heartbeat = datetime(heartbeat, '-{seconds} seconds')"
        connection.execute(text(aged))


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'studies.db'}"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    now = [1000.0]
    monkeypatch.setattr(drivers.Drivers, "clock", staticmethod(lambda: now[0]))

    def passes(seconds: int, *living: StudyStore) -> None:
        """So much time, in which the living drivers give signs of life; and what Optuna noted before is as old."""
        if living:
            age_heartbeats(living[0], seconds)
        for _ in range(seconds):
            now[0] += 1.0
            for store in living:
                store.drivers.beat()

    return passes


@pytest.fixture
def two(clock: Callable[..., None], url: str, tmp_path: Path) -> Iterator[list[StudyStore]]:
    """Two drivers of one study, whose folders are ``a`` and ``b``."""
    stores = [opened(tmp_path / name / "s", url) for name in "ab"]
    yield stores
    for store in stores:
        store.close()


def test_two_drivers_make_as_many_trials_as_one_would(url, tmp_path):
    stores = [opened(tmp_path / name / "s", url) for name in "ab"]
    bridges = [make_bridge(store, trials=5, concurrency=2) for store in stores]
    for bridge in bridges:
        bridge.recover()
    numbers: list[int] = []
    over: set[int] = set()
    for turn in itertools.count():
        which = turn % 2
        if len(over) == 2:
            break
        answer = bridges[which].suggest(f"r{turn}")
        if isinstance(answer, dict):
            numbers.append(number_of(answer))
            assert not run_out(bridges[which], f"r{turn}", [0.1, 0.2, 0.3, 0.4])
        else:
            over.add(which)
    assert sorted(numbers) == list(range(5))
    trials = stores[0].study.get_trials(deepcopy=False)
    assert [t.state for t in trials] == [TrialState.COMPLETE] * 5
    assert {t.user_attrs[OWNER_ATTR].partition(".")[0] for t in trials} == {s.drivers.key for s in stores}
    assert all(bridge.finished == 5 for bridge in bridges)
    for store in stores:
        store.close()


def test_a_driver_without_work_takes_over_the_trial_of_one_that_dies(two, clock):
    a, b = two
    first, second = make_bridge(a, trials=2), make_bridge(b, trials=2)
    first.suggest("1")
    second.suggest("2")
    clock(30, a, b)
    vanish(a)
    run_out(second, "2", [0.1] * EPOCHS)
    assert second.suggest("3") is None, "the other one lived a moment ago, which proves nothing"
    clock(70, b)
    task = second.suggest("5")
    assert isinstance(task, dict) and number_of(task) == 0
    run_out(second, "5", [0.1] * EPOCHS)
    assert second.suggest("6") == "FINISHED" and second.finished == 2


def test_recovery_leaves_the_trials_of_a_living_driver_and_takes_those_of_a_dead_one(two, clock):
    a, b = two
    first, second = make_bridge(a, trials=3), make_bridge(b, trials=3)
    first.suggest("1")
    first.observe("1", {"records": [record(1, 0.25)]})
    params = dict(a.study.trials[0].params)
    for _ in range(8):
        clock(20, a, b)
        second.recover()
        assert b.study.trials[0].state == TrialState.RUNNING
    checkpoint = a.checkpoint_folder(0)
    checkpoint.mkdir(parents=True)
    (checkpoint / "step").write_text("17")
    vanish(a)
    clock(50, b)
    second.recover()
    assert b.study.trials[0].state == TrialState.RUNNING, "it may live"
    clock(30, b)
    task = second.suggest("2")
    assert isinstance(task, dict) and number_of(task) == 0
    assert (b.checkpoint_folder(0) / "step").read_text() == "17" and checkpoint.exists()
    run_out(second, "2", [0.25, 0.3, 0.3, 0.5])
    trial = b.study.trials[0]
    assert (trial.state, trial.value, dict(trial.params)) == (TrialState.COMPLETE, 0.5, params)
    assert trial.user_attrs["attempts"] == 2


def test_a_driver_that_only_seemed_dead_lets_its_trial_go(two, clock):
    _, b = two
    first, second = (make_bridge(store, trials=1) for store in two)
    first.suggest("1")
    first.observe("1", {"records": [record(1, 0.1)]})
    clock(90, b)
    assert isinstance(second.suggest("2"), dict)
    second.observe("2", {"records": [record(2, 0.2)]})
    assert first.observe("1", {"records": [record(2, 0.9)]}), "it stops the trial's processes"
    assert first.live == 0
    first.release()
    run_out(second, "2", [0.1, 0.2, 0.3, 0.4])
    trial = b.study.trials[0]
    assert trial.state == TrialState.COMPLETE and list(trial.intermediate_values.values()) == [0.1, 0.2, 0.3, 0.4]
    assert len(b.study.trials) == 1


def test_who_was_away_takes_nobody_for_dead(two, clock):
    a, b = two
    first, second = make_bridge(a, trials=3), make_bridge(b, trials=3)
    first.suggest("1")
    clock(15, a, b)
    age_heartbeats(b, 300)  # a database that was away
    clock(300)
    b.drivers.beat()
    second.recover()
    task = second.suggest("2")
    assert isinstance(task, dict) and number_of(task) == 1 and b.study.trials[0].state == TrialState.RUNNING


def test_who_was_away_takes_nobody_for_dead_before_its_own_next_sign_of_life_either(two, clock):
    a, b = two
    first, second = make_bridge(a, trials=3), make_bridge(b, trials=3)
    first.suggest("1")
    clock(15, a, b)
    age_heartbeats(b, 300)
    clock(300)
    second.recover()  # the driver's thread may be faster than the one that beats
    assert b.study.trials[0].state == TrialState.RUNNING


def test_a_driver_that_is_killed_as_it_begins_a_trial_leaves_one_that_others_find(two, clock, monkeypatch):
    a, b = two
    first, second = make_bridge(a, trials=3), make_bridge(b, trials=3)

    def killed(trial_id: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(a.drivers._storage, "record_heartbeat", killed)
    with pytest.raises(KeyboardInterrupt):
        first.suggest("1")
    vanish(a)
    clock(200, b)
    second.recover()
    assert b.study.trials[0].state == TrialState.WAITING


def test_a_restarted_driver_has_its_own_trials_back_at_once(two, url, tmp_path):
    a, b = two
    first, second = make_bridge(a, trials=4), make_bridge(b, trials=4)
    first.suggest("1")
    second.suggest("2")
    vanish(a)
    again = opened(tmp_path / "a" / "s", url)
    assert again.drivers is not None and a.drivers is not None and again.drivers.key == a.drivers.key
    make_bridge(again, trials=4).recover()
    assert [t.state for t in b.study.trials] == [TrialState.WAITING, TrialState.RUNNING]
    again.close()


def test_both_want_to_continue_the_same_paused_trial(two):
    a, b = two
    first, second = make_bridge(a, trials=2), make_bridge(b, trials=2)
    first.suggest("1")
    live = first._live["1"]
    first.observe("1", {"records": [record(1, 0.5)]})
    live.pausing = True
    first.ended("1")
    assert a.study.trials[0].user_attrs[PAUSED_ATTR] == 1
    a.checkpoint_folder(0).mkdir(parents=True)
    (a.checkpoint_folder(0) / "step").write_text("9")

    def wish(study: optuna.Study, fits: object = None, lasts: object = None) -> object:
        done = {t.user_attrs.get(CONTINUES_ATTR) for t in study.get_trials(deepcopy=False)}
        return None if 0 in done else study.get_trials(deepcopy=False)[0]

    for bridge in (first, second):
        bridge._strategy = type("Wish", (), {
            "to_continue": staticmethod(wish), "is_over": staticmethod(lambda study: wish(study) is None),
            "sampler": bridge._strategy.sampler, "look": staticmethod(lambda *a: TrialDecision.GO_ON),
        })()  # fmt: skip
    tasks = [second.suggest("2"), first.suggest("3")]
    assert sorted(number_of(task) for task in tasks) == [1, 2]
    assert (b.checkpoint_folder(1) / "step").read_text() == "9", "the checkpoint came with it"
    assert [t.user_attrs.get(CONTINUES_ATTR) for t in a.study.trials] == [None, 0, None]


def test_the_budget_is_the_sum_of_all_drivers(two, url, tmp_path, clock):
    a, b = two
    ticks = [0.0]
    for store in (a, b):
        store.ledger._clock = lambda: ticks[0]
        store.ledger._at = 0.0
        store.ledger.hold(4)
    a.ledger.begin(0, 2)
    ticks[0] = 100.0
    clock(25, a, b)
    assert a.ledger.held_s == b.ledger.held_s == 800.0
    assert b.ledger.trial_s(0) == 200.0 and b.ledger.devices_elsewhere == 4
    assert a.ledger.used_here().held_s == 400.0
    vanish(a)
    clock(90, b)
    assert b.ledger.held_s == 800.0, "what the dead one held is still counted"
    b.close()
    again = opened(tmp_path / "b" / "s", url)
    assert again.ledger.held_s == 800.0, "and by the next session, once"
    again.close()
    opened(tmp_path / "a" / "s", url).close()
    assert summarize(tmp_path / "a" / "s").elsewhere_s == 400.0, (
        "known to `show` from a session that begins nothing too"
    )


def test_a_driver_that_hangs_in_its_turn_stops_nobody_for_long(two, monkeypatch):
    a, b = two
    monkeypatch.setattr("bigbatch.tune.storage.database.TRY_FOR_S", 0.1)
    other = make_bridge(b, trials=3)
    with study_lock(a.drivers._storage, "s", 0.1) as mine:
        assert mine and other.suggest("1") is None
        with study_lock(a.drivers._storage, "another", 0.1) as theirs:
            assert not theirs, "SQLite has one lock for all studies of a file"
    assert isinstance(other.suggest("2"), dict)


def test_a_study_that_is_left_by_a_refusal_stays(url, tmp_path):
    a = opened(tmp_path / "a" / "s", url)
    make_bridge(a, trials=3).suggest("1")

    def refuse(study: optuna.Study) -> None:
        raise ConfigError("another space")

    with pytest.raises(ConfigError, match="another space"):
        StudyStore.create(tmp_path / "b" / "s", "s", {}, url, refuse, join=True)
    assert not (tmp_path / "b" / "s").exists() and len(a.study.trials) == 1
    assert list(entries(a.study.user_attrs)) == [a.drivers.key]
    with pytest.raises(ConfigError, match="--join"):
        StudyStore.create(tmp_path / "b" / "s", "s", {}, url)
    b = opened(tmp_path / "b" / "s", url)
    b.discard()
    assert not (tmp_path / "b" / "s").exists() and len(a.study.trials) == 1
    a.close()


def interleaved(url: str, folder: Path, seed: int, steps: int, clock: Callable[..., None]) -> SimulatedSearch:
    """Two drivers in turns that a die chooses. One of them dies after ``steps`` steps, and its trials are taken."""
    dice = random.Random(seed)
    searches = [curve_search("curves", "look", partial(opened, folder / name / "s", url)) for name in "ab"]
    for _ in range(steps):
        clock(1, *(s.store for s in searches))
        dice.choice(searches).step()
    vanish(searches[0].store)
    clock(90, searches[1].store)
    return searches[1].run()


@pytest.mark.parametrize("steps", [11, pytest.param(35, marks=pytest.mark.slow)])
def test_a_search_of_two_drivers_one_of_which_dies_is_whole(steps, url, tmp_path, clock):
    survivor = interleaved(url, tmp_path, steps, steps, clock)
    check_whole(survivor.trials)
    survivor.store.close()
