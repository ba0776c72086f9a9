"""Let loader processes request data from the system before they read it. No torch.

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
"""Images that each process requests ahead: at least one task's, at most 28 MB of ImageNet's files."""
WAITING_SHARE_TO_DOUBLE = 0.1
"""If processes wait for more than this part of their time, they request twice as many images ahead."""
TASKS_PER_JUDGEMENT = 8
"""The waiting time is judged over this many tasks of each process."""
MAX_TASKS_ASKED_AT_ONCE = 2
"""A task requests at most this many times its own images, so that distant images do not delay near ones."""


class UpcomingIndices:
    """The indices of a read, in the order of requests."""

    def __init__(self, batches: Sequence[Indices]) -> None:
        self._left = itertools.chain.from_iterable(batches)
        self._ahead = 0

    def take(self, images: int, ahead: int) -> Indices:
        """The indices to request before ``images`` more are read, so that ``ahead`` images after them are requested.

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
