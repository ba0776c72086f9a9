"""Room for the checkpoints of paused trials: together they may take as many bytes as are left free beside them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from optuna.trial import FrozenTrial

from bigbatch.train_loop.host.disk_space import bytes_and_inodes, space_left
from bigbatch.tune.runs.objectives import Objectives
from bigbatch.tune.runs.retry import StudyWithCheckpoints
from bigbatch.tune.runs.run import CONTINUES_ATTR, DROPPED_ATTR, is_paused
from bigbatch.tune.runs.study_index import StudyIndex

SHARE = 0.5
"""Of the room that paused trials hold and that is left, by the file system or the site's quota, what they may hold."""
ChooseDropped = Callable[[Sequence[FrozenTrial], Mapping[int, int], int], Sequence[int]]
"""From all trials, the bytes of each paused one (by number) and the bytes that they may take together, to the numbers
of those whose checkpoints go."""


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

    def drop(self, choose: ChooseDropped) -> None:
        """Remove checkpoints of paused trials until they fit. The study knows of each before its folder goes."""
        trials = self.update(self._store.study)
        self._learn_dropped()
        for number in sorted(self._unmeasured):
            if self._store.checkpoint_folder(number).exists():
                self._sizes[number] = bytes_and_inodes(self._store.checkpoint_folder(number))[0]
        self._unmeasured.clear()
        left = space_left(self._store.folder).bytes if self._sizes else None
        if left is None:
            return
        for number in choose(trials, self._sizes, int(SHARE * (left + sum(self._sizes.values())))):
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
        self._unmeasured: set[int] = set()
        self._dropped: set[int] = set()
        self._attrs = 0

    def _take(self, place: int, trials: Sequence[FrozenTrial]) -> None:
        trial = trials[place]
        if is_paused(trial):
            self._unmeasured.add(trial.number)
        if CONTINUES_ATTR in trial.user_attrs:
            self._forget_one(int(trial.user_attrs[CONTINUES_ATTR]))
