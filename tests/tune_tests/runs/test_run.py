"""The kinds of runs and what counts, asked of Optuna's trials and of the same trials as the journal has them."""

from __future__ import annotations

from pathlib import Path

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from bigbatch.cluster.host.optuna_journal import read_journal
from bigbatch.tune.runs.run import (
    AnyTrial,
    Kind,
    Run,
    Runs,
    confirmed_by,
    count_ended,
    earlier_of,
    kind_of,
    of_kind,
    replaced_trials,
    search_trials,
    trials_of_run,
)

MADE: tuple[tuple[dict[str, object], TrialState, Kind, int | None], ...] = (
    ({}, TrialState.FAIL, Kind.SEARCH, None),
    ({}, TrialState.PRUNED, Kind.SEARCH, None),
    ({"retries": 0}, TrialState.PRUNED, Kind.RETRY, 0),
    ({"continues": 2}, TrialState.COMPLETE, Kind.CONTINUATION, 2),
    ({"confirms": 3, "confirmation_seed": 1}, TrialState.FAIL, Kind.CONFIRMATION, None),
    ({"confirms": 3, "confirmation_seed": 1, "retries": 4}, TrialState.COMPLETE, Kind.CONFIRMATION, 4),
    ({"refused": True}, TrialState.FAIL, Kind.SEARCH, None),
    ({"continues": "edited"}, TrialState.RUNNING, Kind.CONTINUATION, None),
)
"""Attributes and state of each trial, its kind, and the trial in whose place it counts."""


def test_a_run_of_the_journal_says_what_optunas_trial_says(tmp_path: Path) -> None:
    storage = JournalStorage(JournalFileBackend(str(tmp_path / "optuna.journal")))
    study = optuna.create_study(storage=storage, study_name="s", direction="maximize")
    for attrs, state, _, _ in MADE:
        trial = study.ask()
        for name, value in attrs.items():
            trial.set_user_attr(name, value)
        if state.is_finished():
            study.tell(trial, 0.5 if state == TrialState.COMPLETE else None, state=state)
    found = read_journal(tmp_path, "s", Run)
    assert found is not None and [trial.state for trial in found.trials] == [state for _, state, _, _ in MADE]
    for trials in (list[AnyTrial](study.trials), list[AnyTrial](found.trials)):
        assert [(kind_of(t), earlier_of(t)) for t in trials] == [(kind, earlier) for _, _, kind, earlier in MADE]
        assert replaced_trials(trials) == {0: 2, 2: 3, 4: 5}
        assert [t.number for t in trials_of_run(trials, 3)] == [3, 2, 0]
        assert [confirmed_by(t) for t in of_kind(trials, Kind.CONFIRMATION)] == [3, 3]
        assert [t.number for t in search_trials(trials)] == [0, 1, 2, 3, 6, 7]
        assert count_ended(trials) == 2, "trial 1, and trial 3 for 0 and 2"
    runs = Runs(found.trials, found.maximize)
    assert runs.ended == 2 and runs.best is not None and runs.best.number == 3
    assert [run.number for run in runs.begun] == [0, 1, 2, 3, 4, 5, 7]


def test_of_a_study_to_minimise_the_best_is_the_smallest(tmp_path):
    journal = JournalStorage(JournalFileBackend(str(tmp_path / "optuna.journal")))
    study = optuna.create_study(storage=journal, study_name="s", direction="minimize")
    for value in (0.3, 0.1, 0.2):
        study.tell(study.ask(), value)
    other = optuna.create_study(storage=journal, study_name="other", direction="maximize")
    other.tell(other.ask(), 0.01)
    found = read_journal(tmp_path, "s", Run)
    assert found is not None and len(found.trials) == 3
    assert Runs(found.trials, found.maximize).best_value == 0.1
