"""A study in a database, which may be unreachable for a while, and the lock that several drivers of it share.

A call whose connection was lost is repeated for some minutes. Optuna's heartbeat says which trials still run.

A turn is a lock in the study's database: one driver at a time decides what a shared study starts next. PostgreSQL has
advisory locks. One is held in a transaction of its own connection, so it ends with its process, however that ends. A
database in a file (SQLite) can only be shared on one host; there a lock on a file beside it does the same.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from optuna.exceptions import ExperimentalWarning, StorageInternalError, UpdateFinishedTrialError
from optuna.storages import BaseStorage, RDBStorage
from optuna.trial import TrialState
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError

from bigbatch.tune.storage.description import redact
from bigbatch.tune.storage.storage_url import DatabaseLost

PATIENCE_S, PAUSE_S = 300.0, 2.0
"""How long a call is repeated. Meanwhile the trials train and their reports wait."""
BEAT_S, DEAD_AFTER_S = 10, 60
"""A trial counts as left if its driver has given no sign of life for DEAD_AFTER_S. BEAT_S: between two signs."""
TRY_FOR_S, POLL_S = 5.0, 0.05
"""How long a driver waits for its turn. Then it asks again later, so that a hanging driver does not stop the others."""
REPEATED = (
    "set_study_user_attr", "set_study_system_attr", "get_study_id_from_name", "get_study_name_from_id",
    "get_study_directions", "get_study_user_attrs", "get_study_system_attrs", "get_all_studies", "_set_trial_param",
    "get_trial_id_from_study_id_trial_number", "_get_best_trial_id", "set_trial_intermediate_value",
    "set_trial_user_attr", "set_trial_system_attr", "get_trial", "get_trial_param", "_get_trials", "_create_new_trial",
    "record_heartbeat", "_get_stale_trial_ids",
)  # fmt: skip
"""If a repeated call creates a second trial, that belongs to no driver, and the next turn puts it back."""


class PatientStorage(RDBStorage):
    """Optuna's storage in a database. It repeats calls whose connection was lost."""

    def __init__(self, url: str) -> None:
        self._warned = self._lost = False
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)  # of the heartbeat
            super().__init__(url, {"pool_pre_ping": True}, heartbeat_interval=BEAT_S, grace_period=DEAD_AFTER_S)

    def get_heartbeat_interval(self) -> None:
        """None: else Optuna would warn at each trial that only its own loop records heartbeats. drivers.py does it."""

    def set_trial_state_values(self, trial_id: int, state: TrialState, values: Sequence[float] | None = None) -> bool:
        """As Optuna's method, also when an attempt whose answer was lost has already set the state."""
        attempts: list[int] = []

        def attempt() -> bool:
            attempts.append(trial_id)
            try:
                done = RDBStorage.set_trial_state_values(self, trial_id, state, values)
            except UpdateFinishedTrialError:
                if len(attempts) == 1:
                    raise
                done = False
            return done or (len(attempts) > 1 and RDBStorage.get_trial(self, trial_id).state == state)

        return bool(self._repeat(attempt))

    def _repeat(self, call: Callable[[], Any]) -> Any:
        """The call's result. Raises DatabaseLost if there is none within ``PATIENCE_S``; later calls do not wait."""
        until = time.monotonic() + PATIENCE_S
        while True:
            try:
                result = call()
            except (StorageInternalError, DBAPIError) as error:
                if (reason := connection_lost(error)) is None:
                    raise
                if self._lost or time.monotonic() > until:
                    self._lost = True
                    raise DatabaseLost(f"the database has not answered for {PATIENCE_S:.0f} s: {reason}") from None
                if not self._warned:
                    self._warned = True
                    _warn(f"the database does not answer, trying again for {PATIENCE_S:.0f} s: {reason}")
                time.sleep(PAUSE_S)
            else:
                self._warned = self._lost = False
                return result


def _repeated(name: str) -> object:
    plain = getattr(RDBStorage, name)
    return lambda self, *args, **options: self._repeat(lambda: plain(self, *args, **options))


for _name in REPEATED:
    setattr(PatientStorage, _name, _repeated(_name))


def connection_lost(error: BaseException) -> str | None:
    """The reason, in one line without passwords, if the connection failed; None if the call itself was wrong."""
    # Optuna wraps SQLAlchemy's errors in one of its own.
    cause = error if isinstance(error, DBAPIError) else error.__cause__
    if isinstance(cause, DBAPIError) and (
        isinstance(cause, OperationalError | InterfaceError) or cause.connection_invalidated
    ):
        return redact(" ".join(str(cause.orig).split()))
    return None


def _warn(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def study_lock(storage: BaseStorage, name: str, wait_s: float | None = None) -> Iterator[bool]:
    """Hold the lock of the study ``name`` in the database. Gives False if another driver held it for ``wait_s``.

    In a database that several drivers cannot share, there is nothing to wait for.
    """
    backend = getattr(storage, "_backend", storage)  # Optuna puts a cache of its own around a database
    assert isinstance(backend, RDBStorage)
    wait_s = TRY_FOR_S if wait_s is None else wait_s
    kind, file = backend.engine.dialect.name, backend.engine.url.database
    if kind == "sqlite" and file:
        with open(f"{file}.lock", "a") as lock:
            yield _tried(lambda: _flocked(lock.fileno()), wait_s)
    elif kind == "postgresql":
        # PostgreSQL names a lock by a signed number of 64 bits.
        number = int.from_bytes(hashlib.sha256(f"bigbatch:{name}".encode()).digest()[:8], "big", signed=True)
        # pg_try: a call that waits would not come back while another driver hangs.
        query = text("SELECT pg_try_advisory_xact_lock(:number)").bindparams(number=number)
        connection = None
        try:
            connection = backend.engine.connect()
            held = _tried(lambda: bool(connection.execute(query).scalar()), wait_s)
        except DBAPIError:  # the database is away; the study's own calls wait for it, and say so
            held = False
        try:
            yield held
        finally:
            with contextlib.suppress(DBAPIError):  # with the connection the lock has ended too
                if connection is not None:
                    connection.close()
    else:
        yield True


def _tried(attempt: Callable[[], bool], wait_s: float) -> bool:
    """Whether an attempt succeeded within ``wait_s`` seconds."""
    until = time.monotonic() + wait_s
    while not attempt():
        if time.monotonic() >= until:
            return False
        time.sleep(POLL_S)
    return True


def _flocked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
