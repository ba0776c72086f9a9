"""Fixtures of whole searches, and of a database."""

import os
import socket
import sqlite3
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, event

from bigbatch.tune.storage.store import StudyStore
from helpers.postgres import PASSWORD, Server, server_programs
from helpers.searches import TINY


@event.listens_for(Engine, "connect")
def _sqlite_waits_for_no_disk(connection: object, _: object) -> None:
    """As ``_nobody_waits_for_the_disk`` in tests/conftest.py."""
    if isinstance(connection, sqlite3.Connection):
        connection.execute("PRAGMA synchronous = OFF")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StudyStore]:
    """A study of its own for each test that asks for it."""
    store = StudyStore.create(tmp_path / "study", "s", {}, None)
    yield store
    store.close()


@pytest.fixture
def tiny(tiny_images: Path, tiny_space: Path) -> tuple[str, ...]:
    """Arguments of a search whose trials train in a moment."""
    return ("--space", str(tiny_space), "--data", str(tiny_images), *TINY)


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
        initdb = [*as_user, str(programs / "initdb"), "-D", f"{folder}/data", "-U", "bb", "-A", "scram-sha-256"]
        initdb += ["--no-sync", "--no-locale", "-E", "UTF8"]  # the machine's LANG may not be installed
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
