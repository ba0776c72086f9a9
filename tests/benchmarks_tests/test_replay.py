"""Replays: simulated time against times by hand, what becomes of a pause, and that nothing but the seed matters."""

from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from invented_curves import invented_table
from optuna.samplers import BaseSampler, RandomSampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState
from replay.curves import CurveTable, RecordedCurve
from replay.search import replay, replay_named
from replay.stand_ins import SimulatedClock, StartedTrial, run_slots

from bigbatch.tune.models.protocol import Fits, Lasts, SearchFacts, TrialDecision
from bigbatch.tune.runs.run import PAUSED_ATTR
from helpers.lone_studies import waiting_to_continue


def curve(lr: float, values: list[float], epoch_s: float = 10.0, epochs: int = 0, kind: str = "a") -> RecordedCurve:
    end = epochs or len(values)
    seconds = tuple(epoch_s * (i + 1) for i in range(len(values)))
    return RecordedCurve({"lr": lr, "kind": kind}, tuple(values), seconds, end, diverged=end > len(values))


TABLE = CurveTable(
    "by hand",
    (
        curve(0.1, [0.1, 0.2, 0.3]),
        curve(0.2, [0.2, 0.5, 0.6], epoch_s=7),
        curve(0.3, [0.1], epochs=3),
        curve(0.4, [0.3, 0.3, 0.4], kind="b"),
    ),
)


@dataclass
class InOrder:
    """A driver that runs the rows in order. It pauses each after its first epoch and continues when all have begun."""

    rows: int
    pauses: bool = False
    begun: int = 0
    paused: list[int] = field(default_factory=list)
    seen: list[tuple[int, int, float | None]] = field(default_factory=list)

    def start(self) -> StartedTrial | None:
        if self.begun < self.rows:
            self.begun += 1
            return StartedTrial(self.begun - 1, self.begun - 1)
        return StartedTrial(100, self.paused.pop(0), epoch=1) if self.paused else None

    def observe(self, number: int, epoch: int, value: float | None) -> bool:
        self.seen.append((number, epoch, value))
        if self.pauses and epoch == 1 and value is not None:
            self.paused.append(number)
            return True
        return value is None or epoch == 3


def times(driver: InOrder, slots: int, until_s: float = 1e9, resume_s: float = 5.0) -> list[tuple[float, int, int]]:
    ends = run_slots(driver, TABLE, slots, SimulatedClock(), until_s, resume_s)
    return [(end.at_s, end.row, end.epoch) for end in ends]


def test_two_slots_train_beside_each_other_in_simulated_time() -> None:
    met = times(InOrder(3), slots=2)
    row_0 = [(10, 0, 1), (20, 0, 2), (30, 0, 3)]
    row_1 = [(7, 1, 1), (14, 1, 2), (21, 1, 3)]
    assert TABLE.epoch_s == pytest.approx((10 + 7 + 10 + 10) / 4)
    row_2 = [(31, 2, 1), (31 + TABLE.epoch_s, 2, 2)]  # begins when row 1 ends; when it diverged is not recorded
    assert met == sorted(row_0 + row_1 + row_2)


def test_a_continued_trial_waits_for_its_processes_and_repeats_no_epoch() -> None:
    driver = InOrder(2, pauses=True)
    assert times(driver, slots=1) == [(10, 0, 1), (17, 1, 1), (32, 0, 2), (42, 0, 3), (54, 1, 2), (61, 1, 3)]
    assert times(InOrder(2), slots=1, until_s=25) == [(10, 0, 1), (20, 0, 2)], "the search ends in between"


@dataclass(frozen=True)
class PauseOnce:
    """Random proposals; pauses after the first epoch, and continues the best waiting trial at every third start."""

    facts: SearchFacts
    studies: list[Study] = field(default_factory=list)

    def sampler(self, number: int) -> BaseSampler:
        return RandomSampler(seed=number)

    def look(self, study: Study, trial: FrozenTrial, epoch: int) -> TrialDecision:
        self.studies[:] = [study]
        return TrialDecision.PAUSE if epoch == 1 and "continues" not in trial.user_attrs else TrialDecision.GO_ON

    def to_continue(self, study: Study, fits: Fits | None = None, lasts: Lasts | None = None) -> FrozenTrial | None:
        trials = study.get_trials(deepcopy=False)
        waiting = waiting_to_continue(trials)
        done = sum(t.state.is_finished() for t in trials)
        return max(waiting, key=lambda t: t.intermediate_values[1]) if waiting and done % 3 == 0 else None

    def is_over(self, study: Study) -> bool:
        return not waiting_to_continue(study.get_trials(deepcopy=False))


def test_a_paused_trial_goes_on_with_its_row_its_past_and_its_cost() -> None:
    table = invented_table("wide", 1, rows=40)
    made: list[PauseOnce] = []

    def make(facts: SearchFacts) -> PauseOnce:
        made.append(PauseOnce(facts))
        return made[0]

    found = replay(table, make, slots=2, seed=0, budget_h=1e9, trials=12)
    trials = made[0].studies[0].trials
    paused = [t for t in trials if PAUSED_ATTR in t.user_attrs]
    continued = {t.user_attrs["continues"]: t for t in trials if "continues" in t.user_attrs}
    assert paused and continued
    for number, trial in continued.items():
        assert trial.params == trials[number].params
        assert trial.intermediate_values[1] == trials[number].intermediate_values[1], "it sends its past again"
        assert trial.state in (TrialState.COMPLETE, TrialState.FAIL)
    assert len({str(sorted(t.params.items())) for t in trials}) == 12, "a continuation counts in the paused one's place"
    assert found.begun == 12
    whole = Counter(epoch.trial for epoch in found.epochs)
    for number, trial in continued.items():
        if trial.state == TrialState.COMPLETE:
            (row,) = [c for c in table.curves if c.params == trials[number].params]
            assert whole[number] == 1 and whole[trial.number] == row.epochs - 1, "no epoch is paid twice"


def test_every_row_runs_once_and_hours_are_those_of_the_curves() -> None:
    table = invented_table("projected", 0, rows=30)
    found = replay_named(table, "random", "none", 1, 3)
    done = [e for e in found if e.finished]
    assert len(done) == sum(not c.diverged for c in table.curves)
    assert sorted(e.value for e in done if e.value) == sorted(c.values[-1] for c in table.curves if not c.diverged)
    assert found[-1].hours == pytest.approx(sum(c.seconds[-1] for c in table.curves) / 3600)
    assert all(a.hours <= b.hours for a, b in pairwise(found))
    failed = [e for e in found if e.value is None]
    assert len(failed) == sum(c.diverged for c in table.curves) and not any(e.finished for e in failed)


@pytest.mark.parametrize(("strategy", "stopping"), [("tpe", "asha"), ("curves", "none")])
def test_the_seed_alone_decides(strategy: str, stopping: str) -> None:
    table = invented_table("projected", 4, rows=40)
    one, again, other = (replay_named(table, strategy, stopping, 4, seed, 10.0) for seed in (1, 1, 2))
    assert one == again and one != other
    assert max(epoch.hours for epoch in one) <= 10.0
    assert {frozenset(e.parameters.items()) for e in one} <= {frozenset(c.params.items()) for c in table.curves}


def test_a_replay_begins_no_run_that_its_budget_cannot_pay_as_a_search_does() -> None:
    """Runs of 30 s on 2 slots and 200 slot seconds: three each fit, a fourth would need 240."""
    rows = [curve(0.1 * i, [0.1, 0.2, 0.3], kind="ab"[i % 2]) for i in range(1, 13)]
    table = CurveTable("equal runs", tuple(rows))
    for seed in range(3):
        found = replay_named(table, "random", "none", 2, seed, 200 / 3600)
        assert sorted(Counter(e.trial for e in found).values()) == [3] * 6 and sum(e.finished for e in found) == 6
    assert len(replay_named(table, "random", "none", 2, 0, 180 / 3600)) == 18, "what ends with the budget is inside"
    assert len(replay_named(table, "random", "none", 2, 0, 179 / 3600)) == 12
