"""Searches of two parts, with a real Ray, real training and a killed driver."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from optuna.trial import TrialState

from bigbatch.cluster.host.json_values import json_object
from bigbatch.tune.strategies.follow_up import first_part, second_part
from bigbatch.tune.study.cheap_runs import ran_cheaply
from bigbatch.tune.study.trial_facts import FOLLOWS_ATTR
from helpers.searches import Search, load

COMMON = (
    *("--space", "large_batch", "--trials", 5, "--max-epochs", 3, "--set", "optimizer=sgd"),
    *("--confirm", "none", "--stopping", "none", "--enqueue", "none"),
)


def resumed_after_a_kill(tiny: tuple[str, ...], folder: Path, until: str, *options: object) -> str:
    """What the second driver of a search prints; the first is killed as soon as a line matches ``until``."""
    search = Search(*tiny, *COMMON, *options, "--study", "s", cwd=folder)
    search.wait_for(until)
    os.killpg(search.process.pid, signal.SIGKILL)
    search.process.wait()
    again = Search("--resume", "--study", "s", cwd=folder)
    assert again.end() == 0, again.stderr()
    return "".join(again.lines)


@pytest.mark.exhaustive
def test_a_search_that_is_killed_at_its_target_goes_on_there(tiny, tmp_path):
    text = resumed_after_a_kill(tiny, tmp_path, r"started: .*batch 32", "--batch", "8", "--transfer-to", "32")
    trials = load(tmp_path / "runs" / "s").trials
    there = second_part(trials)
    assert len(there) == 3 and len(trials) == 5
    assert [t.params["global_batch_size"] for t in trials] == [8, 8, 32, 32, 32]
    assert all(t.state == TrialState.COMPLETE for t in trials)
    assert [t.user_attrs[FOLLOWS_ATTR]["kind"] for t in there] == ["prediction", "around", "around"]
    assert "At 32, 2 finished trials of sgd predicted peak_lr" in text
    assert "The best of the 3 finished trials at 32: trial" in text


@pytest.mark.exhaustive
def test_a_search_that_is_killed_among_its_finalists_trains_the_same_ones(tiny, tmp_path):
    options = ("--batch", "8", "--fidelity", "epochs=2")
    text = resumed_after_a_kill(tiny, tmp_path, r"trial 3 .*epoch 1/3", *options)
    folder = tmp_path / "runs" / "s"
    trials = load(folder).trials
    cheap, full = first_part(trials), second_part(trials)
    assert len(cheap) == 3 and len(full) == 2
    assert all(ran_cheaply(t) and len(t.intermediate_values) == 2 for t in cheap)
    assert all(t.state == TrialState.COMPLETE and len(t.intermediate_values) == 3 for t in full)
    order = sorted(cheap, key=lambda t: -t.intermediate_values[2])
    assert [t.user_attrs[FOLLOWS_ATTR]["of"] for t in full] == [t.number for t in order[:2]]
    best = max(full, key=lambda t: t.values[0])
    assert json_object((folder / "best.json").read_text()) == best.user_attrs["config"]
    assert "2 of 5 trials ran to their end, 3 cheap runs" in text
    assert f"In full (trial {full[0].number})" in text
