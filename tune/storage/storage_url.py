"""Check ``--storage`` before the database is opened. Works without SQLAlchemy, which login nodes may lack."""

from __future__ import annotations

import os
import re
from pathlib import Path

from bigbatch.base.mounts import file_system_type, is_shared
from bigbatch.train_loop.config import ConfigError
from bigbatch.tune.storage.description import redact


class DatabaseLost(RuntimeError):
    """The database has not answered for as long as calls are repeated (``tune/storage/database.py``)."""


def sqlite_file(url: str | None) -> Path | None:
    """The file of an SQLite database; None for another database, or one in memory."""
    match = re.fullmatch(r"sqlite(?:\+\w+)?:///([^?]+)(?:\?.*)?", url or "", flags=re.IGNORECASE)
    if match is None or match.group(1) == ":memory:" or match.group(1).startswith("file:"):
        return None
    return Path(match.group(1))


def check_database_file(url: str | None) -> None:
    """Raise ConfigError if ``url`` names an SQLite file that does not exist: opening it would make an empty one."""
    path = sqlite_file(url)
    if path is not None and not os.path.exists(path):
        raise ConfigError(
            f"--resume needs the study's trials; there is no database at {redact(str(url))!r}. "
            "Write the --storage with which the study began."
        )


def check_url(url: str | None) -> None:
    """Raise ConfigError if ``url`` cannot name a database. Does not open it; without SQLAlchemy it checks nothing."""
    if url is None:
        return
    try:
        from sqlalchemy.engine import make_url
        from sqlalchemy.exc import ArgumentError, NoSuchModuleError
    except ModuleNotFoundError:
        return
    try:
        made = make_url(url)
        made.get_dialect().import_dbapi()
    except (ArgumentError, NoSuchModuleError, ValueError):
        raise ConfigError(
            f"--storage must be a database's URL; got {redact(url)!r}. "
            "Write e.g. postgresql://USER@HOST/NAME, or leave it out for a journal file."
        ) from None
    except ImportError as error:
        raise ConfigError(
            f"--storage needs a driver that is not installed; got {redact(url)!r} and no {error.name!r}. "
            "Install it, or name an installed one: postgresql+DRIVER://…"
        ) from None
    if made.get_backend_name() == "sqlite" and made.database in (None, "", ":memory:"):
        raise ConfigError(
            f"--storage must be a database that outlives the search; got {url!r}, which is in memory. "
            "Write e.g. sqlite:///study.db, or leave it out for a journal file."
        )


def shared_file_warning(url: str | None) -> str | None:
    """A warning if an SQLite file lies on a file system that several hosts share; else None.

    SQLite needs locks that such file systems support only in part, or not at all (sqlite.org/faq.html#q5, optuna #815).
    """
    path = sqlite_file(url)
    if path is None or not is_shared(path):
        return None
    kind = file_system_type(path)
    return f"SQLite may damage its file on {kind}, which several hosts share: leave --storage out, or use PostgreSQL"
