"""Read a study's progress with the standard library: the plan from ``study.json``, the rest from ``optuna.journal``.

A study in a database has no journal. Its driver writes ``progress.json`` after each epoch
(``bigbatch.tune.watch.progress_file``).

The journal is Optuna's ``JournalStorage``: one JSON object per line. This module replays it by Optuna's rules, so the
numbers are the same as Optuna's.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bigbatch.cluster.host import json_values
from bigbatch.cluster.host.atomic_files import read_json

JOURNAL = "optuna.journal"
PROGRESS_FILE = "progress.json"
"""Of a study in a database."""
CREATE_STUDY, DELETE_STUDY, CREATE_TRIAL, SET_STATE_VALUES = 0, 1, 4, 6
RUNNING, COMPLETE, PRUNED, FAIL, WAITING = range(5)
FINISHED = (COMPLETE, PRUNED, FAIL)
_WANTED = re.compile(
    rb'\{"op_code":\s*(?:%d|%d|%d|%d)\b' % (CREATE_STUDY, DELETE_STUDY, CREATE_TRIAL, SET_STATE_VALUES)
)
UNREACHED_H = 1e6
"""From this value on, a trial has missed the search's target (``bigbatch.tune.study.target``)."""
EPOCH_MARK = b'"epoch/'
EPOCH_PARTS = ("train_s", "bn_s", "val_s", "checkpoint_s")
"""The fields of an epoch's record whose sum is its duration (``bigbatch.tune.study.tables.epoch_s``)."""


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
    if not (folder / JOURNAL).exists():
        return _of_database(folder, name, planned)
    trials = _replay(_records(folder / JOURNAL), name)
    states = [state for state, _ in trials]
    values = [value for state, value in trials if state == COMPLETE and value is not None and not math.isnan(value)]
    return StudyProgress(
        name=name,
        planned=planned,
        complete=states.count(COMPLETE),
        pruned=states.count(PRUNED),
        failed=states.count(FAIL),
        running=states.count(RUNNING),
        waiting=states.count(WAITING),
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
        with (Path(folder) / JOURNAL).open("rb") as lines:
            return sum(EPOCH_MARK in line for line in lines)
    except FileNotFoundError:
        return json_values.whole_number(read_json(Path(folder) / PROGRESS_FILE), "epochs")


def longest_epoch_s(folder: str | Path) -> float | None:
    """Seconds of the longest epoch that the study has recorded; None if there is none."""
    longest = None
    try:
        with (Path(folder) / JOURNAL).open("rb") as lines:
            for line in lines:
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


def _records(journal: Path) -> Iterator[dict[str, object]]:
    """The journal's records up to the first incomplete one, which may still be written."""
    try:
        with journal.open("rb") as lines:
            for line in lines:
                if not line.endswith(b"\n"):
                    return
                # Most lines are long epoch records, which are not needed here: skip them without parsing.
                if line.startswith(b'{"op_code":') and not _WANTED.match(line):
                    continue
                parsed = json.loads(line)
                if isinstance(parsed, dict):
                    yield parsed
    except (OSError, ValueError):
        return


def _replay(records: Iterable[dict[str, object]], name: str) -> list[tuple[int, float | None]]:
    """State and value of each trial of the study ``name``, in the order of their numbers."""
    studies: dict[int, str] = {}
    trials: list[tuple[int, int, float | None]] = []  # study, state, value; the index is the trial's id
    next_study = 0
    for entry in records:
        code = json_values.whole_number(entry, "op_code", -1)
        study, number = (json_values.whole_number(entry, key, -1) for key in ("study_id", "trial_id"))
        state = json_values.whole_number_or_none(entry, "state")
        if code == CREATE_STUDY and (new_name := json_values.text(entry, "study_name")) not in studies.values():
            studies[next_study] = new_name
            next_study += 1
        elif code == DELETE_STUDY:
            studies.pop(study, None)
        elif code == CREATE_TRIAL and study in studies:
            trials.append((study, RUNNING if state is None else state, _value(entry)))
        elif code == SET_STATE_VALUES and 0 <= number < len(trials) and state is not None:
            of_study, before, value = trials[number]
            if before not in FINISHED:  # as in Optuna, nothing changes a finished trial
                new = _value(entry)
                trials[number] = (of_study, state, value if new is None else new)
    return [(state, value) for study, state, value in trials if studies.get(study) == name]


def _value(entry: dict[str, object]) -> float | None:
    """The value in a single-objective record: from ``values``, or ``value`` if the trial was added complete."""
    values = entry.get("values")
    first = values[0] if isinstance(values, list) and values else entry.get("value")
    return float(first) if isinstance(first, (int, float)) else None
