"""A manager and a budget: what is begun, what waits, and that nothing is lost when there is no room."""

from __future__ import annotations

from optuna.trial import TrialState
from ray.tune.search import Searcher

from bigbatch.tune.budget.budget import NO_ROOM_IN_BUDGET, Budget, Limits
from bigbatch.tune.budget.pace import Pace
from bigbatch.tune.models.protocol import TrialDecision
from bigbatch.tune.runs.observer import trial_views
from bigbatch.tune.runs.run import PAUSED_ATTR
from bigbatch.tune.trials.admission import Admission
from helpers.as_they_are import waiting_to_continue
from helpers.bridges import EPOCHS, make_bridge, number_of, record, reopen
from helpers.waiting import SetClock

EPOCH_S = 10.0


def budget_of(device_s: float, clock: SetClock, begun: float = 1000.0, pace: Pace | None = None) -> Budget:
    """One device is held from ``begun`` on."""
    return Budget(
        Limits(device_s=device_s), pace or Pace(), held_s=lambda: clock.now - begun, devices=lambda: 1, clock=clock,
        ending_s=0.0,
    )  # fmt: skip


def trains(bridge, ray_id: str, clock: SetClock, epochs: int, first: int = 1) -> None:
    for epoch in range(first, first + epochs):
        clock.now += EPOCH_S
        bridge.observe(ray_id, {"records": [record(epoch, 0.5, train_s=EPOCH_S)]})


def test_a_trial_that_could_not_end_in_time_waits_in_the_study_and_a_larger_budget_begins_it(store):
    clock = SetClock(1000.0)
    bridge = make_bridge(store, trials=9, admission=Admission(budget := budget_of(95.0, clock)))
    assert number_of(bridge.suggest("a")) == 0
    trains(bridge, "a", clock, EPOCHS)
    assert number_of(bridge.suggest("b")) == 1, "40 s of 95 are used, and a run takes 40"
    trains(bridge, "b", clock, 2)
    assert bridge.suggest("c") is None, "60 are used, and one runs"
    size = (store.folder / "optuna.journal").stat().st_size
    for _ in range(50):
        assert bridge.suggest("c") is None
    assert (store.folder / "optuna.journal").stat().st_size == size, "asking again writes nothing"
    trains(bridge, "b", clock, 2, first=3)
    assert bridge.suggest("c") == Searcher.FINISHED and budget.refused == NO_ROOM_IN_BUDGET
    trials = store.study.trials
    assert [t.state for t in trials] == [TrialState.COMPLETE, TrialState.COMPLETE, TrialState.WAITING]
    assert bridge.finished == 2 and [view.number for view in trial_views(trials)] == [0, 1], "it has not begun"
    store = reopen(store)
    again = make_bridge(store, trials=9, admission=Admission(budget_of(300.0, clock)))
    again.recover()
    assert number_of(again.suggest("d")) == 2
    assert store.study.trials[2].params == trials[2].params and "config" in store.study.trials[2].user_attrs
    store.close()


def test_after_a_trial_has_ended_early_the_next_one_is_asked_about_again(store):
    """On a cluster of others a running trial is a promise; when it fails, its hours are free."""
    clock, pace = SetClock(1000.0), Pace()
    budget = Budget(Limits(device_s=100.0), pace, held_s=lambda: 0.0, devices=lambda: None, clock=clock, ending_s=0.0)
    bridge = make_bridge(store, trials=9, concurrency=9, admission=Admission(budget))
    bridge.suggest("a")
    trains(bridge, "a", clock, 1)  # 30 s to go
    assert bridge.suggest("b") is not None
    assert bridge.suggest("c") is None, "30 + 40 are promised"
    bridge.fail("b", "a process died")
    assert bridge.suggest("c") is not None


class PauseThenContinue:
    """Pauses trial 0 after its first epoch and continues it whenever it is asked."""

    def __init__(self, proposer) -> None:
        self.sampler = proposer.sampler

    def look(self, study, trial, epoch):
        return TrialDecision.PAUSE if trial.number == 0 else TrialDecision.GO_ON

    def to_continue(self, study, fits=None, lasts=None):
        paused = waiting_to_continue(study.get_trials(deepcopy=False))
        return paused[0] if paused and len(study.trials) > 2 else None

    def is_over(self, study):
        return True


def test_a_continuation_is_begun_where_a_new_trial_does_not_fit(store):
    clock = SetClock(1000.0)
    bridge = make_bridge(store, trials=9, admission=Admission(budget_of(85.0, clock)))
    bridge._strategy = PauseThenContinue(bridge._strategy)
    bridge.suggest("a")
    bridge._pause_files = {"a": store.folder / "pause"}
    trains(bridge, "a", clock, 1)
    bridge.on_trial_complete("a")
    assert store.study.trials[0].user_attrs[PAUSED_ATTR] == 1
    bridge.suggest("b")
    trains(bridge, "b", clock, EPOCHS)  # 35 s are left: too few for 40, enough for the 30 of trial 0
    assert number_of(bridge.suggest("c")) == 3
    trials = store.study.trials
    assert trials[3].user_attrs["continues"] == 0 and trials[3].params == trials[0].params
    assert trials[2].state == TrialState.WAITING, "the new one waits"
    bridge.observe("c", {"records": [record(1, 0.5, train_s=EPOCH_S)]})  # its past: it takes no time again
    trains(bridge, "c", clock, 3, first=2)
    assert store.study.trials[3].state == TrialState.COMPLETE
    assert bridge.suggest("d") == Searcher.FINISHED


def test_a_trial_goes_on_where_it_could_not_be_continued_after_a_pause(store):
    clock = SetClock(1000.0)
    bridge = make_bridge(store, trials=9, admission=Admission(budget := budget_of(45.0, clock)))
    bridge._strategy = PauseThenContinue(bridge._strategy)
    bridge.suggest("a")
    clock.now += 9.0  # it takes so long to start, and would again
    trains(bridge, "a", clock, 1)
    assert not bridge._live["a"].pausing, "26 s are left for three epochs of 10 s and a start"
    assert budget.refused is None and len(bridge._live) == 1, "its own question leaves no trace"
    trains(bridge, "a", clock, 2, first=2)
    assert store.study.trials[0].state == TrialState.RUNNING and PAUSED_ATTR not in store.study.trials[0].user_attrs
