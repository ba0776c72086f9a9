"""When the ranks meet: about once a second, and soon also while steps are slow."""

import threading
import types
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from bigbatch.train_loop import distributed
from bigbatch.train_loop.config import ConfigError
from bigbatch.train_loop.distributed import Meeting, RankMeetings, World

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
