"""How far a study is, read with the standard library: ``study.json`` for the plan, ``optuna.journal`` for the rest.

The journal is Optuna's ``JournalStorage``: one JSON object a line. It is read by the rules with which Optuna
replays it, so that the numbers are the ones that Optuna itself would give.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

JOURNAL = "optuna.journal"
CREATE_STUDY, DELETE_STUDY, CREATE_TRIAL, SET_STATE_VALUES = 0, 1, 4, 6
RUNNING, COMPLETE, PRUNED, FAIL, WAITING = range(5)
FINISHED = (COMPLETE, PRUNED, FAIL)
_WANTED = re.compile(
    rb'\{"op_code":\s*(?:%d|%d|%d|%d)\b' % (CREATE_STUDY, DELETE_STUDY, CREATE_TRIAL, SET_STATE_VALUES)
)
EPOCH_MARK = b'"epoch/'
EPOCH_PARTS = ("train_s", "bn_s", "val_s", "checkpoint_s")
"""Of an epoch's record: together the seconds that it took (``bigbatch.tune.study.tables.epoch_s``)."""


@dataclass(frozen=True)
class StudyProgress:
    """A study as it stands."""

    name: str
    planned: int | None
    complete: int = 0
    pruned: int = 0
    failed: int = 0
    running: int = 0
    waiting: int = 0
    best: float | None = None
    """Highest value of a complete trial."""

    @property
    def finished(self) -> int:
        """What counts towards ``planned``."""
        return self.complete + self.pruned + self.failed


def read_study_progress(folder: str | Path) -> StudyProgress | None:
    """The study in ``folder``; None if there is none that can be read."""
    folder = Path(folder)
    try:
        description = json.loads((folder / "study.json").read_text())
        name, planned = str(description["name"]), description.get("trials")
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    trials = _replay(_records(folder / JOURNAL), name)
    states = [state for state, _ in trials]
    values = [value for state, value in trials if state == COMPLETE and value is not None and not math.isnan(value)]
    return StudyProgress(
        name=name,
        planned=planned if isinstance(planned, int) else None,
        complete=states.count(COMPLETE),
        pruned=states.count(PRUNED),
        failed=states.count(FAIL),
        running=states.count(RUNNING),
        waiting=states.count(WAITING),
        best=max(values, default=None),
    )


def longest_epoch_s(folder: str | Path) -> float | None:
    """Seconds of the longest epoch that the study in ``folder`` has recorded; None where there is none."""
    longest = None
    try:
        with (Path(folder) / JOURNAL).open("rb") as lines:
            for line in lines:
                if EPOCH_MARK in line and line.endswith(b"\n"):
                    (record,) = json.loads(line)["user_attr"].values()
                    longest = max(longest or 0.0, sum(float(record.get(part) or 0.0) for part in EPOCH_PARTS))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass
    return longest


def _records(journal: Path) -> Iterator[dict[str, Any]]:
    """The journal's records, up to the first that is not whole: its writer may be at work on it."""
    try:
        with journal.open("rb") as lines:
            for line in lines:
                if not line.endswith(b"\n"):
                    return
                # Most lines are epoch records, long and of no use here: they are not parsed.
                if line.startswith(b'{"op_code":') and not _WANTED.match(line):
                    continue
                parsed = json.loads(line)
                if isinstance(parsed, dict):
                    yield parsed
    except (OSError, ValueError):
        return


def _replay(records: Iterable[dict[str, Any]], name: str) -> list[tuple[int, float | None]]:
    """State and value of each trial of the study ``name``, in the order of their numbers."""
    studies: dict[int, str] = {}
    trials: list[tuple[int, int, float | None]] = []  # study, state, value; the place is the trial's id
    next_study = 0
    for entry in records:
        try:
            code = entry["op_code"]
            if code == CREATE_STUDY and entry["study_name"] not in studies.values():
                studies[next_study] = entry["study_name"]
                next_study += 1
            elif code == DELETE_STUDY:
                studies.pop(entry["study_id"], None)
            elif code == CREATE_TRIAL and entry["study_id"] in studies:
                trials.append((entry["study_id"], entry.get("state", RUNNING), _value(entry)))
            elif code == SET_STATE_VALUES and 0 <= entry["trial_id"] < len(trials):
                study, state, value = trials[entry["trial_id"]]
                if state not in FINISHED:  # Optuna as well lets nothing change a finished trial
                    new = _value(entry)
                    trials[entry["trial_id"]] = (study, entry["state"], value if new is None else new)
        except (KeyError, TypeError):
            continue
    return [(state, value) for study, state, value in trials if studies.get(study) == name]


def _value(entry: dict[str, Any]) -> float | None:
    """Of a single-objective record: ``values`` of one, or ``value`` of a trial that was added whole."""
    values = entry.get("values") or [entry.get("value")]
    return float(values[0]) if isinstance(values[0], (int, float)) else None
