"""The two tables of a study as they are now, and the study itself, for readers. Writes and locks nothing there.

A study with a journal is read from it, up to a line that the driver may just write. Of a study in a database the folder
has the tables, which may be some seconds old while trials run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bigbatch.cluster.host.optuna_journal import JOURNAL_NAME
from bigbatch.train_loop.config import ConfigError
from bigbatch.tune.runs.objectives import Objectives, objectives_of
from bigbatch.tune.runs.run import Run, begun
from bigbatch.tune.storage.description import read_description
from bigbatch.tune.storage.summary import summarize

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class StudyTables:
    """A study as its tables say it; docs/study-folder.md explains the columns."""

    objectives: Objectives
    runs: Sequence[Run]
    """Those that have begun, in the order of their numbers."""
    trials: pa.Table
    """A row for each of ``runs``."""
    epochs: pa.Table


def read_tables(folder: Path) -> StudyTables:
    """The tables of the study in ``folder``, as they are now, or as they were last written of one in a database.

    Raises ConfigError if there is no study, no trial yet, or a damaged file.
    """
    try:
        found = _read_tables(folder)
    except ConfigError:
        raise
    except Exception as error:  # files that someone has edited may hold anything
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise ConfigError(
            f"the files of a study must be as a search wrote them; those in {str(folder)!r} are not ({reason}). "
            "bigbatch report shows what can be read."
        ) from None
    if not found.runs:
        raise ConfigError(f"a study needs a trial that has begun; got none in {str(folder)!r}. Try again later.")
    return found


def _read_tables(folder: Path) -> StudyTables:
    objectives = objectives_of(read_description(folder))
    summary = summarize(folder)
    if summary.problem:  # study.json was read above
        raise ConfigError(
            f"a study's {JOURNAL_NAME}, or the tables of one in a database, must be readable; got {str(folder)!r}. "
            f"{summary.problem} Restore it from a copy; bigbatch report shows what can be read."
        )
    trials = summary.study.trials
    from bigbatch.tune.runs.tables import epochs_table, trials_table

    return StudyTables(objectives, begun(trials), trials_table(trials, objectives), epochs_table(trials))
