"""Read a study's progress with the standard library: the plan from ``study.json``, the rest from ``optuna.journal``.

A study in a database has no journal. Its driver writes ``progress.json`` after each epoch
(``bigbatch.tune.storage.progress_file``).
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
    read_journal,
)

PROGRESS_FILE = "progress.json"
"""Of a study in a database."""
UNREACHED_H = 1e6
"""From this value on, a trial has missed the search's target (``bigbatch.tune.runs.objective``)."""
EPOCH_MARK = f'"{EPOCH_PREFIX}'.encode()
EPOCH_PARTS = ("train_s", "bn_s", "val_s", "checkpoint_s")
"""The fields of an epoch's record whose sum is its duration (``bigbatch.tune.runs.tables.epoch_s``)."""


@dataclass(frozen=True)
class StudyProgress:
    """The current progress of a study."""

    name: str
    planned: int | None
    complete: int = 0
    pruned: int = 0
    failed: int = 0
    running: int = 0
    waiting: int = 0
    best: float | None = None
    """Value of the best complete trial, in the study's first objective."""

    @property
    def finished(self) -> int:
        """The number of trials that count towards ``planned``."""
        return self.complete + self.pruned + self.failed


def read_study_progress(folder: str | Path) -> StudyProgress | None:
    """The study in ``folder``; None if there is none that can be read."""
    folder = Path(folder)
    description = read_json(folder / "study.json")
    if "name" not in description:
        return None
    name, planned = str(description["name"]), json_values.whole_number_or_none(description, "trials")
    if not (folder / JOURNAL_NAME).exists():
        return _of_database(folder, name, planned)
    found: StoredStudy[StoredTrial] = StoredStudy([])
    with contextlib.suppress(OSError):
        found = read_journal(folder, name, StoredTrial, STATES) or found
    states = [trial.state for trial in found.trials]
    done = [trial.value for trial in found.trials if trial.state == State.COMPLETE and trial.value is not None]
    values = [value for value in done if not math.isnan(value)]
    return StudyProgress(
        name=name,
        planned=planned,
        complete=states.count(State.COMPLETE),
        pruned=states.count(State.PRUNED),
        failed=states.count(State.FAIL),
        running=states.count(State.RUNNING),
        waiting=states.count(State.WAITING),
        best=_best(values, json_values.text(description, "objective")),
    )


def _best(values: list[float], objective: str) -> float | None:
    """The best of the values. ``objective``: as study.json has it; empty: an earlier version's, validation top-1.

    The value of a search for a target (``val_top1=0.759``) is device hours; a trial that missed it has no hours.
    """
    if "=" in objective:
        return min((value for value in values if value < UNREACHED_H), default=None)
    return (min if objective.partition(",")[0].endswith(":min") else max)(values, default=None)


def _of_database(folder: Path, name: str, planned: int | None) -> StudyProgress:
    """The progress that the driver last wrote down; zero if it has written none yet."""
    noted = read_json(folder / PROGRESS_FILE)
    return StudyProgress(
        name=name,
        planned=planned,
        complete=json_values.whole_number(noted, "complete"),
        pruned=json_values.whole_number(noted, "pruned"),
        failed=json_values.whole_number(noted, "failed"),
        running=json_values.whole_number(noted, "running"),
        waiting=json_values.whole_number(noted, "waiting"),
        best=json_values.number_or_none(noted, "best"),
    )


def finished_epochs(folder: str | Path) -> int:
    """The number of epochs that the study has recorded, in all trials. Raises OSError for an unreadable journal."""
    try:
        with (Path(folder) / JOURNAL_NAME).open("rb") as lines:
            return sum(EPOCH_MARK in line for line in lines)
    except FileNotFoundError:
        return json_values.whole_number(read_json(Path(folder) / PROGRESS_FILE), "epochs")


def longest_epoch_s(folder: str | Path) -> float | None:
    """Seconds of the longest epoch that the study has recorded; None if there is none."""
    longest = None
    try:
        with (Path(folder) / JOURNAL_NAME).open("rb") as lines:
            for line in lines:
                # The driver may be writing the last line at this moment.
                if EPOCH_MARK in line and line.endswith(b"\n"):
                    attributes = json_values.mapping(json_values.json_object(line), "user_attr")
                    for name in attributes:
                        record = json_values.mapping(attributes, name)
                        seconds = sum(json_values.number(record, part) for part in EPOCH_PARTS)
                        longest = max(longest or 0.0, seconds)
    except FileNotFoundError:
        return json_values.number_or_none(read_json(Path(folder) / PROGRESS_FILE), "longest_epoch_s")
    except (OSError, ValueError):
        pass
    return longest
