"""A driver's regular tasks beside its work: it gives signs of life, and writes down what it has used."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

TICK_S = 2.0


class Pulse:
    """Calls tasks in its own thread, because the driver's thread may wait for minutes.

    Each task decides by itself when it is due. A task that fails is called again; its error is printed once.
    """

    def __init__(self, *tasks: Callable[[], None]) -> None:
        self._tasks, self._failed = list(tasks), set[str]()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pulse", daemon=True)
        self._thread.start()

    def also(self, task: Callable[[], None]) -> None:
        """Add a task."""
        self._tasks.append(task)

    def close(self) -> None:
        """Stop calling tasks. A task that hangs in a file system may still run."""
        self._over.set()
        # A task may close the pulse that calls it.
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=5.0)

    def _run(self) -> None:
        while not self._over.wait(TICK_S):
            for task in list(self._tasks):
                try:
                    task()
                except Exception as error:  # the other tasks and the search continue
                    self._say(getattr(error, "strerror", None) or f"{type(error).__name__}: {error}")

    def _say(self, reason: str) -> None:
        if reason not in self._failed:
            self._failed.add(reason)
            print(f"warning: {reason}", file=sys.stderr, flush=True)
