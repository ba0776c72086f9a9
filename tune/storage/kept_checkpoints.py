"""Which checkpoints of ended trials stay: the best trial's, and those from which another trial may go on.

With a frontier the best trial of each value keeps its checkpoint: any of them may become the answer. Together the
checkpoints of paused trials may take as many bytes as are left free beside them.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Protocol

from optuna.trial import FrozenTrial, TrialState

from bigbatch.train_loop.host.disk_space import bytes_and_inodes, space_left
from bigbatch.tune.runs.answer import leading_trial
from bigbatch.tune.runs.frontier import FrontierFacts, frontier_of, value_of_trial
from bigbatch.tune.runs.objectives import Objectives
from bigbatch.tune.runs.retry import StudyWithCheckpoints, may_need_checkpoint
from bigbatch.tune.runs.run import CONTINUES_ATTR, DROPPED_ATTR, Kind, before_equal_ones, is_paused, note_given, of_kind

SHARE = 0.5
"""The part that paused trials may hold of the room that they hold now and that the disk, or the quota, has left."""


class CheckpointKeeper(StudyWithCheckpoints, Protocol):
    """What this file needs of a ``StudyStore``."""

    folder: Path
    objectives: Objectives


def drop_ended(store: CheckpointKeeper, read_facts: Callable[[], FrontierFacts | None]) -> None:
    """Remove the checkpoints of ended trials that nobody needs.

    The folder is listed each time: the processes of a trial that was stopped may write one more before they end.
    """
    trials, there = store.study.get_trials(deepcopy=False), _listed(store)
    unneeded = {t.number for t in _at(trials, there) if t.state.is_finished() and not may_need_checkpoint(t)}
    for number in unneeded - _best(trials, read_facts(), store.objectives) if unneeded else ():
        shutil.rmtree(store.checkpoint_folder(number), ignore_errors=True)


def _best(trials: Sequence[FrozenTrial], facts: FrontierFacts | None, objectives: Objectives) -> set[int]:
    """Numbers of the best trials."""
    if facts is None:
        best = leading_trial(trials, None, objectives)
        return set() if best is None else {best.number}
    if of_kind(trials, Kind.CONFIRMATION) and (frontier := frontier_of(trials, facts)) is not None:
        return {row.best.trial for row in frontier.rows if row.best}
    given: dict[int, int] = {}
    found: dict[object, tuple[tuple[float, ...], int]] = {}
    for trial in trials:
        note_given(trial, given)
        if trial.state == TrialState.COMPLETE and trial.values:
            late, number = before_equal_ones(trial, given)
            ranked = (objectives.gains(trial.values)[0], -late, -number), trial.number
            value = value_of_trial(trial, facts)
            found[value] = max(found.get(value, ranked), ranked)
    return {number for _, number in found.values()}


def drop_paused(store: CheckpointKeeper) -> None:
    """Remove checkpoints of paused trials until they fit, those of the worst last values first.

    Each is noted in the study before its folder is removed.
    """
    trials, there = store.study.get_trials(deepcopy=False), _listed(store)
    attrs = store.study._storage.get_study_user_attrs(store.study._study_id)  # study.user_attrs would copy all of them
    dropped = {int(key.removeprefix(DROPPED_ATTR)) for key in attrs if key.startswith(DROPPED_ATTR)}
    for number in dropped & there:  # the driver was killed in between
        shutil.rmtree(store.checkpoint_folder(number), ignore_errors=True)
    paused = {trial.number for trial in _at(trials, there - dropped) if is_paused(trial)}
    if paused:
        paused -= {trial.user_attrs.get(CONTINUES_ATTR) for trial in trials}
    left = space_left(store.folder).bytes if paused else None
    if left is None:
        return
    sizes = {number: bytes_and_inodes(store.checkpoint_folder(number))[0] for number in paused}
    held = sum(sizes.values())
    room = int(SHARE * (left + held))
    for number in sorted(sizes, key=lambda number: (_last_gain(trials[number], store.objectives), -number)):
        if held <= room:
            break
        held -= sizes[number]
        store.study.set_user_attr(f"{DROPPED_ATTR}{number}", True)
        shutil.rmtree(store.checkpoint_folder(number), ignore_errors=True)


def _at(trials: Sequence[FrozenTrial], numbers: Iterable[int]) -> list[FrozenTrial]:
    """The trials with these numbers that the study has."""
    return [trials[number] for number in numbers if number < len(trials)]


def _last_gain(trial: FrozenTrial, objectives: Objectives) -> float:
    values = trial.intermediate_values
    return objectives.first.gain(values[max(values)]) if values else -math.inf


def _listed(store: CheckpointKeeper) -> set[int]:
    """The numbers of the trials that have a folder."""
    names = (path.name.removeprefix("trial-") for path in (store.folder / "checkpoints").glob("trial-*"))
    return {int(name) for name in names if name.isdigit()}
