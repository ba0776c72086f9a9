"""Two real searches on one study in PostgreSQL, of which one is killed, and a third one that does not belong there."""

from __future__ import annotations

import json

import optuna
import pytest
from optuna.trial import TrialState

from bigbatch.tune.runs.run import OWNER_ATTR
from helpers.searches import Search


@pytest.mark.exhaustive
def test_two_searches_share_a_study_and_the_one_that_lives_ends_it(postgres, tiny, tmp_path):
    pytest.importorskip("psycopg", reason="needs the database's driver: pip install 'psycopg[binary]'")
    arguments = (*tiny, "--study", "s", "--trials", 8, "--max-epochs", 100, "--stopping", "none", "--confirm", "none")
    shared = ("--storage", postgres, "--join")
    places = [tmp_path / name for name in "abc"]
    for place in places:
        place.mkdir()
    first = Search(*arguments, *shared, cwd=places[0])
    first.wait_for(r"epoch \d+/100", count=3)
    second = Search(*arguments, *shared, cwd=places[1])
    second.wait_for(r"epoch \d+/100", count=3)
    first.kill_tree()
    assert second.end(600) == 0, second.stderr()
    other = Search(*arguments, *shared, "--seed", 7, cwd=places[2])
    assert other.end() == 2 and "--seed was 1; got 7" in other.stderr()
    assert not (places[2] / "runs" / "s").exists()
    trials = optuna.load_study(study_name="s", storage=postgres).trials
    assert [t.state for t in trials] == [TrialState.COMPLETE] * 8
    assert all(sorted(t.intermediate_values) == list(range(1, 101)) for t in trials)
    keys = [json.loads((place / "runs" / "s" / "study.json").read_text())["driver"] for place in places[:2]]
    assert {t.user_attrs[OWNER_ATTR].partition(".")[0] for t in trials} <= set(keys)
    taken = [t for t in trials if t.user_attrs["attempts"] == 2]
    assert taken and all(t.user_attrs[OWNER_ATTR].startswith(keys[1]) for t in taken)
