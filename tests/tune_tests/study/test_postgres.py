"""``--storage`` with a real PostgreSQL: a search that is killed and resumed, its password nowhere."""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState

from bigbatch.tune.study import database
from bigbatch.tune.study.storage_url import DatabaseLost
from bigbatch.tune.study.store import StudyStore
from helpers.bridges import make_bridge, record, run_out
from helpers.searches import Search
from helpers.waiting import wait_until

PASSWORD = "s3cret-word"


def server_programs() -> Path | None:
    """The folder of initdb and postgres; Debian keeps them off PATH."""
    found = [Path(p) for p in (shutil.which("initdb"),) if p]
    found += sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return found[-1].parent if found else None


class Server:
    """PostgreSQL with one database, which can be stopped and started."""

    def __init__(self, folder: str, programs: Path, as_user: list[str], port: int) -> None:
        self.data, self.port = f"{folder}/data", port
        options = ["-D", self.data, "-h", "127.0.0.1", "-p", str(port), "-k", folder]
        self._command = [*as_user, str(programs / "postgres"), *options]
        self._process: subprocess.Popen | None = None
        self.url = f"postgresql+psycopg://bb:{PASSWORD}@127.0.0.1:{port}/postgres"

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stderr=subprocess.DEVNULL, cwd="/")
        wait_for_port(self.port, self._process)

    def stop(self, signum: int = signal.SIGINT) -> None:
        """SIGINT ends its connections, SIGQUIT ends it as a crash does."""
        if self._process is not None and self._process.poll() is None:  # else it did not start, which was said
            pid = Path(self.data, "postmaster.pid").read_text().split()[0]  # runuser does not pass signals on
            os.kill(int(pid), signum)
        if self._process is not None:
            self._process.wait(120)


@pytest.fixture
def server() -> Iterator[Server]:
    """An empty database, with a password, on a server that lives as long as the test."""
    programs = server_programs()
    if programs is None:
        pytest.skip("needs PostgreSQL's server: apt-get install postgresql")
    if os.getuid() == 0 and subprocess.run(["id", "postgres"], capture_output=True).returncode:
        pytest.skip("PostgreSQL refuses to run as root, and there is no user postgres")
    as_user = ["runuser", "-u", "postgres", "--"] if os.getuid() == 0 else []
    with tempfile.TemporaryDirectory(prefix="pg", dir="/tmp") as folder, socket.socket() as probe:
        os.chmod(folder, 0o777)
        password_file = Path(folder, "password")
        password_file.write_text(PASSWORD)
        password_file.chmod(0o644)
        initdb = [
            *as_user,
            str(programs / "initdb"),
            "-D",
            f"{folder}/data",
            "-U",
            "bb",
            "-A",
            "scram-sha-256",
            "--no-sync",
        ]
        initdb += ["--no-locale", "-E", "UTF8"]  # the machine's LANG may not be installed
        subprocess.run([*initdb, f"--pwfile={password_file}"], check=True, capture_output=True, cwd="/")
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        server = Server(folder, programs, as_user, port)
        try:
            server.start()
            yield server
        finally:
            server.stop()


@pytest.fixture
def postgres(server: Server) -> str:
    """The database's URL."""
    return server.url


def wait_for_port(port: int, server: subprocess.Popen) -> None:
    def answers() -> bool:
        assert server.poll() is None, f"PostgreSQL of {getpass.getuser()} has ended"
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            return False
        return True

    wait_until(answers, f"PostgreSQL of {getpass.getuser()} does not start")


@pytest.mark.slow
def test_a_search_in_postgresql_survives_kill_and_restart_and_hides_its_password(server, postgres, tiny, tmp_path):  # noqa: F811
    pytest.importorskip("psycopg", reason="needs the database's driver: pip install 'psycopg[binary]'")
    arguments = (*tiny, "--study", "s", "--trials", 3, "--max-epochs", 40, "--scheduler", "none")
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
    assert "does not answer" in said[0] and "answers again" in said[-1] and PASSWORD not in "".join(said)
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
