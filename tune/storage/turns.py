"""The turn of a driver: no other driver of the study decides meanwhile. Without a database there is no other one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import optuna

from bigbatch.train_loop.config import ConfigError

PATIENT_S = 60.0
"""How long a driver waits for its first turn."""
Agree = Callable[[optuna.Study], None]


def agree_at_once(study: optuna.Study) -> None:
    """Refuse nothing."""


@contextlib.contextmanager
def deciding(storage: optuna.storages.BaseStorage, name: str) -> Iterator[None]:
    """The time in which no other driver of a study in a database decides.

    Raises ConfigError if another one does not end its turn.
    """
    if isinstance(storage, optuna.storages.JournalStorage):
        yield
        return
    # SQLAlchemy, which a journal does not need.
    from bigbatch.tune.storage.database import study_lock

    with study_lock(storage, name, PATIENT_S) as may:
        if not may:
            raise ConfigError(
                f"--storage must let a driver have its turn; got none within {PATIENT_S:.0f} s, because another driver "
                f"of {name!r} hangs. End that one, and start again."
            )
        yield
