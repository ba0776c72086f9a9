"""Early stopping: like Optuna's own pruner where all trials compare, among peers, and never in a warmup."""

from __future__ import annotations

import numpy as np
import pytest
from optuna.trial import TrialState

from bigbatch.tune.models.protocol import SearchFacts, TrialDecision
from bigbatch.tune.proposers.samplers import make_pruner
from bigbatch.tune.proposers.shown_trials import SPARED_ATTR
from bigbatch.tune.strategies import make_strategy
from helpers.lone_studies import begin, frozen, go, new_study

EPOCHS = 12
FACTS = SearchFacts((), trials=40, max_epochs=EPOCHS, seed=5)


@pytest.mark.parametrize("direction", ["maximize", "minimize"])
@pytest.mark.parametrize("name", ["asha", "hyperband", "median", "none"])
def test_without_warmup_each_verdict_is_that_of_optunas_pruner(name, direction):
    """Optuna's own study, with the pruner called as Optuna calls it, stops the same trials in the same epochs."""
    ours, theirs = new_study(direction), new_study(direction)
    theirs.pruner = make_pruner(name, EPOCHS, seed=5)
    stopping = make_strategy("random", name, FACTS)
    rng = np.random.default_rng(0)
    ends = []
    for _ in range(40):
        values = rng.random() + 0.05 * rng.standard_normal(EPOCHS)
        trial, other = begin(ours, {}, epochs=EPOCHS), theirs.ask()
        decision = go(ours, stopping, trial, values)
        stopped_in = EPOCHS
        for epoch, value in enumerate(values, 1):
            other.report(value, epoch)
            if other.should_prune():
                stopped_in = epoch
                break
        assert frozen(ours, trial).last_step == stopped_in
        state = TrialState.PRUNED if decision == TrialDecision.STOP else TrialState.COMPLETE
        for study, ended in ((ours, trial), (theirs, other)):
            study.tell(ended, values[-1] if state == TrialState.COMPLETE else None, state=state)
        ends.append(stopped_in)
    assert len(set(ends)) > 1 or name == "none"


def test_only_trials_of_the_same_frontier_value_compare():
    study = new_study()
    facts = SearchFacts((), trials=40, max_epochs=EPOCHS, frontier="batch")
    stopping = make_strategy("tpe", "asha", facts)
    for _ in range(3):
        go(study, stopping, begin(study, {"batch": 256}, epochs=EPOCHS), [0.9] * EPOCHS)
    large = begin(study, {"batch": 4096}, epochs=EPOCHS)
    assert go(study, stopping, large, [0.5] * EPOCHS) == TrialDecision.GO_ON, "the best of its batch so far"
    assert go(study, stopping, begin(study, {"batch": 4096}, epochs=EPOCHS), [0.4] * EPOCHS) == TrialDecision.STOP
    assert go(study, stopping, begin(study, {"batch": 256}, epochs=EPOCHS), [0.8] * EPOCHS) == TrialDecision.STOP


@pytest.mark.parametrize("name", ["asha", "hyperband", "median"])
def test_no_trial_is_stopped_before_its_warmup_has_ended_and_then_at_equal_epochs(name):
    """Slow starters that are as good as their peers from the fifth epoch on are not stopped; bad ones are, then."""
    study, stopping = new_study(), make_strategy("tpe", name, FACTS)
    good = list(np.linspace(0.4, 0.9, EPOCHS))
    for _ in range(5):
        trial = begin(study, {}, epochs=EPOCHS)
        assert go(study, stopping, trial, good) == TrialDecision.GO_ON
        study.tell(trial, good[-1])
    slow = begin(study, {}, epochs=EPOCHS, warmup=4.5)
    assert go(study, stopping, slow, [0.1, 0.1, 0.1, 0.1, *good[4:]]) == TrialDecision.GO_ON
    assert frozen(study, slow).user_attrs[SPARED_ATTR] == 3, "a quarter of the run: the pruner wanted to stop it"
    study.tell(slow, good[-1])
    ends = set()
    for _ in range(8):  # with hyperband, some are in a bracket whose first rung is later
        bad = begin(study, {}, epochs=EPOCHS, warmup=4.5)
        assert go(study, stopping, bad, [0.1, 0.1, 0.1, 0.1, *np.linspace(0.41, 0.42, 8)]) == TrialDecision.STOP
        ends.add(frozen(study, bad).last_step)
        study.tell(bad, state=TrialState.PRUNED)
    assert min(ends) == 5 and (ends == {5} or name == "hyperband")


def test_a_late_judgement_leaves_the_bar_of_the_first_rung_as_it_was():
    """A good trial with a long warmup has 0.1 where the rung is, and is judged later with 0.8. The next trial, 0.2 at
    the rung, is the best of those that got there."""
    study, stopping = new_study(), make_strategy("tpe", "asha", FACTS)
    for _ in range(3):
        go(study, stopping, begin(study, {}, epochs=EPOCHS, warmup=4), [0.1] * 4 + [0.8] * 8)
    assert go(study, stopping, begin(study, {}, epochs=EPOCHS), [0.2] * 4) == TrialDecision.GO_ON


def test_a_run_of_few_steps_is_judged_after_ten(monkeypatch):
    study, stopping = new_study(), make_strategy("tpe", "asha", FACTS)
    go(study, stopping, begin(study, {}, epochs=EPOCHS), [0.5] * EPOCHS)
    few = begin(study, {}, epochs=EPOCHS)
    assert go(study, stopping, few, [0.1] * EPOCHS, steps_an_epoch=2) == TrialDecision.STOP
    assert frozen(study, few).last_step == 5 and frozen(study, few).user_attrs[SPARED_ATTR] == 3
    hardly = begin(study, {}, epochs=EPOCHS)
    assert go(study, stopping, hardly, [0.1] * 9, steps_an_epoch=1) == TrialDecision.GO_ON
