"""One driver at a time decides what a shared study starts next: a lock in the study's database.

PostgreSQL has advisory locks. One is held in a transaction of its own connection, so it ends with its process, however
that ends. A database in a file (SQLite) can only be shared on one host; there a lock on a file beside it does the same.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from optuna.storages import BaseStorage, RDBStorage
from sqlalchemy import text
from sqlalchemy.engine import Engine
from sqlalchemy.exc import DBAPIError

from bigbatch.train_loop.config import ConfigError

TRY_FOR_S = 5.0
"""How long a driver waits for its turn. Then it asks again later, so that a hanging driver does not stop the others."""
PAUSE_S = 0.05


class StudyLock:
    """The lock of the study ``name`` in the database behind ``storage``. One thread uses it.

    Raises ConfigError if the database has no such lock.
    """

    def __init__(self, storage: BaseStorage, name: str) -> None:
        backend = getattr(storage, "_backend", storage)
        if not isinstance(backend, RDBStorage):
            raise TypeError(f"a database is needed; got {type(storage).__name__}")
        self._engine: Engine = backend.engine
        # PostgreSQL names a lock by a signed number of 64 bits.
        self._number = int.from_bytes(hashlib.sha256(f"bigbatch:{name}".encode()).digest()[:8], "big", signed=True)
        self._depth = 0
        self._kind = self._engine.dialect.name

    @property
    def can_be_shared(self) -> bool:
        """Whether several drivers may work on a study in this database."""
        return self._kind == "postgresql" or (self._kind == "sqlite" and bool(self._file()))

    def check_shareable(self) -> None:
        """Raise ConfigError if several drivers cannot work on a study in this database."""
        if not self.can_be_shared:
            raise ConfigError(
                f"--join needs a database that can hold a lock; got one of the kind {self._kind}. "
                "Write a --storage in PostgreSQL, or leave --join out."
            )

    @contextlib.contextmanager
    def turn(self, wait_s: float | None = None) -> Iterator[bool]:
        """Hold the lock. Gives False if another driver held it for ``wait_s`` (TRY_FOR_S) seconds. May be nested."""
        if self._depth or not self.can_be_shared:
            yield True
            return
        with self._held(TRY_FOR_S if wait_s is None else wait_s) as held:
            self._depth += 1
            try:
                yield held
            finally:
                self._depth -= 1

    def _held(self, wait_s: float) -> contextlib.AbstractContextManager[bool]:
        return self._file_lock(wait_s) if self._kind == "sqlite" else self._advisory_lock(wait_s)

    @contextlib.contextmanager
    def _advisory_lock(self, wait_s: float) -> Iterator[bool]:
        connection = None
        try:
            connection = self._engine.connect()
            # pg_try: a call that waits would not come back while another driver hangs.
            query = text("SELECT pg_try_advisory_xact_lock(:number)")
            numbered = {"number": self._number}
            held = _tried(lambda: bool(connection.execute(query, numbered).scalar()), wait_s)
        except DBAPIError:  # the database is away; the study's own calls wait for it, and say so
            held = False
        try:
            yield held
        finally:
            if connection is not None:
                with contextlib.suppress(DBAPIError):  # with the connection the lock has ended too
                    connection.close()

    @contextlib.contextmanager
    def _file_lock(self, wait_s: float) -> Iterator[bool]:
        path = Path(f"{self._file()}.lock")
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            yield _tried(lambda: _flocked(descriptor), wait_s)
        finally:
            os.close(descriptor)

    def _file(self) -> str | None:
        found = self._engine.url.database
        return found if found and found != ":memory:" and not found.startswith("file:") else None


def _tried(attempt: Callable[[], bool], wait_s: float) -> bool:
    """Whether an attempt succeeded within ``wait_s`` seconds."""
    until = time.monotonic() + wait_s
    while not attempt():
        if time.monotonic() >= until:
            return False
        time.sleep(PAUSE_S)
    return True


def _flocked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
