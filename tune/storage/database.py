"""Keep a study in a database that may be unreachable for a while: it restarts, fails over, or the network breaks.

Optuna gives up when a call fails. Here a failed call is repeated for some minutes. No call takes effect twice: its
first attempt may have succeeded while only the answer was lost. A driver begins trials only in its turn, so if a second
attempt finds the work done, the first attempt did it. Its turn may have ended with the connection; then two drivers can
mean the same trial, and its owner attribute decides between them.

A turn is a lock in the study's database: one driver at a time decides what a shared study starts next. PostgreSQL has
advisory locks. One is held in a transaction of its own connection, so it ends with its process, however that ends. A
database in a file (SQLite) can only be shared on one host; there a lock on a file beside it does the same.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from optuna.exceptions import StorageInternalError, UpdateFinishedTrialError
from optuna.storages import BaseStorage, RDBStorage
from optuna.storages._rdb import models
from optuna.storages._rdb.storage import _create_scoped_session
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy import text
from sqlalchemy.engine import Engine
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.orm import Session

from bigbatch.train_loop.config import ConfigError
from bigbatch.tune.storage.description import redact
from bigbatch.tune.storage.storage_url import DatabaseLost

PATIENCE_S = 300.0
"""How long a call is repeated. Meanwhile the trials train and their reports wait."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 15.0
REPEATED = (
    "set_study_user_attr", "set_study_system_attr", "get_study_id_from_name", "get_study_name_from_id",
    "get_study_directions", "get_study_user_attrs", "get_study_system_attrs", "get_all_studies", "_set_trial_param",
    "get_trial_id_from_study_id_trial_number", "_get_best_trial_id", "set_trial_intermediate_value",
    "set_trial_user_attr", "set_trial_system_attr", "get_trial", "get_trial_param", "_get_trials",
)  # fmt: skip
"""Calls that only read, or set something to a value: repeating them changes nothing."""

T = TypeVar("T")


class PatientStorage(RDBStorage):
    """Optuna's storage in a database. It repeats calls whose connection was lost.

    It checks each connection before use (``pool_pre_ping``).
    """

    def __init__(self, url: str) -> None:
        self._newest: int | None = None
        self._again = False
        self._lost = False
        self._hasty = threading.local()
        super().__init__(url, engine_kwargs={"pool_pre_ping": True})

    @contextlib.contextmanager
    def hasty(self) -> Iterator[None]:
        """Within it, calls of this thread do not wait for a database that is away; they fail, and nobody is told."""
        self._hasty.on = True
        try:
            yield
        finally:
            self._hasty.on = False

    def set_trial_state_values(self, trial_id: int, state: TrialState, values: Sequence[float] | None = None) -> bool:
        """As Optuna's method, also when an earlier attempt has already set the state."""
        attempts = 0

        def attempt() -> bool:
            nonlocal attempts
            attempts += 1
            try:
                # False: the trial already runs. Another process set that, or our own call whose answer was lost.
                done = RDBStorage.set_trial_state_values(self, trial_id, state, values)
            except UpdateFinishedTrialError:
                if attempts == 1:
                    raise
                done = False
            return done or (attempts > 1 and RDBStorage.get_trial(self, trial_id).state == state)

        return self._repeat(attempt)

    def drop_proposal(self, trial_id: int) -> None:
        """Forget the parameters of a trial that is half drawn, and its sampler's notes. Optuna has no such call."""
        params, notes = models.TrialParamModel, models.TrialSystemAttributeModel

        def drop() -> None:
            with _create_scoped_session(self.scoped_session) as session:
                session.query(params).filter(params.trial_id == trial_id).delete()
                # fixed_params are those of an enqueued trial, which is to be drawn again alike.
                session.query(notes).filter(notes.trial_id == trial_id, notes.key != "fixed_params").delete()

        self._repeat(drop)

    def _create_new_trial(self, study_id: int, template_trial: FrozenTrial | None = None) -> FrozenTrial:
        def newest() -> int:
            trials = RDBStorage._get_trials(self, study_id, None, set(), -1 if self._newest is None else self._newest)
            return max((t._trial_id for t in trials), default=-1 if self._newest is None else self._newest)

        # Asked before the insertion: whatever is above it when the insertion is repeated, the first attempt has
        # inserted.
        self._newest, self._again = self._repeat(newest), False
        return self._repeat(lambda: RDBStorage._create_new_trial(self, study_id, template_trial))

    def _get_prepared_new_trial(
        self, study_id: int, template_trial: FrozenTrial | None, session: Session
    ) -> models.TrialModel:
        """Optuna's insertion. If an earlier attempt has already inserted the trial, returns that one."""
        again, self._again = self._again, True
        if not again:
            return super()._get_prepared_new_trial(study_id, template_trial, session)
        made = session.query(models.TrialModel).filter(
            models.TrialModel.study_id == study_id, models.TrialModel.trial_id > self._newest
        )
        return made.first() or super()._get_prepared_new_trial(study_id, template_trial, session)

    def _repeat(self, call: Callable[[], T]) -> T:
        """The call's result. Raises DatabaseLost if there is none within ``PATIENCE_S``."""
        if getattr(self._hasty, "on", False):
            return call()
        began, pause_s, warned = time.monotonic(), FIRST_PAUSE_S, False
        while True:
            try:
                result = call()
            except (StorageInternalError, DBAPIError) as error:
                reason = connection_lost(error)
                if reason is None:
                    raise
                if self._lost or time.monotonic() - began > PATIENCE_S:
                    self._lost = True  # later calls do not wait again
                    raise DatabaseLost(f"the database has not answered for {PATIENCE_S:.0f} s: {reason}") from None
                if not warned:
                    _warn(f"the database does not answer, trying again for {PATIENCE_S:.0f} s: {reason}")
                warned = True
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            else:
                if warned:
                    _warn(f"the database answers again, after {time.monotonic() - began:.0f} s")
                return result


def _repeated(name: str) -> object:
    plain = getattr(RDBStorage, name)

    def method(self: PatientStorage, *args: object, **options: object) -> object:
        return self._repeat(lambda: plain(self, *args, **options))

    return method


for _name in REPEATED:
    setattr(PatientStorage, _name, _repeated(_name))


def connection_lost(error: BaseException) -> str | None:
    """The reason, in one line without passwords, if the connection failed; None if the call itself was wrong."""
    # Optuna wraps SQLAlchemy's errors in one of its own.
    cause = error if isinstance(error, DBAPIError) else error.__cause__
    if not isinstance(cause, DBAPIError):
        return None
    if not isinstance(cause, OperationalError | InterfaceError) and not cause.connection_invalidated:
        return None
    return redact(" ".join(str(cause.orig).split()))


def _warn(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr, flush=True)


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
