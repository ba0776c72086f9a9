"""Room for the checkpoints of paused trials: together they may take as many bytes as are left free beside them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import optuna
from optuna.trial import FrozenTrial

from bigbatch.train_loop.host.disk_space import bytes_and_inodes, space_left
from bigbatch.tune.study.trial_facts import DROPPED_ATTR, dropped_checkpoints, waiting_to_continue

SHARE = 0.5
"""Of the room that paused trials hold and that is left, by the file system or the site's quota, what they may hold."""
ChooseDropped = Callable[[Sequence[FrozenTrial], Mapping[int, int], int], Sequence[int]]
"""From all trials, the bytes of each paused one (by number) and the bytes that they may take together, to the numbers
of those whose checkpoints go."""


class CheckpointKeeper(Protocol):
    """What this file needs of a ``StudyStore``."""

    study: optuna.Study
    folder: Path

    def checkpoint_folder(self, number: int) -> Path:
        """Of the trial with that number, whether it exists or not."""


def drop_paused(store: CheckpointKeeper, trials: Sequence[FrozenTrial], choose: ChooseDropped) -> None:
    """Remove checkpoints of paused trials until they fit. The study knows of each before its folder goes."""
    already = dropped_checkpoints(store.study)
    waiting = [t.number for t in waiting_to_continue(trials) if t.number not in already]
    sizes = {n: bytes_and_inodes(store.checkpoint_folder(n))[0] for n in waiting if store.checkpoint_folder(n).exists()}
    left = space_left(store.folder).bytes if sizes else None
    if left is not None:
        for number in choose(trials, sizes, int(SHARE * (left + sum(sizes.values())))):
            store.study.set_user_attr(f"{DROPPED_ATTR}{number}", True)
            already.add(number)
    for number in already:
        shutil.rmtree(store.checkpoint_folder(number), ignore_errors=True)
