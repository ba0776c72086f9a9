"""Which trials are stopped early, compared at equal epochs."""

from __future__ import annotations

import pytest
from optuna.trial import TrialState

from helpers.bridges import EPOCHS, SHORT_WARMUP, make_bridge, record, run_out


def test_a_stopped_trial_is_pruned_with_its_intermediate_values_not_complete(store):
    bridge = make_bridge(store, pruner="asha", trials=8, overrides=SHORT_WARMUP)
    for i, level in enumerate((0.9, 0.8, 0.7)):
        bridge.suggest(f"ray-{i}")
        stopped = run_out(bridge, f"ray-{i}", [level] * EPOCHS)
        bridge.on_trial_complete(f"ray-{i}")
        # ASHA by its definition (Li et al. 2020): the first is the best of one, later worse ones
        # are not among the best third of the rung.
        assert stopped == (i > 0)
    states = [t.state for t in store.study.trials]
    assert states == [TrialState.COMPLETE, TrialState.PRUNED, TrialState.PRUNED]
    assert store.study.trials[1].intermediate_values == {1: 0.8}


def test_median_stops_what_is_below_the_median_of_earlier_trials(store):
    bridge = make_bridge(store, pruner="median", trials=20, concurrency=1, overrides=SHORT_WARMUP)
    for i in range(8):
        bridge.suggest(f"r{i}")
        assert not run_out(bridge, f"r{i}", [0.5] * EPOCHS)
    bridge.suggest("low")
    assert run_out(bridge, "low", [0.1] * EPOCHS)
    bridge.suggest("high")
    assert not run_out(bridge, "high", [0.9] * EPOCHS)


def test_a_run_of_few_steps_is_not_judged_in_its_warmup(store):
    bridge = make_bridge(store, pruner="median", trials=20, concurrency=2, overrides=SHORT_WARMUP)
    for n in range(4):
        bridge.suggest(f"t{n}")
        assert not run_out(bridge, f"t{n}", [0.5] * EPOCHS)
    for name, steps in (("few", 9), ("enough", 10)):
        bridge.suggest(name)
        assert not bridge.observe(name, {"records": [record(1, 0.1, optimizer_steps=1)]})
        stopped = bridge.observe(name, {"records": [record(2, 0.1, optimizer_steps=steps)]})
        assert stopped == (name == "enough")


@pytest.mark.parametrize("pruner", ["asha", "hyperband"])
def test_batches_of_few_and_of_many_steps_are_compared_at_equal_epochs(store, pruner):
    bridge = make_bridge(store, pruner=pruner, trials=20, concurrency=2, overrides=SHORT_WARMUP)
    for n, (steps_an_epoch, better) in enumerate([(5, 0.0)] * 4 + [(100, 0.05)] * 6):
        bridge.suggest(f"t{n}")
        for epoch in range(1, EPOCHS + 1):
            found = record(epoch, 0.2 * epoch + better + 0.001 * n, optimizer_steps=epoch * steps_an_epoch)
            stopped = bridge.observe(f"t{n}", {"records": [found]})
            assert not better or stopped == (epoch == EPOCHS), "the better trial, epoch for epoch, was stopped"
            if stopped:
                break
