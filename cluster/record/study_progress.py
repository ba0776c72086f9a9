"""Read a study's progress with the standard library: ``study.json``, ``frontier.json`` and ``optuna.journal``.

A study in a database has no journal. Its driver writes ``progress.json`` with its tables.
"""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass
from pathlib import Path

from bigbatch.base import json_values
from bigbatch.base.atomic_files import read_json
from bigbatch.cluster.host.optuna_journal import (
    EPOCH_PREFIX,
    JOURNAL_NAME,
    STATES,
    State,
    StoredStudy,
    StoredTrial,
    counted_trials,
    read_journal,
)

PROGRESS_FILE = "progress.json"
"""The driver of a study in a database writes it."""
UNREACHED_H = 1e6
"""From this value on, a trial has missed the search's target (``bigbatch.tune.runs.objective``)."""
EPOCH_MARK = f'"{EPOCH_PREFIX}'.encode()


@dataclass(frozen=True)
class StudyProgress:
    """The current progress of a study."""

    name: str
    planned: int | None
    finished: int = 0
    """The number of trials that have ended, as ``planned`` counts them: see ``counted_trials``."""
    ended: int = 0
    """All trials that have ended, also confirmations. It never falls, as ``finished`` does when a trial is repeated."""
    best: float | None = None
    """The answer's value as the search's end says it; without an answer, the best one in the first objective."""


def read_study_progress(folder: str | Path) -> StudyProgress | None:
    """The study in ``folder``; None if there is none that can be read."""
    folder = Path(folder)
    description = read_json(folder / "study.json")
    if "name" not in description:
        return None
    name, planned = str(description["name"]), json_values.whole_number_or_none(description, "trials")
    if (folder / JOURNAL_NAME).exists():
        found: StoredStudy[StoredTrial] = StoredStudy([])
        with contextlib.suppress(OSError):
            found = read_journal(folder, name, StoredTrial, STATES) or found
        counted = counted_trials(found.trials)
        done = [trial.value for trial in counted if trial.state == State.COMPLETE and trial.value is not None]
        best = _best([value for value in done if not math.isnan(value)], json_values.text(description, "objective"))
        finished, ended = (sum(trial.state.is_finished() for trial in some) for some in (counted, found.trials))
    else:
        noted = read_json(folder / PROGRESS_FILE)  # nothing, if the driver has written none yet
        finished, ended = (json_values.whole_number(noted, key) for key in ("finished", "ended"))
        best = json_values.number_or_none(noted, "best")
    answer = read_json(folder / "frontier.json")
    trial = json_values.mapping(answer, "answer").get("trial", "none")
    rows = (row for row in json_values.objects(answer, "rows") if row.get("trial") == trial)
    best = next((json_values.number_or_none(row, "reported") for row in rows), best)
    return StudyProgress(name, planned, finished, ended, best)


def _best(values: list[float], objective: str) -> float | None:
    """The best of the values. ``objective``: as study.json has it; empty: an earlier version's, validation top-1.

    The value of a search for a target (``val_top1=0.759``) is device hours; a trial that missed it has no hours.
    """
    if "=" in objective:
        return min((value for value in values if value < UNREACHED_H), default=None)
    return (min if objective.partition(",")[0].endswith(":min") else max)(values, default=None)


def finished_epochs(folder: str | Path) -> int:
    """The number of epochs that the study has recorded, in all trials. Raises OSError for an unreadable journal."""
    try:
        with (Path(folder) / JOURNAL_NAME).open("rb") as lines:
            return sum(EPOCH_MARK in line for line in lines)
    except FileNotFoundError:
        return json_values.whole_number(read_json(Path(folder) / PROGRESS_FILE), "epochs")
