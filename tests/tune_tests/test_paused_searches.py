"""Searches that pause trials and continue some of them, with a real Ray, real training and a killed driver."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import optuna
import pyarrow.parquet as pq
import pytest
from optuna.trial import TrialState

from bigbatch.tune.runs.run import CONTINUES_ATTR, PAUSED_ATTR, epoch_records, is_paused
from helpers.searches import Search, load

EPOCHS = 10
PAUSING = ("--strategy", "random", "--stopping", "look", "--trials", 4, "--max-epochs", EPOCHS)
"""Trials pause after a tenth of their run, or after their warmup."""


def trials_by_kind(folder: Path) -> tuple[list[optuna.trial.FrozenTrial], list[optuna.trial.FrozenTrial]]:
    """The paused trials, and the continuations."""
    trials = load(folder).trials
    return [t for t in trials if is_paused(t)], [t for t in trials if CONTINUES_ATTR in t.user_attrs]


def check_continuations(folder: Path) -> None:
    """Each continuation has the parameters, the configuration and the first epochs of the trial that it continues."""
    paused, continuations = trials_by_kind(folder)
    by_number = {t.number: t for t in paused}
    assert continuations and all(t.state == TrialState.COMPLETE for t in continuations)
    assert len({t.user_attrs[CONTINUES_ATTR] for t in continuations}) == len(continuations), "none is continued twice"
    for trial in continuations:
        first = by_number[trial.user_attrs[CONTINUES_ATTR]]
        assert trial.params == first.params and trial.user_attrs["config"] == first.user_attrs["config"]
        before, after = epoch_records(first), epoch_records(trial)
        assert [r["epoch"] for r in after] == list(range(1, EPOCHS + 1))
        assert [r["val_loss"] for r in after[: len(before)]] == [r["val_loss"] for r in before], "trained only once"
        assert after[len(before)]["resumed_from_epoch"] is not None, "from the checkpoint of the pause"
    for trial in paused:
        assert trial.user_attrs[PAUSED_ATTR] == len(epoch_records(trial)) < EPOCHS


@pytest.mark.slow
def test_a_search_that_is_killed_while_trials_are_paused_goes_on_with_them_from_their_checkpoints(tiny, tmp_path):
    search = Search(*tiny, *PAUSING, "--study", "s", cwd=tmp_path)
    search.wait_for(r"paused at", count=2)
    os.killpg(search.process.pid, signal.SIGKILL)
    search.process.wait()
    again = Search(*tiny, "--resume", "--study", "s", cwd=tmp_path)
    assert again.end() == 0, again.stderr()
    folder = tmp_path / "runs" / "s"
    check_continuations(folder)
    text = "".join(search.lines + again.lines)
    assert "paused after epoch" in text and "continues trial" in text
    assert not list((folder / "logs").glob("*.pause")), "no request is left"
    trials = load(folder).trials
    assert sum(CONTINUES_ATTR not in t.user_attrs for t in trials) == 4, "as many configurations as were asked for"
    rows = pq.read_table(folder / "epochs.parquet").to_pylist()
    assert len(rows) == len({(row["trial"], row["epoch"]) for row in rows})
    assert len(rows) == sum(len(t.intermediate_values) for t in trials)
    assert Search(*tiny, "--resume", "--study", "s", cwd=tmp_path).end() == 0, "nothing is left to do"
