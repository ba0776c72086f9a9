"""What a driver does every few seconds beside its work: it says that it lives, and what it has used."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

TICK_S = 2.0


class Pulse:
    """Calls tasks in a thread of its own, as the driver's own thread may wait for minutes.

    Each task knows itself when it is due. A task that fails is called again; why is said once.
    """

    def __init__(self, *tasks: Callable[[], None]) -> None:
        self._tasks, self._failed = list(tasks), set[str]()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pulse", daemon=True)
        self._thread.start()

    def also(self, task: Callable[[], None]) -> None:
        self._tasks.append(task)

    def close(self) -> None:
        """No task is called afterwards, unless one hangs in a file system."""
        self._over.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=5.0)

    def _run(self) -> None:
        while not self._over.wait(TICK_S):
            for task in list(self._tasks):
                try:
                    task()
                except Exception as error:  # the other tasks, and the search, go on
                    self._say(getattr(error, "strerror", None) or f"{type(error).__name__}: {error}")

    def _say(self, reason: str) -> None:
        if reason not in self._failed:
            self._failed.add(reason)
            print(f"warning: {reason}", file=sys.stderr, flush=True)
