"""What loader processes ask the system for before they read it, and how far ahead. No torch.

Files are read by all processes of a node through one memory (the page cache), so a process asks for records that
any of them may read: those whose turn comes when every process has done as many images as it asks ahead.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]

MIN_IMAGES_AHEAD, MAX_IMAGES_AHEAD = 16, 256
"""Images of each process that are asked for ahead: a task; 28 MB of ImageNet's files."""
WAITING_SHARE_TO_DOUBLE = 0.1
"""Of their time that processes may wait before twice as many are asked for."""
TASKS_PER_JUDGEMENT = 8
"""Tasks of each process that are looked at together."""
MAX_TASKS_ASKED_AT_ONCE = 2
"""Times the images of a task: what it asks for, so that what is far ahead does not keep near ones waiting."""


class UpcomingIndices:
    """The indices of a read, in their order, as they are asked for."""

    def __init__(self, batches: Sequence[Indices]) -> None:
        self._left = itertools.chain.from_iterable(batches)
        self._ahead = 0

    def take(self, images: int, ahead: int) -> Indices:
        """What to ask for as ``images`` more are about to be read, so that ``ahead`` after them have been asked for.

        At most ``MAX_TASKS_ASKED_AT_ONCE`` times ``images``.
        """
        count = max(min(images + ahead - self._ahead, MAX_TASKS_ASKED_AT_ONCE * images), 0)
        found = np.fromiter(itertools.islice(self._left, count), np.int64)
        self._ahead += len(found) - images
        return found


class ReadAheadDepth:
    """Images a process that are asked for ahead: doubled while processes wait.

    Waiting is time in which a process did not compute. On storage that answers late that is reading; where it is other
    processes on the same cores, asking earlier than needed costs nothing but memory of the system's.
    """

    def __init__(self, workers: int) -> None:
        self.images, self._workers = MIN_IMAGES_AHEAD, workers
        self._tasks, self._waited_s, self._worked_s = 0, 0.0, 0.0

    def note(self, waited_s: float, worked_s: float) -> None:
        """A task was done in ``worked_s``, of which it waited ``waited_s``."""
        self._tasks += 1
        self._waited_s += waited_s
        self._worked_s += worked_s
        if self._tasks == TASKS_PER_JUDGEMENT * self._workers:
            if self._waited_s > WAITING_SHARE_TO_DOUBLE * self._worked_s:
                self.images = min(2 * self.images, MAX_IMAGES_AHEAD)
            self._tasks, self._waited_s, self._worked_s = 0, 0.0, 0.0
