"""``bigbatch export --sqlite FILE``: the study in an SQLite file, for optuna-dashboard and its VS Code extension.

A search keeps its study in a journal, because SQLite may damage its file on a shared file system
(docs/dependencies.md). The copy is made with Optuna's own functions and nobody searches with it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from bigbatch.base.atomic_files import replacing
from bigbatch.cluster.host.optuna_journal import JOURNAL_NAME
from bigbatch.train_loop.config import ConfigError
from bigbatch.tune.storage.description import STUDY_FILE, read_description
from bigbatch.tune.storage.storage_url import sqlite_file
from bigbatch.tune.storage.study_tables import name_of_study, study_of_database

if TYPE_CHECKING:
    from optuna.study import Study

EXPORTED_ATTR = "bigbatch.exported_from"
"""User attribute of the copied study: the folder that it was copied from. Only such a study is replaced."""


def write_optuna_database(folder: Path, path: Path, storage: str | None) -> None:
    """Copy the study into the SQLite file ``path``, beside other studies that it holds. An older copy is replaced.

    Trials keep their numbers, states, values, intermediate values and attributes. A reader of ``path`` finds the old
    file or the new one.

    Args:
        folder: of the study.
        storage: URL of the study's own database, if it is in one.

    Raises:
        ConfigError: ``path`` is the study's own database, no Optuna database, or holds a study of that name that was
            searched there or copied from another folder.
        OSError: ``path`` cannot be written.
    """
    own = sqlite_file(storage)
    if own is not None and path.exists() and own.exists() and os.path.samefile(own, path):
        raise ConfigError(f"--sqlite writes a copy; {str(path)!r} is the study's own database. Write another file.")
    if path.exists() and not path.is_file() and not path.is_dir():  # root could replace /dev/null
        raise ConfigError(f"--sqlite takes a file; got {str(path)!r}, a stream or device. Write e.g. --sqlite copy.db.")
    path.parent.mkdir(parents=True, exist_ok=True)
    # On this node: SQLite may damage its file on a shared file system.
    with tempfile.TemporaryDirectory(prefix="bigbatch-export-") as copies:
        made = Path(copies) / "copy.db"
        if path.exists():
            shutil.copyfile(path, made)
        _copy_into(_study(folder, Path(copies), storage), str(folder.absolute()), made, path)
        with replacing(path) as file, made.open("rb") as content:
            shutil.copyfileobj(content, file)


def _study(folder: Path, copies: Path, storage: str | None) -> Study:
    """The study as Optuna opens it: of its database, or of a copy of its journal in ``copies``, which is one moment of
    a search that goes on. Raises ConfigError if it cannot be opened."""
    name = name_of_study(folder, read_description(folder))
    if storage is not None:
        return study_of_database(name, storage)
    if not (folder / JOURNAL_NAME).exists():
        raise ConfigError(
            f"the study must have a journal or a database; {JOURNAL_NAME} is not in {str(folder)!r}. "
            "Write --storage URL, with which the study began."
        )
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    journal = (folder / JOURNAL_NAME).read_bytes()
    (copies / JOURNAL_NAME).write_bytes(journal[: journal.rfind(b"\n") + 1])  # the driver may write its last line now
    return optuna.load_study(study_name=name, storage=JournalStorage(JournalFileBackend(str(copies / JOURNAL_NAME))))


def _copy_into(study: Study, source: str, made: Path, path: Path) -> None:
    import optuna
    from optuna.storages import RDBStorage
    from sqlalchemy.exc import SQLAlchemyError

    optuna.logging.set_verbosity(optuna.logging.WARNING)  # else a line says that a study was made
    try:
        storage = RDBStorage(f"sqlite:///{made}")
    except (SQLAlchemyError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(
            f"--sqlite takes a new file or an Optuna database; got {str(path)!r} ({reason}). Write another file."
        ) from None
    try:
        if study.study_name in optuna.get_all_study_names(storage):
            earlier = optuna.load_study(study_name=study.study_name, storage=storage)
            if EXPORTED_ATTR not in earlier.user_attrs:
                raise ConfigError(
                    f"--sqlite replaces only a copy; {str(path)!r} has a study {study.study_name!r} that was searched "
                    "there. Write another file."
                )
            check_origin("sqlite", str(path), study.study_name, str(earlier.user_attrs[EXPORTED_ATTR]), Path(source))
            optuna.delete_study(study_name=study.study_name, storage=storage)
        copied = optuna.create_study(storage=storage, study_name=study.study_name, directions=study.directions)
        for key, value in study.user_attrs.items():
            copied.set_user_attr(key, value)
        copied.set_user_attr(EXPORTED_ATTR, source)
        copied.add_trials(study.get_trials(deepcopy=False))
    finally:
        storage.remove_session()
        storage.engine.dispose()


def check_origin(option: str, target: str, name: str, earlier: str, folder: Path) -> None:
    """Raise ConfigError if ``target`` holds the copy of another study of the same name.

    A copy of the folder's study, or of a folder that has gone because the study was moved, may be replaced.

    Args:
        earlier: the folder that was copied before, as that export noted it; empty: not known.
        folder: the study's.
    """
    if not earlier or Path(earlier).resolve() == folder.resolve() or not (Path(earlier) / STUDY_FILE).exists():
        return
    raise ConfigError(
        f"--{option} holds one study of each name; {target!r} has a copy of {name!r} from {earlier!r}. "
        f"Write another --{option}."
    )
