"""A driver that is killed while it draws a trial: the search makes the same decisions as one that was never killed."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.trial import TrialState

from bigbatch.search_spaces.constraints import SpaceTrial
from bigbatch.tune.proposers.samplers import sampler_factory
from bigbatch.tune.storage.patient_journal import PatientJournal, repair_journal
from bigbatch.tune.storage.store import StudyStore
from helpers.conducted import Killed, Search, kill_at_write, summary

NAMED = [("curves", "look"), ("tpe", "asha"), ("random", "asha"), ("gp", "none"), ("cmaes", "none")]


def in_a_journal(folder: Path) -> Callable[[], StudyStore]:
    """Opens the study of ``folder`` as the next process would, at each call."""

    def opened() -> StudyStore:
        if (folder / "study.json").exists():
            return StudyStore.open(folder, None)
        return StudyStore.create(folder, "s", {"num_classes": 10}, None)

    return opened


@pytest.mark.parametrize(("strategy", "stopping"), NAMED)
def test_a_search_cut_off_within_any_proposal_goes_on_alike(strategy, stopping, tmp_path, monkeypatch):
    """The journal is cut after a parameter: as ``kill -9`` leaves it, with half a line behind or without."""
    sizes: list[int] = []
    append = PatientJournal.append_logs

    def noted(self: PatientJournal, logs: list[dict[str, object]]) -> None:
        append(self, logs)
        if any(log["op_code"] == 5 or "relative_params" in str(log) for log in logs):
            sizes.append(os.path.getsize(self._path))

    monkeypatch.setattr(PatientJournal, "append_logs", noted)
    whole = Search(strategy, stopping, in_a_journal(tmp_path / "whole")).run()
    monkeypatch.setattr(PatientJournal, "append_logs", append)
    whole.store.close()
    journal = (tmp_path / "whole" / "optuna.journal").read_bytes()
    for size in [sizes[0], *sizes[7::11]]:
        folder = tmp_path / f"cut-{size}"
        shutil.copytree(tmp_path / "whole", folder, ignore=shutil.ignore_patterns(".lease", "ledger"))
        (folder / "optuna.journal").write_bytes(journal[:size] + b'{"half' * (size % 2))
        search = Search(strategy, stopping, in_a_journal(folder))
        cut = search.trials[-1]
        assert cut.state == TrialState.WAITING and not cut.params, "what was half drawn is gone"
        assert cut.system_attrs.keys() <= {"fixed_params"}
        # The other slot's trial begins again first, as it had begun first.
        alone = search.manager.next_trial("A")
        again = alone if alone is not None and alone.view.number == cut.number else search.manager.next_trial("B")
        assert again is not None and again.view.number == cut.number
        assert search.trials[cut.number].params == whole.trials[cut.number].params
        search.store.close()


@pytest.mark.parametrize("every", [3, pytest.param(11, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize(("strategy", "stopping"), NAMED[:3])
def test_drivers_that_die_at_parameters_change_no_decision(strategy, stopping, every, tmp_path):
    whole = Search(strategy, stopping, in_a_journal(tmp_path / "whole")).run()
    search = Search(strategy, stopping, in_a_journal(tmp_path / "killed"))
    others = ("create_new_trial", "set_trial_state_values", "set_trial_intermediate_value", "set_trial_user_attr",
              "set_trial_system_attr")  # fmt: skip
    kills = 0
    while True:
        kill_at_write(search.store.study._storage, every + kills, but=others)
        try:
            search.run()
            break
        except Killed:
            kills += 1
            search.steps -= 1  # the slot has its turn again
            search.kill()
    assert kills > 2 and summary(search.trials) == summary(whole.trials)
    for one in (whole, search):
        one.store.close()


def lines_of(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_only_parameters_of_a_trial_without_a_configuration_are_dropped(tmp_path):
    store = in_a_journal(tmp_path / "s")()
    path = tmp_path / "s" / "optuna.journal"
    whole = store.study.ask()
    whole.suggest_float("x", 0, 1)
    whole.set_user_attr("config", {"epochs": 1})
    whole.set_user_attr("epoch/00001", {"epoch": 1})
    kept = path.read_bytes()
    repair_journal(path)
    assert path.read_bytes() == kept, "its last lines are a record and a configuration"
    half = store.study.ask()
    before = len(lines_of(path))
    store.study._storage.set_trial_system_attr(half._trial_id, "noted by the sampler", 1)
    half.suggest_float("x", 0, 1)
    half.set_user_attr("noted by the space", 1)
    half.suggest_float("y", 0, 1)
    repair_journal(path)
    assert len(lines_of(path)) == before and lines_of(path)[-1]["op_code"] == 4
    store.close()


def test_a_database_forgets_half_drawn_parameters_too(tmp_path):
    url = f"sqlite:///{tmp_path / 'd.db'}"
    store = StudyStore.create(tmp_path / "s", "s", {"num_classes": 10}, url)
    store.study.enqueue_trial({"x": 0.5})
    trials = [store.study.ask() for _ in range(2)]
    for trial in trials:
        trial.suggest_float("x", 0, 1)
        store.study._storage.set_trial_system_attr(trial._trial_id, "noted by the sampler", 1)
    trials[1].set_user_attr("config", {"epochs": 1})
    store.close()
    again = StudyStore.open(tmp_path / "s", url)
    again.recover()
    half, whole = optuna.load_study(study_name="s", storage=url).trials
    assert (whole.state, half.state) == (TrialState.WAITING, TrialState.WAITING)
    assert whole.params.keys() == {"x"} and "noted by the sampler" in whole.system_attrs
    assert not half.params and half.system_attrs == {"fixed_params": {"x": 0.5}}
    again.close()


def test_a_random_value_depends_on_seed_trial_and_name_alone():
    """Whatever else a trial has drawn before, and in which order."""
    ranges = {"a": FloatDistribution(0, 1), "b": CategoricalDistribution(["p", "q", "r"]), "c": FloatDistribution(1, 2)}
    make = sampler_factory("random", 7, 10)
    drawn = []
    for order in ("abc", "cab", "c", "b", "a"):
        study = optuna.create_study(sampler=make(0))
        trial = study.ask()
        frozen = study.trials[0]
        drawn.append({n: study.sampler.sample_independent(study, frozen, n, ranges[n]) for n in order})
        assert SpaceTrial(trial).number == 0
    assert all(one[name] == drawn[0][name] for one in drawn for name in one)
    others = [
        sampler_factory("random", seed, 10)(0).sample_independent(study, frozen, "a", ranges["a"]) for seed in (8, 9)
    ]
    assert len({drawn[0]["a"], *others}) == 3
