"""``--storage`` with a real PostgreSQL: killed and resumed, shared, its password nowhere."""

import json
import signal
import threading

import optuna
import pytest
from optuna.trial import TrialState

from bigbatch.tune.runs.run import OWNER_ATTR
from bigbatch.tune.storage import database
from bigbatch.tune.storage.storage_url import DatabaseLost
from bigbatch.tune.storage.store import StudyStore
from helpers.bridges import make_bridge, record, run_out
from helpers.postgres import PASSWORD
from helpers.searches import Search
from helpers.waiting import wait_until


@pytest.mark.exhaustive
def test_a_search_in_postgresql_survives_kill_and_restart_and_hides_its_password(server, postgres, tiny, tmp_path):  # noqa: F811
    pytest.importorskip("psycopg", reason="needs the database's driver: pip install 'psycopg[binary]'")
    arguments = (*tiny, "--study", "s", "--trials", 3, "--max-epochs", 40, "--stopping", "none")
    first = Search(*arguments, "--storage", postgres, cwd=tmp_path)
    first.wait_for(r"epoch \d+/40", count=20)
    first.kill_tree()
    before = {t.number: dict(t.params) for t in optuna.load_study(study_name="s", storage=postgres).trials}
    assert before

    lost = Search("--resume", "--study", "s", cwd=tmp_path)
    assert lost.end() == 2 and "--storage" in lost.stderr(), "without its database it begins nothing anew"
    again = Search("--resume", "--study", "s", "--storage", postgres, cwd=tmp_path)
    again.wait_for(r"epoch \d+/40", count=3)
    server.stop(signal.SIGQUIT)
    server.start()
    assert again.end() == 0, again.stderr()
    trials = optuna.load_study(study_name="s", storage=postgres).trials
    assert [t.state for t in trials] == [TrialState.COMPLETE] * 3
    assert all(list(t.intermediate_values) == list(range(1, 41)) for t in trials)
    assert all(trials[number].params == params for number, params in before.items())

    said = "".join([*first.lines, *lost.lines, *again.lines, first.stderr(), lost.stderr(), again.stderr()])
    assert PASSWORD not in said
    files = [p for p in tmp_path.rglob("*") if p.is_file()]
    assert len(files) > 5 and not [p for p in files if PASSWORD.encode() in p.read_bytes()]


def test_calls_wait_for_a_database_that_is_away_and_an_idle_connection_is_checked(server, monkeypatch, tmp_path):
    pytest.importorskip("psycopg", reason="needs the database's driver: pip install 'psycopg[binary]'")
    said: list[str] = []
    monkeypatch.setattr(database, "_warn", said.append)
    store = StudyStore.create(tmp_path / "s", "s", {}, server.url)
    bridge = make_bridge(store, trials=2, concurrency=1)
    bridge.suggest("a")
    server.stop()
    server.start()
    run_out(bridge, "a", [0.1, 0.2, 0.3])
    assert said == [], "a connection that the restart has closed is replaced"

    def start_once_missed() -> None:
        wait_until(lambda: said, "no call has missed the database")
        server.start()

    server.stop(signal.SIGQUIT)
    starter = threading.Thread(target=start_once_missed)
    starter.start()
    bridge.observe("a", {"records": [record(4, 0.4)]})
    starter.join()
    assert isinstance(bridge.suggest("b"), dict)
    trials = optuna.load_study(study_name="s", storage=server.url).trials
    assert [t.state for t in trials] == [TrialState.COMPLETE, TrialState.RUNNING]
    assert trials[0].value == 0.4 and trials[0].intermediate_values == {1: 0.1, 2: 0.2, 3: 0.3, 4: 0.4}
    assert "does not answer" in said[0] and PASSWORD not in "".join(said)
    store.close()


def test_a_database_that_stays_away_ends_the_wait_once(server, monkeypatch, tmp_path):
    pytest.importorskip("psycopg", reason="needs the database's driver: pip install 'psycopg[binary]'")
    monkeypatch.setattr(database, "PATIENCE_S", 0.3)
    store = StudyStore.create(tmp_path / "s", "s", {}, server.url)
    server.stop()
    pauses: list[float] = []
    monkeypatch.setattr(database.time, "sleep", pauses.append)
    for _ in range(2):
        with pytest.raises(DatabaseLost, match="has not answered"):
            store.study.get_trials()
        count = len(pauses)
    assert count == len(pauses), "the second call does not wait again"
    store.close()


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
