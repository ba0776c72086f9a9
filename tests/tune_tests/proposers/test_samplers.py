"""Samplers: what they draw for a study, and that nothing but the study decides it."""

from pathlib import Path

import numpy as np
import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from scipy.stats import ks_2samp

from bigbatch.tune.models.unit_space import value_at
from bigbatch.tune.storage.store import StudyStore
from helpers.bridges import EPOCHS, SHORT_WARMUP, make_bridge, record, run_out


def sampled(folder: Path, sampler: str, trials: int, interrupt_after: int | None = None) -> list[dict]:
    """Parameters of a whole search, with a new driver after some trials."""
    store = StudyStore.create(folder, "s", {}, None)
    bridge = make_bridge(store, trials=trials, concurrency=1, strategy=sampler, seed=0)
    for i in range(trials):
        if i == interrupt_after:
            store.close()
            store = StudyStore.open(folder, None)
            bridge = make_bridge(store, trials=trials, concurrency=1, strategy=sampler, seed=0)
            bridge.recover()
        bridge.suggest(f"r{i}")
        run_out(bridge, f"r{i}", [0.1 * (i % 3)] * EPOCHS)
    params = [t.params for t in store.study.trials]
    store.close()
    return params


def test_qmc_draws_conditional_parameters_anew_in_each_trial_and_goes_on_after_a_kill(tmp_path):
    params = sampled(tmp_path / "one", "qmc", 24)
    for name in ("one_minus_momentum", "weight_decay", "one_minus_beta1"):
        values = [p[name] for p in params if name in p]
        assert len(values) >= 4 and len(set(values)) == len(values), name
    assert sampled(tmp_path / "two", "qmc", 24, interrupt_after=11) == params


@pytest.mark.parametrize(
    "distribution",
    [
        FloatDistribution(1e-5, 1e-1, log=True),
        FloatDistribution(-1.0, 1.0),
        FloatDistribution(0.0, 0.3, step=0.1),
        IntDistribution(1, 6),
        IntDistribution(2, 10, step=4),
        IntDistribution(1, 1000, log=True),
        CategoricalDistribution(("a", "b", "c")),
    ],
)
def test_a_coordinate_becomes_a_value_of_the_range_as_probable_as_with_optunas_random_sampler(distribution):
    parts = (np.arange(6000) + 0.5) / 6000
    values = [value_at(float(part), distribution) for part in (*parts, 0.0, np.nextafter(1, 0))]
    assert all(distribution._contains(distribution.to_internal_repr(value)) for value in values)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    frozen = optuna.trial.create_trial(value=0.0)
    theirs = [study.sampler.sample_independent(study, frozen, "x", distribution) for _ in range(6000)]
    ours, others = ([distribution.to_internal_repr(value) for value in found] for found in (values, theirs))
    assert ks_2samp(ours, others).statistic < 0.03


def good_half(monkeypatch, bridge) -> set[int]:
    """The trials that the real TPE takes for good ones when it proposes the next trial."""
    from optuna.samplers._tpe import sampler as tpe

    split, found = tpe._split_trials, []

    def watched(*given):
        halves = split(*given)
        found.append({t.number for t in halves[0]})
        return halves

    monkeypatch.setattr(tpe, "_split_trials", watched)
    bridge.suggest("next")
    monkeypatch.undo()
    assert found and all(half == found[0] for half in found)
    return found[0]


def end_one(bridge, name: str, values: list[float], steps_an_epoch: int) -> None:
    bridge.suggest(name)
    for epoch, value in enumerate(values, 1):
        if bridge.observe(name, {"records": [record(epoch, value, optimizer_steps=epoch * steps_an_epoch)]}):
            return


def with_a_spared_trial(folder: Path, spared: list[float], steps_an_epoch: int):
    """Eleven trials: TPE takes two for good ones. One ended at 85 %, the next best were stopped at 60 % and below."""
    store = StudyStore.create(folder, "s", {}, None)
    bridge = make_bridge(store, trials=40, concurrency=1, pruner="asha", overrides=SHORT_WARMUP)
    end_one(bridge, "best", [0.7, 0.8, 0.84, 0.85], 100)
    end_one(bridge, "spared", spared, steps_an_epoch)
    for n in range(9):
        end_one(bridge, f"r{n}", [0.60 - 0.01 * n] * EPOCHS, 100)
    return store, bridge


@pytest.mark.parametrize("end", [0.31, 0.95])
def test_a_spared_trial_enters_tpes_good_half_by_its_value_and_not_by_its_length(tmp_path, monkeypatch, end):
    store, bridge = with_a_spared_trial(tmp_path / "s", [0.1, 0.15, 0.2, end], 1)  # four steps in all
    trials = store.study.trials
    assert [t.state.name for t in trials] == ["COMPLETE"] * 2 + ["PRUNED"] * 9
    assert good_half(monkeypatch, bridge) == ({0, 2} if end == 0.31 else {0, 1})
    store.close()
    again = make_bridge(StudyStore.open(store.folder, None), trials=40, overrides=SHORT_WARMUP)
    assert good_half(monkeypatch, again) == ({0, 2} if end == 0.31 else {0, 1}), "the same after a resume"
    assert [t.state for t in again._study.trials[:11]] == [t.state for t in trials], "the study itself says what was"


def test_a_trial_spared_once_and_stopped_later_is_ranked_where_it_was_spared(tmp_path, monkeypatch):
    store, bridge = with_a_spared_trial(tmp_path / "s", [0.1, 0.15, 0.2, 0.3], 4)  # twelve at the second rung
    assert [(t.state.name, t.last_step) for t in store.study.trials[:2]] == [("COMPLETE", 4), ("PRUNED", 3)]
    assert good_half(monkeypatch, bridge) == {0, 2}
