"""Hold a folder so that only this process writes to it: a ``Lease`` for a study or a full run. No torch here.

A driver has regular tasks beside its work: it gives signs of life, and writes down what it has used (``Pulse``).
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from bigbatch.cluster.host.lease import Lease, LeaseLost, StudyHeld
from bigbatch.train_loop.config import ConfigError

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


class FolderHold:
    """A folder that this process holds until ``close``, or until the process ends in any way."""

    def __init__(self, lease: Lease, folder: Path) -> None:
        self._lease, self._folder = lease, folder
        self._pulse = Pulse(self._renew)

    def also(self, task: Callable[[], None]) -> None:
        """Call ``task`` every few seconds, in the thread that renews the lease."""
        self._pulse.also(task)

    def close(self) -> None:
        """Let others use the folder."""
        self._pulse.close()
        self._lease.release()

    def _renew(self) -> None:
        try:
            self._lease.renew()
        except LeaseLost as lost:
            end_process(
                f"{self._folder} was taken over by {lost}, while this process gave no sign of life. "
                "It ends at once and writes nothing more there"
            )


def hold_folder(folder: Path, what: str, fix: str) -> FolderHold:
    """Hold ``folder``. Raises ConfigError if another process or job holds it, or it cannot be written.

    ``what`` names the folder in the message; ``fix`` says what to do instead.
    """
    lease = Lease(folder)
    try:
        lease.take(say=lambda line: print(line, file=sys.stderr, flush=True))
    except StudyHeld as held:
        raise ConfigError(
            f"only one process at a time may write {what}; {folder} is held by {held.words()}. {held.fix}, or {fix}."
        ) from None
    except OSError as error:
        raise unwritable(folder, what, error.strerror, fix) from None
    return FolderHold(lease, folder)


def unwritable(folder: Path, what: str, reason: str | None, fix: str) -> ConfigError:
    """What ``hold_folder`` raises for a folder that this user may not write."""
    return ConfigError(f"{what} must be writable; got {str(folder)!r} ({reason}). Change its permissions, or {fix}.")


def end_process(reason: str) -> None:
    """End this process like ``kill -9``, with one line. It must write nothing more: another process writes here now.

    Its Ray and the processes that it has started end with it.
    """
    # The live display hides the cursor, and what would show it again does not run now.
    show_cursor = "\x1b[?25h\n" if sys.stderr.isatty() else ""
    print(f"{show_cursor}error: {reason}.", file=sys.stderr, flush=True)
    os._exit(1)
