"""Which checkpoints of ended trials stay: the best trial's, and those from which another trial may go on.

Together the checkpoints of paused trials may take as many bytes as are left free beside them.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from optuna.trial import FrozenTrial, TrialState

from bigbatch.train_loop.host.disk_space import bytes_and_inodes, space_left
from bigbatch.tune.runs.answer import leading_trial
from bigbatch.tune.runs.frontier import FrontierFacts, frontier_of, value_of_trial
from bigbatch.tune.runs.objectives import Objectives
from bigbatch.tune.runs.retry import StudyWithCheckpoints, may_need_checkpoint
from bigbatch.tune.runs.run import CONTINUES_ATTR, DROPPED_ATTR, Kind, before_equal_ones, is_paused, kind_of, note_given
from bigbatch.tune.runs.study_index import StudyIndex

SHARE = 0.5
"""Of the room that paused trials hold and that is left, by the file system or the site's quota, what they may hold."""


class CheckpointKeeper(StudyWithCheckpoints, Protocol):
    """What this file and kept_checkpoints.py need of a ``StudyStore``."""

    folder: Path
    objectives: Objectives


class PausedCheckpoints(StudyIndex):
    """The checkpoints of the trials that wait to be continued. Each is measured once: it does not change any more."""

    _attrs: int
    """How many user attributes the study had."""

    def __init__(self, store: CheckpointKeeper) -> None:
        self._store = store
        super().__init__()

    def drop(self) -> None:
        """Remove checkpoints of paused trials until they fit, those of the worst last values first.

        The study knows of each before its folder goes.
        """
        self.update(self._store.study)
        self._learn_dropped()
        for number in sorted(self._unmeasured):
            if self._store.checkpoint_folder(number).exists():
                self._sizes[number] = bytes_and_inodes(self._store.checkpoint_folder(number))[0]
        self._unmeasured.clear()
        left = space_left(self._store.folder).bytes if self._sizes else None
        if left is None:
            return
        held = sum(self._sizes.values())
        room = int(SHARE * (left + held))
        for number in sorted(self._sizes, key=lambda n: (self._gains.get(n, -math.inf), -n)):
            if held <= room:
                break
            held -= self._sizes[number]
            self._store.study.set_user_attr(f"{DROPPED_ATTR}{number}", True)
            self._remove(number)

    def _learn_dropped(self) -> None:
        """Remove what the study says was dropped, if it says something new: the driver was killed in between."""
        study = self._store.study
        attrs = study._storage.get_study_user_attrs(study._study_id)  # study.user_attrs would copy all of them
        if len(attrs) == self._attrs:
            return
        self._attrs = len(attrs)
        for key in attrs:
            number = int(key.removeprefix(DROPPED_ATTR)) if key.startswith(DROPPED_ATTR) else None
            if number is not None and number not in self._dropped:
                self._remove(number)

    def _remove(self, number: int) -> None:
        shutil.rmtree(self._store.checkpoint_folder(number), ignore_errors=True)
        self._dropped.add(number)
        self._forget_one(number)

    def _forget_one(self, number: int) -> None:
        self._unmeasured.discard(number)
        self._sizes.pop(number, None)

    def _forget(self) -> None:
        self._sizes: dict[int, int] = {}
        self._gains: dict[int, float] = {}
        self._unmeasured: set[int] = set()
        self._dropped: set[int] = set()
        self._attrs = 0

    def _take(self, place: int, trials: Sequence[FrozenTrial]) -> None:
        trial = trials[place]
        if is_paused(trial):
            self._unmeasured.add(trial.number)
            if values := trial.intermediate_values:
                self._gains[trial.number] = self._store.objectives.first.gain(values[max(values)])
        if CONTINUES_ATTR in trial.user_attrs:
            self._forget_one(int(trial.user_attrs[CONTINUES_ATTR]))


ALL = ("all", None)
"""The group of all trials; others are of one value of the frontier."""


class EndedCheckpoints(StudyIndex):
    """The checkpoints of ended trials. With a frontier the best trial of each value keeps its checkpoint: any of them
    may become the answer.

    Args:
        facts: the frontier that study.json declares. Its parameter is the same in the whole study.
    """

    def __init__(self, store: CheckpointKeeper, facts: Callable[[], FrontierFacts | None]) -> None:
        self._store, self._read_facts = store, facts
        self._facts: FrontierFacts | None = None
        super().__init__()

    def drop(self) -> None:
        """Remove those that nobody needs. The folder is listed each time: the processes of a trial that was stopped may
        write one more checkpoint before they end."""
        self._facts = self._read_facts()
        trials = self.update(self._store.study)
        there = self._listed() & self._unneeded
        for number in there - self._kept(trials) if there else ():
            shutil.rmtree(self._store.checkpoint_folder(number), ignore_errors=True)

    def _listed(self) -> set[int]:
        """The numbers of the trials that have a folder."""
        names = (path.name.removeprefix("trial-") for path in (self._store.folder / "checkpoints").glob("trial-*"))
        return {int(name) for name in names if name.isdigit()}

    def _kept(self, trials: Sequence[FrozenTrial]) -> set[int]:
        """Numbers of the best trials. Only confirmations need a look at all trials."""
        if not self._has_confirmations:
            values = {group[1]: place for group, place in self._best.items() if group != ALL}
            places = values.values() if self._facts else self._best.values()
            return {trials[place].number for place in places}
        frontier = frontier_of(trials, self._facts) if self._facts else None
        if frontier is not None:
            return {row.best.trial for row in frontier.rows if row.best}
        best = leading_trial(trials, None, self._store.objectives)
        return set() if best is None else {best.number}

    def _forget(self) -> None:
        self._unneeded: set[int] = set()
        self._best: dict[tuple[str, object], int] = {}
        self._ranks: dict[tuple[str, object], tuple[float, ...]] = {}
        self._given: dict[int, int] = {}
        self._has_confirmations = False

    def _take(self, place: int, trials: Sequence[FrozenTrial]) -> None:
        trial = trials[place]
        self._has_confirmations |= kind_of(trial) == Kind.CONFIRMATION
        note_given(trial, self._given)
        if not trial.state.is_finished():
            return
        if not may_need_checkpoint(trial):  # paused ones have a budget
            self._unneeded.add(trial.number)
        if trial.state == TrialState.COMPLETE and trial.values:
            gains = self._store.objectives.gains(trial.values)
            self._compare(ALL, (*gains, -trial.number), place)
            if self._facts is not None:
                late, number = before_equal_ones(trial, self._given)
                self._compare(("of a value", value_of_trial(trial, self._facts)), (gains[0], -late, -number), place)

    def _compare(self, group: tuple[str, object], rank: tuple[float, ...], place: int) -> None:
        """Note the trial if it is the best of its group. The rank ends with what decides between equal ones."""
        if group not in self._best or rank > self._ranks[group]:
            self._best[group], self._ranks[group] = place, rank
