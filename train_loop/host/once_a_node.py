"""A folder that one process of a node makes and the node's others read. Under its name it is complete, or not there.

    TARGET/        what was made
    TARGET.lock    held shared by those who read it, alone by the one who makes it

Until TARGET is complete, its name ends in ``.partial``. What a killed process left is made anew. No torch here.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import fcntl
import glob
import os
import random
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

RESERVE = 1.02
"""The free space must be this many times the size."""

_held: dict[str, IO[str]] = {}
"""Locks on folders that this process reads, until it ends."""


@dataclass(frozen=True)
class OnceANode:
    """One such folder and how it is made."""

    target: Path
    others: str
    """Prefix of the names of folders beside this one that it replaces: they are removed unless a process reads them."""
    is_whole: Callable[[Path], bool]
    make: Callable[[Path], None]
    """Fills a new folder."""
    work: str
    """The verb in the message of processes that wait, e.g. ``stages``; empty: no message."""

    def hold(self, *, keep: bool) -> None:
        """Make the folder unless it is there, and keep others from removing it while this process lives.

        Args:
            keep: False: the last process that reads the folder removes it as it ends, unless it is killed.

        Raises OSError, also on a file system without locks, and what ``make`` raises.
        """
        if str(self.target) in _held:
            return
        self.target.parent.mkdir(parents=True, exist_ok=True)
        lock = self._lock()
        if not self.is_whole(self.target):
            self._remove_others()
            shutil.rmtree(self.target, ignore_errors=True)
            try:
                self._make()
            except BaseException:
                if not keep:
                    _remove_unread(Path(f"{self.target}.lock"), lock)
                raise
        fcntl.flock(lock, fcntl.LOCK_SH)
        _held[str(self.target)] = lock
        if not keep:
            atexit.register(_remove_unread, Path(f"{self.target}.lock"), lock)

    def _make(self) -> None:
        partial = Path(f"{self.target}.partial")
        shutil.rmtree(partial, ignore_errors=True)  # remains of a killed process
        partial.mkdir(mode=0o700)
        try:
            self.make(partial)
            os.rename(partial, self.target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    def _lock(self) -> IO[str]:
        """Lock the folder: shared if it is complete, else exclusive. The lock ends with this process.

        It asks again and again: a process that waited in the kernel for the exclusive lock would not notice that
        another process has made the folder meanwhile, and holds a shared lock until its end.
        """
        path = Path(f"{self.target}.lock")
        waits, said = random.Random(), not self.work  # not the global generator, which is the user's
        while True:
            lock = path.open("a+")  # NFS: a shared lock needs read access, an exclusive one write access
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
                if not self.is_whole(self.target):
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is_at(lock, path):
                    return lock
            except BlockingIOError:
                if not said:
                    print(f"waiting for the process that {self.work} {self.target}", file=sys.stderr, flush=True)
                said = True
                time.sleep(waits.uniform(0.05, 0.15))  # random, so that two processes do not ask at the same time again
            except OSError:
                lock.close()
                path.unlink(missing_ok=True)
                raise OSError(errno.ENOLCK, "a file system without locks", str(path.parent)) from None
            lock.close()

    def _remove_others(self) -> None:
        for old in self.target.parent.glob(f"{glob.escape(self.others)}*.lock"):
            if old.with_suffix("") != self.target:
                with contextlib.suppress(OSError), old.open("a+") as lock:  # it is read
                    _remove_unread(old, lock)


def _is_at(file: IO[str], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _remove_unread(lock_file: Path, lock: IO[str]) -> None:
    """Remove a folder and its lock file if no other process reads it; ``lock``: this process's."""
    with contextlib.suppress(OSError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        target = lock_file.with_suffix("")
        shutil.rmtree(target, ignore_errors=True)
        shutil.rmtree(f"{target}.partial", ignore_errors=True)
        lock_file.unlink(missing_ok=True)


def room_missing(folder: Path, size: int) -> str:
    """What is wrong if ``folder``, which exists, has no room for ``size`` bytes, in words; else empty."""
    needed, about = int(RESERVE * size), os.statvfs(folder)
    free = about.f_bavail * about.f_frsize
    return f"{free / 1e9:.3g} GB are left in {folder}" if needed > free else ""
