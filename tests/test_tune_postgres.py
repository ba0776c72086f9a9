"""``--storage`` with a real PostgreSQL: a search that is killed and resumed, its password nowhere."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState
from test_tune_search import Search, tiny  # noqa: F401  (a fixture)

PASSWORD = "s3cret-word"


def server_programs() -> Path | None:
    """The folder of initdb and postgres; Debian keeps them off PATH."""
    found = [Path(p) for p in (shutil.which("initdb"),) if p]
    found += sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return found[-1].parent if found else None


@pytest.fixture
def postgres() -> Iterator[str]:
    """URL of an empty database, with a password, on a server that lives as long as the test."""
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
        data = f"{folder}/data"
        initdb = [*as_user, programs / "initdb", "-D", data, "-U", "bb", "-A", "scram-sha-256", "--no-sync"]
        initdb += ["--no-locale", "-E", "UTF8"]  # the machine's LANG may not be installed
        subprocess.run([*initdb, f"--pwfile={password_file}"], check=True, capture_output=True, cwd="/")
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        options = ["-D", data, "-h", "127.0.0.1", "-p", str(port), "-k", folder]
        server = subprocess.Popen([*as_user, programs / "postgres", *options], stderr=subprocess.DEVNULL, cwd="/")
        try:
            wait_for_port(port, server)
            yield f"postgresql+psycopg://bb:{PASSWORD}@127.0.0.1:{port}/postgres"
        finally:
            if server.poll() is None:  # else it did not start, which was said
                pid = Path(data, "postmaster.pid").read_text().split()[0]  # runuser does not pass signals on
                os.kill(int(pid), 2)
            server.wait(120)


def wait_for_port(port: int, server: subprocess.Popen) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and server.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.1)
    raise AssertionError(f"PostgreSQL of {getpass.getuser()} did not start")


@pytest.mark.slow
def test_a_search_in_postgresql_survives_a_kill_and_keeps_its_password_to_itself(postgres, tiny, tmp_path):  # noqa: F811
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
    assert again.end() == 0, again.stderr()
    trials = optuna.load_study(study_name="s", storage=postgres).trials
    assert [t.state for t in trials] == [TrialState.COMPLETE] * 3
    assert all(list(t.intermediate_values) == list(range(1, 41)) for t in trials)
    assert all(trials[number].params == params for number, params in before.items())

    said = "".join([*first.lines, *lost.lines, *again.lines, first.stderr(), lost.stderr(), again.stderr()])
    assert PASSWORD not in said
    files = [p for p in tmp_path.rglob("*") if p.is_file()]
    assert len(files) > 5 and not [p for p in files if PASSWORD.encode() in p.read_bytes()]
