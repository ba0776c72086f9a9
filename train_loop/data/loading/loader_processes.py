"""The processes of a ring, each started until it runs.

A fork may hang before its first line: CPython below 3.11.10 copies a lock that another thread holds at that moment,
and the child waits for it for ever (python/cpython#112275). A trainer under Ray has such threads. So each process notes
that it has begun, and one that has not is killed and started again.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess

import numpy as np
import numpy.typing as npt

from bigbatch.train_loop.errors import LoaderError

BEGIN_S = 30.0
"""So long a forked process may take to its first line; at each further attempt as long again in addition."""
ATTEMPTS = 4

_log = logging.getLogger(__name__)


class LoaderProcesses:
    """Processes, and what is needed to start one of them again until all have begun.

    Args:
        make: a process that is not started yet, by its number. It sets its place in ``begun`` in its first line.
        begun: uint8 ``[processes]``, shared with the processes.
        ends: the sockets that the processes inherit. They are closed here once no process needs to be started any more.
        forked: whether the processes are forks. Others take longer to begin, and do not hang.
    """

    def __init__(
        self,
        make: Callable[[int], BaseProcess],
        begun: npt.NDArray[np.uint8],
        ends: Sequence[socket.socket],
        *,
        forked: bool,
    ) -> None:
        self.all: list[BaseProcess] = []
        self._make, self._begun, self._ends = make, begun, list(ends)
        self._forked, self._attempt = forked, 1

    def start(self) -> None:
        """Start all of them, without waiting until they have begun."""
        for number in range(len(self._begun)):
            process = self._make(number)
            process.start()
            self.all.append(process)
        self._since = time.monotonic()
        if not self._forked:
            self._close_ends()

    @property
    def patience_s(self) -> float | None:
        """How long to wait for an answer before ``start_again``. None: for ever, as all have begun."""
        if not self._ends:  # asked for each answer, so the usual case comes first
            return None
        if self._begun.all():
            self._close_ends()
            return None
        return max(0.0, self._since + self._attempt * BEGIN_S - time.monotonic())

    def start_again(self) -> list[tuple[BaseProcess, BaseProcess]]:
        """Replace the processes that have not begun. Returns each with its replacement.

        Raises LoaderError after ATTEMPTS attempts.
        """
        # One that has died is not replaced: whoever waits for an answer sees its end.
        stuck = [number for number, process in enumerate(self.all) if not self._begun[number] and process.is_alive()]
        if stuck and self._attempt == ATTEMPTS:
            raise LoaderError(
                f"a loader process did not begin in {ATTEMPTS} attempts. Write data.loader.workers=0, or use Python "
                "3.11.10 or newer (python/cpython#112275)."
            )
        replaced = []
        for number in stuck:
            old = self.all[number]
            old.kill()
            old.join()
            _log.warning("%s (process %d) did not begin and is started again", old.name, old.pid)
            self.all[number] = self._make(number)
            self.all[number].start()
            replaced.append((old, self.all[number]))
        self._attempt, self._since = self._attempt + 1, time.monotonic()
        return replaced

    def close(self) -> None:
        """Kill them: they only read files."""
        self._close_ends()
        for process in self.all:
            process.kill()
        for process in self.all:
            # Not for ever: a process that waits for a dead file system does not die.
            process.join(5.0)

    def _close_ends(self) -> None:
        while self._ends:
            self._ends.pop().close()
