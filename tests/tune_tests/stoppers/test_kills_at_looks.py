"""A driver that is killed around a look: the search makes the same decisions as one that was never killed."""

import itertools
from dataclasses import dataclass

import pytest
from optuna.study import Study
from optuna.trial import FrozenTrial

from bigbatch.tune.models.protocol import Strategy, TrialDecision
from helpers.conducted import Killed, check_whole, curve_search, in_memory, kill_at_write, summary

NAMED = [("curves", "look"), ("random", "asha"), ("random", "hyperband"), ("random", "median")]


@dataclass
class KilledAtLooks:
    """A strategy whose driver dies at some of its looks: before it looks, or before it hears the answer."""

    inner: Strategy
    every: int
    after: bool
    killed: set[tuple[int, int]]
    """Trial and epoch of each look at which it has died. It dies once at each."""
    count: int = 0

    def __post_init__(self) -> None:
        self.sampler, self.to_continue = self.inner.sampler, self.inner.to_continue
        self.is_over = self.inner.is_over

    def look(self, study: Study, trial: FrozenTrial, epoch: int) -> TrialDecision:
        place = trial.number, epoch
        dies = (13 * trial.number + epoch) % self.every == 0 and place not in self.killed
        if dies and not self.after:
            self.killed.add(place)
            raise Killed
        decision = self.inner.look(study, trial, epoch)
        if dies or (self.after and decision != TrialDecision.GO_ON and place not in self.killed):
            self.killed.add(place)
            raise Killed
        return decision


@pytest.mark.parametrize("after", [False, True], ids=["before the look", "before its answer is heard"])
@pytest.mark.parametrize(("strategy", "stopping"), NAMED)
def test_a_look_is_asked_for_again_after_a_kill(strategy, stopping, after, tmp_path):
    whole = curve_search(strategy, stopping, in_memory(tmp_path / "whole")).run()
    check_whole(whole.trials)
    killed: set[tuple[int, int]] = set()
    search = curve_search(strategy, stopping, in_memory(tmp_path / "killed"))
    for _ in range(200):
        search.manager._strategy = KilledAtLooks(search.manager._strategy, 5, after, killed)
        try:
            search.run()
            break
        except Killed:
            search.kill()
    assert summary(search.trials) == summary(whole.trials)
    assert len(killed) > 8, "it was killed at looks"


@pytest.mark.parametrize("every", [2, pytest.param(17, marks=pytest.mark.exhaustive), 34])
@pytest.mark.parametrize(("strategy", "stopping"), NAMED)
def test_a_kill_at_a_write_changes_no_decision(strategy, stopping, every, tmp_path):
    """The driver dies at the second write, the third one after that, the fourth one after that, and so on."""
    whole = curve_search(strategy, stopping, in_memory(tmp_path / "whole")).run()
    search = curve_search(strategy, stopping, in_memory(tmp_path / "killed"))
    for more in itertools.count():
        # A study in memory keeps the parameters of a half-drawn trial: test_conformance.py has a journal.
        kill_at_write(search.store.study._storage, every + more, but=("set_trial_param",))
        try:
            search.run()
            break
        except Killed:
            search.kill()
    assert more > 3 and summary(search.trials) == summary(whole.trials)
