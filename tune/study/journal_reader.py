"""Read a study's journal without Optuna, which is slow to load, and without the study's lease.

The journal is Optuna's ``JournalStorage``: one JSON object per line. This replays it by Optuna's rules, up to the first
incomplete line, which the driver may still write. ``bigbatch show`` reads a study of 1,000 trials in this way in well
under a second.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bigbatch.cluster.host import json_values

JOURNAL_NAME = "optuna.journal"
STATES = ("RUNNING", "COMPLETE", "PRUNED", "FAIL", "WAITING")
"""By Optuna's numbers."""
ENDED_STATES = ("COMPLETE", "PRUNED", "FAIL")
EPOCH_PREFIX = "epoch/"
_CREATE_STUDY, _DELETE_STUDY, _CREATE_TRIAL, _PARAM, _STATE, _USER_ATTR, _SYSTEM_ATTR = 0, 1, 4, 5, 6, 8, 9
_MAXIMIZE = 2


@dataclass
class StoredTrial:
    """A trial as the study's files describe it."""

    number: int
    state: str
    value: float | None = None
    """Of the objective, as Optuna has it: also a stopped trial has one."""
    last_value: float | None = None
    """Of the objective, in a table's row of a trial without a value; None if it is not known."""
    last_record: Mapping[str, object] = field(default_factory=dict)
    """Of its last epoch; empty in a table's row."""
    epochs: int = 0
    """The last epoch that has ended."""
    params: dict[str, object] = field(default_factory=dict)
    attrs: dict[str, object] = field(default_factory=dict)
    """User attributes, without the epochs' records."""

    def last_of(self, metric: str) -> float | None:
        """The metric after its last epoch; None if it is not known."""
        own = json_values.mapping(self.last_record, "metrics")
        found = json_values.number_or_none(own if metric in own else self.last_record, metric)
        return self.last_value if found is None else found

    @property
    def config(self) -> dict[str, object]:
        """Its configuration as a plain dict; empty before it has one."""
        return dict(json_values.mapping(self.attrs, "config"))

    @property
    def was_refused(self) -> bool:
        """Whether it ended before it began, because its configuration is not one that may be trained."""
        return self.state in ENDED_STATES and bool(self.attrs.get("refused"))

    @property
    def replaces(self) -> int | None:
        """The number of the trial that this one repeats or continues, and in whose place it counts."""
        found = json_values.whole_number_or_none(self.attrs, "retries")
        return json_values.whole_number_or_none(self.attrs, "continues") if found is None else found


@dataclass
class StoredStudy:
    """A study's trials, and whether a larger value is better."""

    trials: list[StoredTrial] = field(default_factory=list)
    maximize: bool = True

    @property
    def ended(self) -> int:
        """How many trials have ended, as ``--trials`` counts them."""
        replaced = {trial.replaces for trial in self.trials}
        return sum(t.state in ENDED_STATES and t.number not in replaced for t in self.searched if not t.was_refused)

    @property
    def begun(self) -> list[StoredTrial]:
        """The trials that have begun, without those that were refused."""
        return [t for t in self.trials if (t.config or t.state != "WAITING") and not t.was_refused]

    @property
    def searched(self) -> list[StoredTrial]:
        """The trials without those that train a configuration again to confirm it."""
        return [trial for trial in self.trials if "confirms" not in trial.attrs]

    @property
    def best(self) -> StoredTrial | None:
        """The complete trial with the best value, the earliest of equal ones. None if none is complete."""
        sign = 1.0 if self.maximize else -1.0
        done = [(sign * t.value, -t.number, t) for t in self.searched if t.state == "COMPLETE" and t.value is not None]
        return max(done, key=lambda one: one[:2])[2] if done else None


def read_journal(folder: Path, name: str, *, details: bool = True) -> StoredStudy | None:
    """The study ``name`` in a folder's journal. None without a journal, and if it does not hold the study.

    Args:
        details: also read parameters and epochs. Without them a long journal takes a tenth of the time.
    """
    path = folder / JOURNAL_NAME
    replay = _Replay(name)
    try:
        with path.open("rb") as lines:
            for entry in _entries(lines, details):
                replay.take(entry)
    except (OSError, ValueError):
        if not path.exists():
            return None
    return replay.study() if replay.found else None


def _entries(lines: Iterator[bytes], details: bool) -> Iterator[dict[str, object]]:
    for line in lines:
        if not line.endswith(b"\n"):
            return
        start = line[:16]
        if b'"op_code":7' in start or (not details and (b'"op_code":5' in start or b'"epoch/' in line)):
            continue
        entry = json.loads(line)
        if isinstance(entry, dict):
            yield entry


class _Replay:
    def __init__(self, name: str) -> None:
        self._name = name
        self._studies: dict[int, str] = {}
        self._trials: list[tuple[int, StoredTrial]] = []
        self._count: dict[int, int] = {}
        self._made = 0
        self._maximize = True

    @property
    def found(self) -> bool:
        """Whether the journal holds the study."""
        return self._name in self._studies.values()

    def study(self) -> StoredStudy:
        """What was replayed so far."""
        return StoredStudy([t for of, t in self._trials if self._studies.get(of) == self._name], self._maximize)

    def take(self, entry: dict[str, object]) -> None:
        """Replay one entry."""
        code = json_values.whole_number(entry, "op_code", -1)
        if code == _CREATE_STUDY:
            self._create_study(entry)
        elif code == _DELETE_STUDY:
            self._studies.pop(json_values.whole_number(entry, "study_id", -1), None)
        elif code == _CREATE_TRIAL:
            self._create_trial(entry)
        else:
            number = json_values.whole_number(entry, "trial_id", -1)
            if 0 <= number < len(self._trials):
                self._change(self._trials[number][1], code, entry)

    def _create_study(self, entry: dict[str, object]) -> None:
        name = json_values.text(entry, "study_name")
        if name in self._studies.values():
            return
        self._studies[self._made] = name
        self._made += 1
        directions = entry.get("directions")
        if name == self._name and isinstance(directions, list) and directions:
            self._maximize = directions[0] == _MAXIMIZE

    def _create_trial(self, entry: dict[str, object]) -> None:
        study = json_values.whole_number(entry, "study_id", -1)
        if study not in self._studies:
            return
        state = json_values.whole_number(entry, "state", 0)
        number = self._count[study] = self._count.get(study, -1) + 1
        trial = StoredTrial(number, STATES[state], _first_value(entry))
        self._trials.append((study, trial))
        self._add_attrs(trial, json_values.mapping(entry, "user_attrs"))
        distributions = json_values.mapping(entry, "distributions")
        for name, value in json_values.mapping(entry, "params").items():
            trial.params[name] = external_value(value, json_values.text(distributions, name))

    def _change(self, trial: StoredTrial, code: int, entry: dict[str, object]) -> None:
        if trial.state in ENDED_STATES:  # as in Optuna, nothing changes a finished trial
            return
        if code == _STATE:
            trial.state = STATES[json_values.whole_number(entry, "state", 0)]
            value = _first_value(entry)
            trial.value = trial.value if value is None else value
        elif code == _PARAM:
            name = json_values.text(entry, "param_name")
            distribution = json_values.text(entry, "distribution")
            trial.params[name] = external_value(entry.get("param_value_internal"), distribution)
        elif code == _USER_ATTR:
            self._add_attrs(trial, json_values.mapping(entry, "user_attr"))

    @staticmethod
    def _add_attrs(trial: StoredTrial, attrs: object) -> None:
        for key, value in dict(attrs).items() if isinstance(attrs, dict) else ():
            if key.startswith(EPOCH_PREFIX):
                record = value if isinstance(value, dict) else {}
                if (epoch := json_values.whole_number(record, "epoch")) >= trial.epochs:
                    trial.epochs, trial.last_record = epoch, record
            else:
                trial.attrs[key] = value


def end_of_whole_trials(data: bytes) -> int:
    """Where a journal ends without an incomplete last line and without what was written of a trial that is half drawn.

    A driver draws one trial at a time, and notes its configuration once all its parameters are there. Until then, what
    follows the trial's begin are its parameters and notes of the sampler.
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


def external_value(internal: object, distribution: str) -> object:
    """A parameter's value from the number in the journal and its distribution as JSON."""
    with contextlib.suppress(ValueError, KeyError, IndexError, TypeError):
        found = json.loads(distribution)
        if found["name"] == "CategoricalDistribution":
            return found["attributes"]["choices"][int(internal)]  # type: ignore[call-overload]
        if found["name"] == "IntDistribution":
            return int(internal)  # type: ignore[call-overload]
    return internal


def _first_value(entry: dict[str, object]) -> float | None:
    values = entry.get("values")
    first = values[0] if isinstance(values, list) and values else entry.get("value")
    return float(first) if isinstance(first, (int, float)) else None
