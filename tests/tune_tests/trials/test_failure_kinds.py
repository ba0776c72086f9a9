"""A failed process never looks like bad hyperparameters: only a diverged trial says something about them."""

import itertools
import random
from typing import Any

import pytest
import ray
from optuna.trial import TrialState
from ray.tune.search import Searcher

from bigbatch.train_loop.errors import FailureKind
from bigbatch.tune.models.protocol import SearchFacts
from bigbatch.tune.runs.retry import may_need_checkpoint
from bigbatch.tune.runs.run import DIVERGED_ATTR, FAILURE_ATTR, has_diverged
from bigbatch.tune.runs.verdict import Verdict
from bigbatch.tune.search.tuner import MemoryKill, StopScheduler
from bigbatch.tune.trials.bridge import OptunaBridge
from bigbatch.tune.trials.live_trials import EqualFailures
from helpers.bridges import EPOCHS, make_bridge, number_of, record, reopen
from helpers.lone_studies import curves_of

FACTS = SearchFacts((), 6, EPOCHS, 2, 3)


@pytest.mark.parametrize("kind", [*FailureKind])
def test_each_kind_of_failure_is_in_the_study_and_only_divergence_counts(store, kind) -> None:
    """The words are those of another kind: nobody reads them. Processes may die once after the same epoch."""
    bridge = make_bridge(store)
    for name in ("a", "b") if kind == FailureKind.PROCESS else ("a",):
        assert number_of(bridge.suggest(name)) == 0
        why = "NonFiniteLossError: was not finite"
        bridge.observe(name, {"records": [], "failure": why, "failure_kind": str(kind)})
    trial = reopen(store).study.trials[0]
    assert trial.state == TrialState.FAIL and trial.user_attrs[FAILURE_ATTR] == str(kind)
    assert "was not finite" in trial.user_attrs["ended_because"]
    diverged = kind == FailureKind.DIVERGED
    assert has_diverged(trial) == (DIVERGED_ATTR in trial.user_attrs) == diverged
    assert len(curves_of([trial], FACTS)) == diverged, "the curve model learns from the others nothing at all"
    assert may_need_checkpoint(trial) == (not diverged)


@pytest.mark.parametrize("how", ["its workers", "its own process", "returned before its last epoch"])
def test_a_trial_whose_processes_die_goes_on_as_long_as_it_gets_on(store, how) -> None:
    """Each attempt is followed by another, until they die twice after the same epoch."""
    bridge = make_bridge(store)

    def die(ray_id: str) -> None:
        if how == "its workers":
            bridge.observe(ray_id, {"records": [], "failure": "worker 1: ActorDiedError", "failure_kind": "process"})
        bridge.on_trial_complete(ray_id, error=how == "its own process")

    for epochs, ray_id in enumerate("abcd"):
        assert number_of(bridge.suggest(ray_id)) == 0, "the same trial, before any new one"
        bridge.observe(ray_id, {"records": [record(epoch, 0.5) for epoch in range(1, epochs + 1)]})  # the past again
        die(ray_id)
        (trial,) = store.study.trials
        assert trial.state == TrialState.WAITING and FAILURE_ATTR not in trial.user_attrs
        assert sorted(trial.intermediate_values) == list(range(1, epochs + 1))
    bridge.suggest("e")
    bridge.observe("e", {"records": [record(epoch, 0.5) for epoch in (1, 2, 3)]})
    die("e")
    (trial,) = store.study.trials
    assert (trial.state, trial.user_attrs[FAILURE_ATTR]) == (TrialState.FAIL, "process")
    assert may_need_checkpoint(trial) and trial.user_attrs["attempts"] == 5
    assert ("died" in trial.user_attrs["ended_because"]) == (how == "its own process")


def test_trials_whose_processes_die_at_random_lose_and_double_nothing(store) -> None:
    """As the soak of a real cluster (``benchmarks/soak.py``), where each death has used up all of Ray's restarts."""
    draws, bridge = random.Random(1), make_bridge(store, trials=20, concurrency=3, strategy="random")
    live: dict[str, tuple[int, int]] = {}  # from Tune's name to the trial, and how many epochs this attempt has sent
    names, deaths = map(str, itertools.count()), 0
    while (task := bridge.suggest(name := next(names))) != Searcher.FINISHED or live:
        if isinstance(task, dict):
            trial = number_of(task)
            live[name] = trial, len(store.study.trials[trial].intermediate_values)
            past = [record(epoch, trial + epoch / 10) for epoch in range(1, live[name][1] + 1)]
            bridge.observe(name, {"records": past})
            continue
        name = draws.choice(sorted(live))
        trial, done = live[name]
        bridge.observe(name, {"records": [record(done + 1, trial + (done + 1) / 10)]})
        live[name] = trial, done + 1
        if done + 1 == EPOCHS or draws.random() < 0.3:
            deaths += done + 1 < EPOCHS
            bridge.on_trial_complete(name, error=done + 1 < EPOCHS)
            del live[name]
    trials = store.study.trials
    assert [trial.number for trial in trials] == list(range(20)) and deaths > 10
    for trial in trials:
        assert trial.state == TrialState.COMPLETE
        assert trial.intermediate_values == {e: pytest.approx(trial.number + e / 10) for e in range(1, EPOCHS + 1)}
    assert sum(trial.user_attrs["attempts"] for trial in trials) == 20 + deaths


class FailedTrial:
    """Tune's record of a trial whose process Ray ended."""

    trial_id = "a"

    def __init__(self, file: str | None) -> None:
        self.pickled_error_file = file


@pytest.mark.parametrize(
    ("error", "kind"),
    [(MemoryKill("low"), "node memory"), (ray.exceptions.ActorDiedError(), "process"), (None, "process")],
)
def test_a_trials_own_process_that_ray_ended_for_memory_is_named(store, tmp_path, error, kind) -> None:
    bridge: OptunaBridge = make_bridge(store)
    if kind == "process":  # it may happen once
        bridge.suggest("before")
        bridge.on_trial_complete("before", error=True)
    bridge.suggest("a")
    scheduler, trial = StopScheduler(bridge, capacity=None), FailedTrial(None)
    if error is not None:
        (tmp_path / "error.pkl").write_bytes(ray.cloudpickle.dumps(error))
        trial = FailedTrial(str(tmp_path / "error.pkl"))
    controller: Any = None
    scheduler.on_trial_error(controller, trial)
    bridge.on_trial_complete("a", error=True)
    attrs = store.study.trials[0].user_attrs
    assert attrs[FAILURE_ATTR] == kind and not has_diverged(store.study.trials[0])
    assert ("--set data.loader.workers" in attrs["ended_because"]) == (kind == "node memory")


BAD_IMAGE = Verdict(TrialState.FAIL, "image x.jpg cannot be read")
DIVERGED = Verdict(TrialState.FAIL, "validation was not finite in epoch 1")
DONE = Verdict(TrialState.COMPLETE, "ran to its end")
ATTRS = {DIVERGED_ATTR: True}


def reasons(ends: list[Verdict]) -> list[str | None]:
    """What is said after each end of a search whose trials end so, in this order."""
    failures = EqualFailures()
    return [failures.after(end, ATTRS if end is DIVERGED else {}, n + 1) for n, end in enumerate(ends)]


def test_four_equal_failures_end_a_search_at_its_beginning_alone() -> None:
    assert [text is None for text in reasons([BAD_IMAGE] * 4)] == [True, True, True, False]
    assert "the first 4 trials all failed for the same reason: image x.jpg" in str(reasons([BAD_IMAGE] * 4)[-1])
    assert set(reasons([DONE, *[BAD_IMAGE] * 8])) == {None}
    other = Verdict(TrialState.FAIL, "another reason")
    assert set(reasons([BAD_IMAGE, BAD_IMAGE, other, BAD_IMAGE, BAD_IMAGE])) == {None}
