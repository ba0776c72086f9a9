"""What the early look asks of a study: how many trials were looked at and went on, and which ones wait."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from bigbatch.tune.models.look_value import LookedRun, chance_of_little, look_epoch, looked_of
from bigbatch.tune.models.protocol import SearchFacts
from bigbatch.tune.runs.run import (
    CONTINUES_ATTR,
    DROPPED_ATTR,
    GIVEN_ATTR,
    earlier_of,
    is_paused,
    was_refused,
)
from bigbatch.tune.runs.study_index import StudyIndex

PAUSED, DONE, GOES_ON, RUNS = "paused", "done", "goes on", "runs"
"""What a trial is: paused and not continued; complete; running after its look; any other running trial."""


class _Waiting(NamedTuple):
    """A paused trial, in the order in which those of one epoch go on."""

    minus_gain: float
    """Of its last value."""
    number: int
    place: int


class PausedTrials(StudyIndex):
    """The paused trials of a study and the ends of the others, by the value of the frontier."""

    _attrs: int
    """How many user attributes the study had."""
    _little: float | None
    """What ``chance_of_little`` has found; None: not asked since a run has ended."""

    def __init__(self, facts: SearchFacts) -> None:
        self._facts = facts
        super().__init__()

    def update(self, study: Study, until: int | None = None) -> list[FrozenTrial]:
        """As ``StudyIndex.update``, and learn which checkpoints were dropped."""
        trials = super().update(study, until)
        attrs = study._storage.get_study_user_attrs(study._study_id)  # study.user_attrs would copy all of them
        if len(attrs) != self._attrs:
            self._attrs = len(attrs)
            for key in attrs:
                if key.startswith(DROPPED_ATTR):
                    self._dropped.add(int(key.removeprefix(DROPPED_ATTR)))
                    self._wait_no_more(int(key.removeprefix(DROPPED_ATTR)))
        return trials

    # How far it is

    @property
    def configurations(self) -> int:
        """How many configurations were tried: trials that neither continue nor repeat another one, and have begun."""
        return self._configurations - len(self._refused)

    @property
    def continued(self) -> int:
        """How many paused trials were continued."""
        return len(self._continued)

    @property
    def runs(self) -> bool:
        """Whether any trial runs."""
        return any(self._count[kind, value] for kind, value in self._count if kind in (GOES_ON, RUNS))

    def gone_on(self, value: object, *, only_done: bool = False) -> int:
        """How many trials of a frontier value have gone on. ``only_done``: without those that still run."""
        return self._count[DONE, value] + (0 if only_done else self._count[GOES_ON, value])

    def share(self, value: object) -> float:
        """Of the trials of a frontier value that were looked at, the part that has gone on."""
        gone_on = self.gone_on(value)
        return gone_on / max(1, gone_on + self._count[PAUSED, value])

    def all_gone_on(self, *, only_done: bool = False) -> int:
        """How many trials have gone on."""
        return sum(self.gone_on(value, only_done=only_done) for value in {value for _, value in self._count})

    def given_gone_on(self, value: object, *, only_done: bool = False) -> bool:
        """Whether any of the configurations that were given, as published recipes are, has gone on at this value."""
        kinds = {(DONE, value)} if only_done else {(DONE, value), (GOES_ON, value)}
        return any(self._kind[number] in kinds for number in self._given)

    def best_done(self, value: object) -> float | None:
        """The gain of the best complete trial of a frontier value; None before the first one."""
        return self._best_done.get(value)

    def chance_of_little(self) -> float:
        """The chance that early values say little of the ends, after the runs that have ended."""
        if self._little is None:
            self._little = chance_of_little(list(self._looked.values()))
        return self._little

    def place_of(self, trial: FrozenTrial) -> tuple[object, int]:
        """The trial's value of the frontier, and how many configurations of that value came before it."""
        value = self._value(trial)
        return value, bisect_left(self._numbers.get(value, []), trial.number)

    # Those that wait

    def waiting_values(self) -> set[object]:
        """The values of the frontier of which a trial can be continued from its checkpoint."""
        return {value for value, groups in self._waiting.items() if any(groups.values())}

    def waiting(self, value: object, most: int | None = None) -> list[int]:
        """Places of the trials of a frontier value that can be continued from their checkpoint, in order.

        Values of different epochs do not compare. So of more than ``most``, the best part of those that were paused in
        each epoch is taken.
        """
        groups = self._waiting.get(value, {})
        count = sum(map(len, groups.values()))
        part = 1.0 if most is None or count <= most else most / count
        return sorted(one.place for group in groups.values() for one in group[: math.ceil(part * len(group))])

    def waiting_given(self, value: object) -> list[int]:
        """Those of ``waiting`` whose configuration was given."""
        groups = self._waiting.get(value, {})
        return sorted(one.place for group in groups.values() for one in group if one.number in self._given)

    def _forget(self) -> None:
        self._configurations: int = 0
        self._refused: set[int] = set()
        self._numbers: dict[object, list[int]] = {}
        self._given: set[int] = set()
        self._attrs = 0
        self._kind: dict[int, tuple[str, object]] = {}
        self._count: Counter[tuple[str, object]] = Counter()
        self._best_done: dict[object, float] = {}
        self._looked: dict[int, LookedRun] = {}
        self._little = None
        self._continued: set[int] = set()
        self._dropped: set[int] = set()
        self._waiting: dict[object, dict[int, list[_Waiting]]] = {}
        self._entry: dict[int, tuple[list[_Waiting], _Waiting]] = {}

    def _take(self, place: int, trials: Sequence[FrozenTrial]) -> None:
        trial, attrs = trials[place], trials[place].user_attrs
        number = trial.number
        if number not in self._kind:
            self._configurations += earlier_of(trial) is None
            if GIVEN_ATTR in attrs or int(attrs.get(CONTINUES_ATTR, -1)) in self._given:
                self._given.add(number)
            if CONTINUES_ATTR in attrs:
                self._continue(int(attrs[CONTINUES_ATTR]))
        if earlier_of(trial) is None:
            self._place(number, self._value(trial))
            if was_refused(trial):
                self._refused.add(number)
        kind = self._kind_of(trial)
        self._recount(number, (kind, self._value(trial)))
        if kind == DONE and trial.values:
            gain, best = self._facts.objective.gain(trial.values[0]), self._best_done.get(self._value(trial))
            self._best_done[self._value(trial)] = gain if best is None else max(gain, best)
        if (looked := looked_of(trial, self._facts)) is not None:
            self._looked[number], self._little = looked, None
        if kind == PAUSED and number not in self._dropped:
            self._wait(trial, place)

    def _kind_of(self, trial: FrozenTrial) -> str:
        if is_paused(trial) and trial.number not in self._continued:
            return PAUSED
        if trial.state == TrialState.RUNNING:
            let_go = max(trial.intermediate_values, default=0) > look_epoch(trial, self._facts.max_epochs)
            return GOES_ON if let_go or CONTINUES_ATTR in trial.user_attrs else RUNS
        return DONE if trial.state == TrialState.COMPLETE else ""

    def _value(self, trial: FrozenTrial) -> object:
        """The trial's value of the frontier's parameter; None without a frontier."""
        return None if self._facts.frontier is None else trial.params.get(self._facts.frontier)

    def _place(self, number: int, value: object) -> None:
        """Put a configuration among those of its frontier value, which it may not have had before."""
        if number in self._kind:
            before = self._kind[number][1]
            if before == value:
                return
            self._numbers[before].remove(number)
        insort(self._numbers.setdefault(value, []), number)

    def _recount(self, number: int, kind: tuple[str, object]) -> None:
        if number in self._kind:
            self._count[self._kind[number]] -= 1
        self._kind[number] = kind
        self._count[kind] += 1

    def _continue(self, number: int) -> None:
        """Trial ``number`` is continued by another one."""
        self._continued.add(number)
        self._wait_no_more(number)
        if number in self._kind and self._kind[number][0] == PAUSED:
            self._recount(number, ("", self._kind[number][1]))

    def _wait(self, trial: FrozenTrial, place: int) -> None:
        epoch = max(trial.intermediate_values, default=0)
        gain = self._facts.objective.gain(trial.intermediate_values[epoch]) if epoch else -math.inf
        group = self._waiting.setdefault(self._value(trial), {}).setdefault(epoch, [])
        self._entry[trial.number] = (group, _Waiting(-gain, trial.number, place))
        insort(group, self._entry[trial.number][1])

    def _wait_no_more(self, number: int) -> None:
        if number in self._entry:
            group, entry = self._entry.pop(number)
            del group[bisect_left(group, entry)]
