"""The two tables of a study as they are now, and the study itself, for what only reads. Writes and locks nothing there.

A study with a journal is read from it, up to a line that the driver may just write. Of a study in a database the folder
has the tables, which may be some seconds old while trials run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bigbatch.base import json_values
from bigbatch.cluster.host.optuna_journal import JOURNAL_NAME
from bigbatch.train_loop.config import ConfigError
from bigbatch.tune.runs.objectives import Objectives, objectives_of
from bigbatch.tune.runs.run import Run, begun
from bigbatch.tune.storage.description import read_description
from bigbatch.tune.storage.storage_url import check_database_file, check_url
from bigbatch.tune.storage.summary import summarize

if TYPE_CHECKING:
    import pyarrow as pa
    from optuna.study import Study


@dataclass(frozen=True)
class StudyTables:
    """A study as its tables say it; docs/study-folder.md explains the columns."""

    name: str
    objectives: Objectives
    runs: Sequence[Run]
    """Those that have begun, in the order of their numbers."""
    trials: pa.Table
    """A row for each of ``runs``."""
    epochs: pa.Table


def name_of_study(folder: Path, description: Mapping[str, object]) -> str:
    """The study's name; that of its folder where study.json lacks it."""
    return json_values.text(description, "name") or folder.name


def read_tables(folder: Path, storage: str | None) -> StudyTables:
    """The tables of the study in ``folder``, as they are now.

    Args:
        storage: URL of the study's database. None: its journal, or its tables as they were last written.

    Raises ConfigError if there is no study, no trial yet, or a damaged file.
    """
    try:
        found = _read_tables(folder, storage)
    except ConfigError:
        raise
    except Exception as error:  # files that someone has edited may hold anything
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise ConfigError(
            f"the files of a study must be as a search wrote them; those in {str(folder)!r} are not ({reason}). "
            "bigbatch report shows what can be read."
        ) from None
    if not found.runs:
        raise ConfigError(
            f"a study needs a trial that has begun; got none in {str(folder)!r}. Try again later; bigbatch export also "
            "takes the --storage URL of a study in a database."
        )
    return found


def _read_tables(folder: Path, storage: str | None) -> StudyTables:
    description = read_description(folder)
    objectives = objectives_of(description)
    name = name_of_study(folder, description)
    if storage is not None:
        trials = [Run.of(trial) for trial in study_of_database(name, storage).trials]
    else:
        summary = summarize(folder)
        if summary.problem:  # study.json was read above
            raise ConfigError(
                f"a study's {JOURNAL_NAME}, or the tables of one in a database, must be readable; got {str(folder)!r}. "
                f"{summary.problem} Restore it from a copy; bigbatch report shows what can be read."
            )
        trials = summary.study.trials
    from bigbatch.tune.runs.tables import epochs_table, trials_table

    return StudyTables(name, objectives, begun(trials), trials_table(trials, objectives), epochs_table(trials))


def study_of_database(name: str, storage: str) -> Study:
    """The study as Optuna opens it. Raises ConfigError if it cannot be opened."""
    check_url(storage)
    check_database_file(storage)
    import optuna
    from optuna.exceptions import StorageInternalError
    from sqlalchemy.exc import SQLAlchemyError

    from bigbatch.tune.storage.description import redact

    try:
        return optuna.load_study(study_name=name, storage=storage)
    except KeyError:
        raise ConfigError(
            f"--storage must be the study's database; {redact(storage)!r} has no study called {name!r}. "
            "Write the --storage with which the study began."
        ) from None
    except (SQLAlchemyError, StorageInternalError, RuntimeError) as error:
        reason = redact(" ".join(str(error).split()))
        raise ConfigError(f"--storage must be a database that answers; got {redact(storage)!r} ({reason}).") from None
