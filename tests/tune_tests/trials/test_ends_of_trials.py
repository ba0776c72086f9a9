"""The ends of trials that a manager tells: a target, several objectives, and bounds that a space sets."""

import math
from pathlib import Path
from typing import Any

import optuna
import pyarrow.parquet as pq
import pytest
from optuna.trial import TrialState

from bigbatch.search_spaces.registry import load_space
from bigbatch.tune.console.display import SearchProgress
from bigbatch.tune.report.page import report_page
from bigbatch.tune.report.recorded_study import open_recorded
from bigbatch.tune.runs.run import Run
from bigbatch.tune.storage.store import StudyStore
from helpers.bridges import EPOCHS, make_bridge, record, reopen


class BoundedSpace:
    """A space of one parameter that bounds the time and the memory of an epoch, and a value that it knows."""

    name = "bounded"

    def __init__(self, known: float = 0.0) -> None:
        self.known = known

    def __call__(self, trial, workload, pinned=None):
        trial.suggest_float("x", 0, 1)
        trial.set_constraint("epoch_s", at_most=60)
        trial.set_constraint("memory_bytes", at_most=2**30)
        trial.set_constraint("known", self.known, at_most=2.0)
        return load_space("smoke")(trial, workload, pinned)


def store_of(tmp_path: Path, objective: str) -> StudyStore:
    return StudyStore.create(tmp_path / "s", "s", {"objective": objective, "num_classes": 10}, None)


def bridge_of(store: StudyStore, **more: Any):
    return make_bridge(store, objectives=store.objectives, **more)


def report(bridge: Any, ray_id: str, epoch: int, value: float, **more: float) -> bool:
    return bridge.observe(ray_id, {"records": [record(epoch, value, **more)]})


def test_a_trial_that_reaches_the_target_is_complete_with_its_hours(tmp_path):
    store = store_of(tmp_path, "val_top1=0.7")
    bridge = bridge_of(store, trials=2, pruner="asha")
    for ray_id in "ab":
        bridge.suggest(ray_id)
    assert not report(bridge, "a", 1, 0.6, train_s=1800.0)
    assert report(bridge, "a", 2, 0.7, train_s=1800.0), "Ray is told to stop it"
    for epoch in range(1, EPOCHS + 1):
        report(bridge, "b", epoch, 0.35, train_s=1800.0)
    reached, missed = store.study.trials
    assert (reached.state, reached.value) == (TrialState.COMPLETE, 1.0)
    assert reached.intermediate_values == pytest.approx({1: 0.1 / 0.7, 2: 0.0}) and missed.intermediate_values[1] == 0.5
    assert store.study.direction == optuna.study.StudyDirection.MINIMIZE and store.study.best_trial.number == 0
    progress = SearchProgress(2, 1, {}, objectives=store.objectives)
    shown = [progress.worth(Run.of(trial)) for trial in store.study.trials]
    assert shown == ["70.0 %", "35.0 %"], "a person watches the metric"
    store.close()


def test_a_violated_bound_ends_a_trial_and_the_sampler_sees_by_how_much(store):
    bridge = make_bridge(store, space=BoundedSpace(), concurrency=3)
    for ray_id in "abc":
        bridge.suggest(ray_id)
    assert report(bridge, "a", 1, 0.9, train_s=90.0, memory_bytes=2**29)
    assert report(bridge, "b", 1, 0.8, train_s=30.0, memory_bytes=2**31)
    assert not report(bridge, "c", 1, 0.5, train_s=30.0, memory_bytes=2**29)
    for epoch in range(2, EPOCHS + 1):
        report(bridge, "c", epoch, 0.5, train_s=30.0, memory_bytes=2**29)
    slow, large, good = store.study.trials
    assert slow.state == large.state == TrialState.PRUNED and good.state == TrialState.COMPLETE
    assert slow.user_attrs["infeasible"] == {"epoch_s": 0.5} and large.user_attrs["infeasible"] == {"memory_bytes": 1.0}
    assert "epoch time is 90 s, allowed is at most 60 s" in slow.user_attrs["ended_because"]
    assert "peak memory is 2.00 GiB, allowed is at most 1.00 GiB" in large.user_attrs["ended_because"]
    assert slow.constraints == {"epoch_s": 0.5, "memory_bytes": -0.5, "known": -1.0}, "as Optuna's samplers read it"
    best = store.objectives.best(store.study.trials)
    assert best is not None and best.number == good.number, "although it is the worst in accuracy"


def test_what_the_space_knows_to_be_too_much_is_not_trained(store):
    bridge = make_bridge(store, space=BoundedSpace(known=3.0), trials=2, strategy="random")
    assert bridge.suggest("a") == "FINISHED" or bridge.fatal
    first = store.study.trials[0]
    assert first.state == TrialState.PRUNED and first.user_attrs["infeasible"] == {"known": 0.5}
    assert first.user_attrs["ended_because"] == "infeasible: known is 3, allowed is at most 2"
    assert first.constraints == {"known": 0.5} and not first.intermediate_values


@pytest.mark.parametrize("told", [True, False], ids=["told", "killed before it is told"])
def test_the_epoch_in_which_a_trial_diverges_is_recorded_as_every_other_one(tmp_path, told):
    """Samplers and pruners, which compare numbers, are not told what it is worth."""
    store = store_of(tmp_path, "val_top1:max")
    bridge = bridge_of(store, trials=2, concurrency=1)
    bridge.suggest("a")
    assert not report(bridge, "a", 1, 0.5, train_s=10.0)
    if told:
        assert report(bridge, "a", 2, 0.1, train_s=20.0, val_loss=math.nan)
    else:
        trial = bridge._live["a"].trial
        trial.set_user_attr("epoch/00002", record(2, 0.1, train_s=20.0, val_loss=math.nan))
        store = reopen(store)
        store.recover()
    (trial,) = store.study.trials
    assert (trial.state, trial.user_attrs["ended_because"]) == (TrialState.FAIL, "validation was not finite in epoch 2")
    assert trial.user_attrs["diverged"] is True and trial.user_attrs["failure_kind"] == "diverged"
    assert trial.intermediate_values == {1: 0.5}
    store.refresh(force=True)
    row = pq.read_table(store.folder / "trials.parquet").to_pylist()[0]
    assert (row["epochs"], row["best_value"], row["diverged"]) == (2, 0.5, True)
    epochs = pq.read_table(store.folder / "epochs.parquet").to_pylist()
    assert [(one["epoch"], one["train_s"]) for one in epochs] == [(1, 10.0), (2, 20.0)]
    assert math.isnan(epochs[1]["val_loss"])
    run = Run.of(store.study.trials[0])
    assert (run.epochs, run.state) == (2, TrialState.FAIL)
    store.close()
    page = report_page(open_recorded(store.folder))
    assert "diverged" in page and "could not be" not in page
