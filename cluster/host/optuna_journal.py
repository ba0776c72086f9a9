"""Read a study's journal with the standard library alone: without Optuna, which is slow to load, and without a lease.

The journal is Optuna's ``JournalStorage``: one JSON object per line. This replays it by Optuna's rules, up to the first
line that is damaged or incomplete; the driver may still write the last one. Jobs, tables and reports all read it here.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from bigbatch.base import json_values

JOURNAL_NAME = "optuna.journal"
EPOCH_PREFIX = "epoch/"
"""Prefix of the user attributes that hold a trial's epoch records: ``epoch/00001`` …"""
CONTINUES_ATTR = "continues"
"""User attribute of a continuation: the number of the paused trial."""
RETRIES_ATTR = "retries"
"""User attribute of a retry: the number of the failed trial."""
CONFIRMS_ATTR = "confirms"
"""User attribute of a trial that trains a configuration again with another seed: the number of the confirmed trial."""
REFUSED_ATTR = "refused"
"""User attribute of a trial that could not begin: True. The space gave no valid configuration, or one of which it knows
that it violates a constraint. Nothing was trained, so it is none of ``--trials``."""
_CREATE_STUDY, _DELETE_STUDY, _CREATE_TRIAL, _PARAM, _STATE, _VALUE, _USER_ATTR, _SYSTEM_ATTR = 0, 1, 4, 5, 6, 7, 8, 9
STATES = frozenset({_CREATE_STUDY, _DELETE_STUDY, _CREATE_TRIAL, _STATE})
"""The entries that say how trials ended; ``read_journal`` adds those of REFUSED_ATTR, for ``counted_trials``. The other
attributes that count come with a trial's creation. Parsing the others would take most of the time."""
FACTS = STATES | {_USER_ATTR}
"""The same, and the user attributes of trials without their epochs."""
EVERYTHING = FACTS | {_PARAM, _VALUE, _SYSTEM_ATTR}
_CODE = re.compile(rb'\{"op_code":\s*(\d+)\b')
_REFUSED = f'"{REFUSED_ATTR}"'.encode()


class State(enum.IntEnum):
    """The state of a trial. Each equals Optuna's ``TrialState`` of that name."""

    RUNNING = 0
    COMPLETE = 1
    PRUNED = 2
    FAIL = 3
    WAITING = 4

    def is_finished(self) -> bool:
        """Whether nothing changes such a trial any more."""
        return self in (State.COMPLETE, State.PRUNED, State.FAIL)


@dataclass
class StoredTrial:
    """A trial as the study's files hold it. The fields are named as those of Optuna's ``FrozenTrial``."""

    number: int
    state: State = State.RUNNING
    values: list[float] = field(default_factory=list)
    """One for each objective; empty before the trial's end. A stopped trial has its last value."""
    params: dict[str, Any] = field(default_factory=dict)
    distributions: dict[str, str] = field(default_factory=dict)
    """The parameters' distributions, as Optuna's JSON."""
    user_attrs: dict[str, Any] = field(default_factory=dict)
    system_attrs: dict[str, object] = field(default_factory=dict)
    intermediate_values: dict[int, float] = field(default_factory=dict)
    datetime_start: datetime | None = None
    """In local time, as in Optuna."""
    datetime_complete: datetime | None = None

    @property
    def value(self) -> float | None:
        """The value of the first objective."""
        return self.values[0] if self.values else None


class WithAttrs(Protocol):
    """A trial of any kind, also one that Optuna lets a driver write."""

    @property
    def user_attrs(self) -> dict[str, Any]:
        """What the driver has noted of it."""


class EitherTrial(WithAttrs, Protocol):
    """A ``StoredTrial`` or Optuna's."""

    @property
    def number(self) -> int:
        """Counted from 0."""

    @property
    def state(self) -> Any:
        """A ``State`` or Optuna's ``TrialState``."""


Trial = TypeVar("Trial", bound=StoredTrial)
Either = TypeVar("Either", bound=EitherTrial)


def counted_trials(trials: Sequence[Either]) -> list[Either]:
    """One trial for each configuration, as ``--trials`` counts them, whether they have ended or not.

    Failed trials that have a retry do not count, nor do paused trials that were continued, those that were refused
    before they began, and confirmations.
    """
    names = (CONTINUES_ATTR, RETRIES_ATTR)
    again = {json_values.whole_number_or_none(t.user_attrs, name) for t in trials for name in names}
    found = (t for t in trials if t.number not in again and CONFIRMS_ATTR not in t.user_attrs)
    return [trial for trial in found if not was_refused(trial)]


def was_refused(trial: EitherTrial) -> bool:
    """Whether the trial ended before it began, because its configuration is not one that may be trained."""
    return bool(trial.user_attrs.get(REFUSED_ATTR)) and trial.state.is_finished()


@dataclass
class StoredStudy(Generic[Trial]):
    """What a journal holds of one study."""

    trials: list[Trial]
    """In the order of their numbers."""
    cut_at: int | None = None
    """The damaged line at which reading ended. None: at most the end of the last line is missing."""


def read_journal(
    folder: Path, name: str, trial: type[Trial], wanted: frozenset[int] = EVERYTHING
) -> StoredStudy[Trial] | None:
    """The study ``name`` in a folder's journal. None without a journal, and if it does not hold the study.

    Args:
        trial: the class of its trials.
        wanted: which entries to read: ``STATES``, ``FACTS`` or ``EVERYTHING``.

    Raises OSError if the journal is there and cannot be read.
    """
    replay, cut_at = _Replay(name, trial), None
    try:
        with (folder / JOURNAL_NAME).open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                # The driver may be writing this line at this moment.
                if not line.endswith(b"\n"):
                    break
                if _VALUE not in wanted and b'"epoch/' in line:
                    continue
                code = _CODE.match(line)
                if code and int(code[1]) not in wanted and _REFUSED not in line:
                    continue
                try:
                    replay.take(json.loads(line))
                except ValueError:
                    cut_at = number
                    break
    except FileNotFoundError:
        return None
    return replay.study(cut_at) if replay.found else None


class _Replay(Generic[Trial]):
    def __init__(self, name: str, trial: type[Trial]) -> None:
        self._name, self._trial = name, trial
        self._studies: dict[int, str] = {}
        self._trials: list[tuple[int, Trial]] = []
        self._count: dict[int, int] = {}
        self._made = 0

    @property
    def found(self) -> bool:
        """Whether the journal holds the study."""
        return self._name in self._studies.values()

    def study(self, cut_at: int | None) -> StoredStudy[Trial]:
        """What was replayed so far."""
        trials = [trial for of, trial in self._trials if self._studies.get(of) == self._name]
        return StoredStudy(trials, cut_at)

    def take(self, entry: object) -> None:
        """Replay one entry, if it is a JSON object. Raises ValueError for an unknown state."""
        if not isinstance(entry, dict):
            return
        code = json_values.whole_number(entry, "op_code", -1)
        if code == _CREATE_STUDY:
            self._create_study(entry)
        elif code == _DELETE_STUDY:
            self._studies.pop(json_values.whole_number(entry, "study_id", -1), None)
        elif code == _CREATE_TRIAL:
            self._create_trial(entry)
        else:
            number = json_values.whole_number(entry, "trial_id", -1)
            # As in Optuna, nothing changes a finished trial.
            if 0 <= number < len(self._trials) and not self._trials[number][1].state.is_finished():
                _change(self._trials[number][1], code, entry)

    def _create_study(self, entry: dict[str, object]) -> None:
        name = json_values.text(entry, "study_name")
        # As in Optuna: a second study of the same name is refused, but its entry stays in the journal.
        if name in self._studies.values():
            return
        self._studies[self._made] = name
        self._made += 1

    def _create_trial(self, entry: dict[str, object]) -> None:
        study = json_values.whole_number(entry, "study_id", -1)
        if study not in self._studies:
            return
        # Optuna counts the trials of each study from 0; the position in the journal is their id, and counts all.
        number = self._count[study] = self._count.get(study, -1) + 1
        trial = self._trial(number, State(json_values.whole_number(entry, "state", 0)), _values(entry))
        self._trials.append((study, trial))
        trial.user_attrs = dict(json_values.mapping(entry, "user_attrs"))
        trial.system_attrs = dict(json_values.mapping(entry, "system_attrs"))
        values = json_values.mapping(entry, "intermediate_values")
        trial.intermediate_values = {int(step): json_values.number(values, step) for step in values}
        trial.datetime_start = _moment(entry, "datetime_start")
        trial.datetime_complete = _moment(entry, "datetime_complete")
        distributions = json_values.mapping(entry, "distributions")
        for name, value in json_values.mapping(entry, "params").items():
            _set_param(trial, name, value, json_values.text(distributions, name))


def _change(trial: StoredTrial, code: int, entry: dict[str, object]) -> None:
    if code == _STATE:
        trial.state = State(json_values.whole_number(entry, "state", trial.state))
        trial.values = _values(entry) or trial.values
        trial.datetime_start = _moment(entry, "datetime_start") or trial.datetime_start
        trial.datetime_complete = _moment(entry, "datetime_complete") or trial.datetime_complete
    elif code == _PARAM:
        name, value = json_values.text(entry, "param_name"), entry.get("param_value_internal")
        _set_param(trial, name, value, json_values.text(entry, "distribution"))
    elif code == _VALUE:
        step = json_values.whole_number(entry, "step")
        trial.intermediate_values[step] = json_values.number(entry, "intermediate_value")
    elif code == _USER_ATTR:
        trial.user_attrs.update(json_values.mapping(entry, "user_attr"))
    elif code == _SYSTEM_ATTR:
        trial.system_attrs.update(json_values.mapping(entry, "system_attr"))


def _set_param(trial: StoredTrial, name: str, internal: object, distribution: str) -> None:
    trial.params[name] = _external_value(internal, distribution)
    trial.distributions[name] = distribution


def _external_value(internal: object, distribution: str) -> object:
    """A parameter's value from the number in the journal and its distribution as JSON."""
    with contextlib.suppress(ValueError, KeyError, IndexError, TypeError):
        found = _distribution(distribution)
        if found["name"] == "CategoricalDistribution":
            return found["attributes"]["choices"][int(internal)]  # type: ignore[call-overload]
        if found["name"] == "IntDistribution":
            return int(internal)  # type: ignore[call-overload]
    return internal


# A journal repeats the same few texts for each trial.
@functools.lru_cache(maxsize=256)
def _distribution(text: str) -> Any:
    return json.loads(text)


def _values(entry: dict[str, object]) -> list[float]:
    found = entry.get("values")
    listed = found if isinstance(found, list) else [entry.get("value")]
    return [float(one) for one in listed if isinstance(one, (int, float))]


def _moment(entry: dict[str, object], key: str) -> datetime | None:
    with contextlib.suppress(ValueError):
        return datetime.fromisoformat(json_values.text(entry, key)).astimezone().replace(tzinfo=None)
    return None


def end_of_whole_trials(data: bytes) -> int:
    """The end of a journal without its incomplete last line and without the entries of a trial that is half drawn.

    A driver draws one trial at a time, and writes its configuration after all its parameters. Until then, only its
    parameters and the sampler's notes follow the trial's first entry.
    """
    complete = keep = place = data.rfind(b"\n") + 1
    trial: object = None
    while place:
        begin = data.rfind(b"\n", 0, place - 1) + 1
        try:
            entry = json_values.json_object(data[begin:place])
        except ValueError:  # damaged: who opens the journal says so
            return complete
        code, of = entry.get("op_code"), entry.get("trial_id", trial)
        trial = of if trial is None else trial
        if of != trial or code not in (_PARAM, _USER_ATTR, _SYSTEM_ATTR):
            return keep if code == _CREATE_TRIAL or (code == _STATE and of == trial) else complete
        if "config" in json_values.mapping(entry, "user_attr"):
            return complete
        keep, place = begin if code != _USER_ATTR else keep, begin
    return keep
