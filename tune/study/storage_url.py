"""What can be said of ``--storage`` before the database is opened. No SQLAlchemy: login nodes may have none."""

from __future__ import annotations

import os
import re
from pathlib import Path

from bigbatch.cluster.host.mounts import file_system_type, is_shared
from bigbatch.train_loop.config import ConfigError
from bigbatch.tune.study.provenance import redact


class DatabaseLost(RuntimeError):
    """The database has not answered for as long as its calls are repeated (``tune/study/database.py``)."""


def sqlite_file(url: str | None) -> Path | None:
    """The file of an SQLite database; None where ``url`` is of something else, or of a database in memory."""
    match = re.fullmatch(r"sqlite(?:\+\w+)?:///([^?]+)(?:\?.*)?", url or "", flags=re.IGNORECASE)
    if match is None or match.group(1) == ":memory:" or match.group(1).startswith("file:"):
        return None
    return Path(match.group(1))


def check_database_file(url: str | None) -> None:
    """Raise ConfigError where ``url`` is of an SQLite file that is not there: opening would make an empty one."""
    path = sqlite_file(url)
    if path is not None and not os.path.exists(path):
        raise ConfigError(
            f"--resume needs the study's trials; got {redact(str(url))!r}, where there is no database. "
            "Give the --storage that it began with."
        )


def check_url(url: str | None) -> None:
    """Raise ConfigError where no database could be behind ``url``; it is not opened. Nothing without SQLAlchemy."""
    if url is None:
        return
    try:
        from sqlalchemy.engine import make_url
        from sqlalchemy.exc import ArgumentError, NoSuchModuleError
    except ModuleNotFoundError:
        return
    try:
        dialect = make_url(url).get_dialect()
        dialect.import_dbapi()
    except (ArgumentError, NoSuchModuleError, ValueError):
        raise ConfigError(
            f"--storage must be a database's URL; got {redact(url)!r}. "
            "Write e.g. postgresql://USER@HOST/NAME, or leave it out for a journal file."
        ) from None
    except ImportError as error:
        raise ConfigError(
            f"--storage needs a driver that is not installed; got {redact(url)!r} and no {error.name!r}. "
            "Install it, or name one that is: postgresql+DRIVER://…"
        ) from None


def shared_file_warning(url: str | None) -> str | None:
    """One line where an SQLite file lies on a file system of several hosts; None elsewhere.

    SQLite needs locks that such file systems give only in part, or not at all (sqlite.org/faq.html#q5, optuna #815).
    """
    path = sqlite_file(url)
    if path is None or not is_shared(path):
        return None
    kind = file_system_type(path)
    return f"SQLite may corrupt its file on {kind}, which hosts share: leave --storage out, or use PostgreSQL"
