"""What the early look asks of a study: how many trials were looked at and went on, and which ones wait."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from bigbatch.tune.models.look_value import LookedRun, chance_of_little, look_epoch, looked_of
from bigbatch.tune.models.protocol import SearchFacts
from bigbatch.tune.runs.run import CONTINUES_ATTR, DROPPED_ATTR, GIVEN_ATTR, earlier_of, is_paused, was_refused
from bigbatch.tune.runs.study_index import StudyIndex

PAUSED, DONE, GOES_ON, RUNS = "paused", "done", "goes on", "runs"
"""What a trial is: paused; complete; running after its look; any other running trial."""


@dataclass(frozen=True)
class _Known:
    """What the early look needs to know about one trial."""

    kind: str
    value: object
    """Of the frontier's parameter; None without a frontier."""
    place: int
    epoch: int
    gain: float
    """Of the last epoch."""
    is_new: bool
    """Whether it neither continues nor repeats another one."""
    given: bool
    """Whether its configuration was given, as published recipes are."""
    looked: LookedRun | None


class PausedTrials(StudyIndex):
    """The paused trials of a study and the ends of the others, by the value of the frontier."""

    def __init__(self, facts: SearchFacts) -> None:
        self._facts = facts
        self._dropped: set[int] = set()
        super().__init__()

    def update(self, study: Study) -> list[FrozenTrial]:
        """As ``StudyIndex.update``, and learn which checkpoints were dropped."""
        trials = super().update(study)
        attrs = study._storage.get_study_user_attrs(study._study_id)  # study.user_attrs would copy all of them
        self._dropped = {int(key.removeprefix(DROPPED_ATTR)) for key in attrs if key.startswith(DROPPED_ATTR)}
        return trials

    # How far it is

    @property
    def configurations(self) -> int:
        """How many configurations were tried: trials that neither continue nor repeat another one, and have begun."""
        return len(self._begun)

    @property
    def continued(self) -> int:
        """How many paused trials were continued."""
        return len(self._continued)

    @property
    def runs(self) -> bool:
        """Whether any trial runs."""
        return any(one.kind in (GOES_ON, RUNS) for one in self._known.values())

    def promoted(self, value: object, *, only_done: bool = False) -> int:
        """How many trials of a frontier value were promoted. ``only_done``: without those that still run."""
        return sum(one.value == value for one in self._promoted(only_done))

    def share(self, value: object) -> float:
        """The share of promoted trials among those of a frontier value that were promoted or are paused."""
        promoted, paused = self.promoted(value), sum(one.value == value for one in self._paused.values())
        return promoted / max(1, promoted + paused)

    def all_promoted(self, *, only_done: bool = False) -> int:
        """How many trials were promoted: they run, or have run, beyond their look."""
        return len(self._promoted(only_done))

    def given_promoted(self, value: object, *, only_done: bool = False) -> bool:
        """Whether any of the configurations that were given was promoted at this value."""
        return any(one.given and one.value == value for one in self._promoted(only_done))

    def chance_of_little(self) -> float:
        """The probability that early values say little about final values, judged by the runs that have ended."""
        return chance_of_little([one.looked for one in self._known.values() if one.looked])

    def place_of(self, trial: FrozenTrial) -> tuple[object, int]:
        """The trial's value of the frontier, and how many configurations of that value came before it."""
        value = self._value(trial)
        before = (one for number, one in self._known.items() if number < trial.number)
        return value, sum(one.is_new and one.value == value for one in before)

    # Those that wait

    def waiting_values(self) -> set[object]:
        """The frontier values that have a paused trial whose checkpoint still exists."""
        return {one.value for one in self._waiting()}

    def waiting(self, value: object, most: int | None = None) -> list[int]:
        """Places of the trials of a frontier value that can be continued from their checkpoint, in order.

        Of more than ``most``, the best part of those that paused in the same epoch is taken, as values of other epochs
        do not compare.
        """
        found = [one for one in self._waiting() if one.value == value]
        part = 1.0 if most is None or len(found) <= most else most / len(found)
        groups: dict[int, list[int]] = {}
        for one in sorted(found, key=lambda one: (-one.gain, one.place)):
            groups.setdefault(one.epoch, []).append(one.place)
        return sorted(place for group in groups.values() for place in group[: math.ceil(part * len(group))])

    def waiting_given(self, value: object) -> list[int]:
        """Those of ``waiting`` whose configuration was given."""
        return sorted(one.place for one in self._waiting() if one.given and one.value == value)

    def _promoted(self, only_done: bool) -> list[_Known]:
        kinds = (DONE,) if only_done else (DONE, GOES_ON)
        return [one for one in self._known.values() if one.kind in kinds]

    def _waiting(self) -> list[_Known]:
        return [one for number, one in self._paused.items() if number not in self._dropped]

    def _forget(self) -> None:
        self._known: dict[int, _Known] = {}
        self._continued: set[int] = set()
        self._begun: set[int] = set()
        self._paused: dict[int, _Known] = {}
        """The paused trials that no other trial continues."""

    def _take(self, place: int, trials: Sequence[FrozenTrial]) -> None:
        trial, attrs, gain = trials[place], trials[place].user_attrs, self._facts.objective.gain
        kind, values = self._kind_of(trial), trial.intermediate_values
        epoch = max(values, default=0)
        continues, earlier = int(attrs.get(CONTINUES_ATTR, -1)), earlier_of(trial)
        if continues >= 0:
            self._continued.add(continues)
            self._paused.pop(continues, None)
        begun = earlier is None and not was_refused(trial)
        (self._begun.add if begun else self._begun.discard)(trial.number)
        self._known[trial.number] = _Known(
            kind,
            self._value(trial),
            place,
            epoch,
            gain(values[epoch]) if epoch else -math.inf,
            is_new=earlier is None,
            given=GIVEN_ATTR in attrs or (earlier in self._known and self._known[earlier].given),
            looked=looked_of(trial, self._facts),
        )
        if kind == PAUSED and trial.number not in self._continued:
            self._paused[trial.number] = self._known[trial.number]

    def _kind_of(self, trial: FrozenTrial) -> str:
        if is_paused(trial):
            return PAUSED
        if trial.state == TrialState.RUNNING:
            let_go = max(trial.intermediate_values, default=0) > look_epoch(trial, self._facts.max_epochs)
            return GOES_ON if let_go or CONTINUES_ATTR in trial.user_attrs else RUNS
        return DONE if trial.state == TrialState.COMPLETE else ""

    def _value(self, trial: FrozenTrial) -> object:
        """The trial's value of the frontier's parameter; None without a frontier."""
        return None if self._facts.frontier is None else trial.params.get(self._facts.frontier)
