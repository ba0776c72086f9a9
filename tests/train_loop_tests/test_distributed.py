"""When the ranks meet: about once a second, and soon also while steps are slow."""

import dataclasses
import itertools
import pickle
import threading
import types
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import torch

from bigbatch.train_loop import distributed
from bigbatch.train_loop.config import ConfigError
from bigbatch.train_loop.distributed import COLLECTIVE_VARIABLE, Meeting, RankMeetings, World, collective_timeout
from bigbatch.train_loop.errors import TrainingStopped
from bigbatch.train_loop.loop import assembly
from bigbatch.train_loop.loop.step import TrainStep
from bigbatch.train_loop.reporter import ListReporter
from helpers.loop_references import run
from helpers.tiny_training import CONFIG, changed, install, plain_model

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


class OneOfTwo(World):
    """One of two ranks, with nobody at the other end: the other one says ``proposal`` in the last place."""

    proposal = 0.0

    def max(self, values: Sequence[float]) -> list[float]:
        return [max(a, b) for a, b in zip(values, [*([0.0] * (len(values) - 1)), self.proposal], strict=True)]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that the meetings see."""
    now = [0.0]
    monkeypatch.setattr(distributed, "time", types.SimpleNamespace(monotonic=lambda: now[0]))
    return now


def meetings(world: World, clock: list[float], step_s: Sequence[float]) -> list[int]:
    """The steps, 1-based, after which the ranks meet, where steps take ``step_s``."""
    heartbeat, met = RankMeetings(world), []
    for step, seconds in enumerate(step_s, 1):
        clock[0] += seconds
        if heartbeat.due():
            assert heartbeat.meet([float(step), -1.0])[0] == step
            met.append(step)
    return met


def test_ranks_meet_about_once_a_second_when_rank_0_says(clock: list[float]) -> None:
    assert meetings(World(0, 1, CPU), clock, [0.1] * 5) == [1, 2, 3, 4, 5]
    tenths = [0.0999] * 45
    assert meetings(OneOfTwo(0, 2, CPU), clock, tenths) == [1, 3, 7, 15, 25, 35, 45]
    assert meetings(World(0, 1, GPU), clock, tenths) == [1, 3, 7, 15, 25, 35, 45]
    assert meetings(World(0, 1, GPU), clock, [3.0] * 4) == [1, 2, 3, 4]
    follower = OneOfTwo(1, 2, CPU)
    object.__setattr__(follower, "proposal", 7.0)
    assert meetings(follower, clock, tenths[:20]) == [1, 8, 15]


WARMING_UP = [8.0, 0.02, 5.0, 5.0, 0.02, 3.0, 3.0, 3.0, *[0.1] * 27]
"""Seconds of the first steps on a GPU: the loader starts, cuDNN tunes, torch compiles. One fast step says nothing."""


def test_several_ranks_meet_soon_also_while_the_first_steps_are_slow(clock: list[float]) -> None:
    met = meetings(OneOfTwo(0, 2, GPU), clock, WARMING_UP)
    assert met[:6] == [1, 2, 4, 5, 7, 8], "never more than one slow step is in between"
    assert met[6:10] == [9, 11, 15, 23], "twice as many steps each time, until a second is full"


@pytest.mark.parametrize("asked_at", [0.5, 9.0, 20.0, 28.5])
def test_a_stop_is_met_within_a_second_of_steps_also_while_the_first_are_slow(
    asked_at: float, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU, by the clock of the steps: at the first step that ends a second after the request, if not before."""
    built = install(monkeypatch.setattr, plain_model)
    monkeypatch.setattr(assembly, "RankMeetings", lambda world: RankMeetings(dataclasses.replace(world, device=GPU)))
    real = TrainStep.update

    def update(step: TrainStep, *arguments: Any) -> bool:
        clock[0] += WARMING_UP[len(built.rates)]
        return real(step, *arguments)

    monkeypatch.setattr(TrainStep, "update", update)
    reporter = ListReporter()
    reporter.stop_requested = lambda: clock[0] >= asked_at  # type: ignore[attr-defined]
    with pytest.raises(TrainingStopped):
        run(changed(CONFIG, epochs=1, global_size=2, micro_size=2, precise_bn="off"), reporter=reporter)
    ends = list(itertools.accumulate(WARMING_UP))
    latest = next(number for number, end in enumerate(ends, 1) if end >= asked_at + 1.0)
    assert len(built.rates) <= latest
    assert ends[len(built.rates) - 1] >= asked_at


@pytest.mark.parametrize("ranks", [2, 48])
def test_ranks_meet_by_as_many_keys_as_ever(ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rank a thread, at torch's own store: all hear the first one, which goes on last, and its refusal."""
    stores = [torch.distributed.HashStore() for _ in range(2)]
    here, refused = threading.local(), list[str]()
    monkeypatch.setattr(distributed.dist, "rendezvous", lambda _: iter([(stores[here.meeting], here.rank, ranks)]))

    def look() -> str:
        if here.meeting:
            raise ConfigError("a rule; a value. A fix.")
        return f"what rank {here.rank} sees"

    def one(meeting: int, rank: int) -> str:
        here.meeting, here.rank = meeting, rank
        try:
            return Meeting().of_first(look)
        except ConfigError as error:
            refused.append(str(error))
            return ""

    with ThreadPoolExecutor(ranks) as pool:
        told = list(pool.map(lambda rank: one(0, rank), range(ranks)))
        list(pool.map(lambda rank: one(1, rank), range(ranks)))
    assert told == ["what rank 0 sees"] * ranks
    assert refused == ["a rule; a value. A fix."] * ranks
    assert [store.num_keys() for store in stores] == [3, 3]


@pytest.mark.parametrize(("ranks", "pause_s"), [(2, 0.2), (200, 0.2), (1024, 1.024)])
def test_the_questions_of_waiting_ranks_do_not_grow_with_them(ranks, pause_s, monkeypatch):
    store, pauses = torch.distributed.HashStore(), list[float]()
    monkeypatch.setattr(distributed.dist, "rendezvous", lambda _: iter([(store, 1, ranks)]))

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            meeting._store.set("bigbatch/first", pickle.dumps(("seen", None)))

    monkeypatch.setattr(distributed.time, "sleep", sleep)
    meeting = Meeting()
    assert meeting.of_first(lambda: "not asked") == "seen"
    assert pauses == [pytest.approx(pause_s)] * 3


def test_the_patience_of_collectives_can_be_set() -> None:
    assert collective_timeout({}) is None
    assert collective_timeout({COLLECTIVE_VARIABLE: "90"}) == timedelta(seconds=90)
    for wrong in ("0", "nan", "1e9", "ten"):
        with pytest.raises(ConfigError, match=f"is seconds, 1 to 604800; got '{wrong}'. Write e.g. 1800"):
            collective_timeout({COLLECTIVE_VARIABLE: wrong})
