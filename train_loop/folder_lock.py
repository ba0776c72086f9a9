"""One writer a folder: a lock that ends with its process, however that ends. No torch here."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import IO

from train_loop.config import ConfigError


def lock_folder(folder: Path, what: str, fix: str) -> IO[str]:
    """Hold ``folder``: the returned file, ``.lock`` in it, is to be closed at the end.

    On file systems without locks the folder is not held, and nothing is said. Raises ConfigError, with ``what``
    as the rule and ``fix`` as what to do, where another process holds it, or where it cannot be written.
    """
    try:
        lock = (folder / ".lock").open("a+")
    except OSError as error:
        raise ConfigError(
            f"{what} must be writable; got {str(folder)!r} ({error.strerror}). Change its permissions, or {fix}."
        ) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.seek(0)
        holder = lock.read().strip() or "another process"
        lock.close()
        raise ConfigError(
            f"{what} is written by one process at a time; {folder} is held by {holder}. Wait for it, or {fix}."
        ) from None
    except OSError:
        pass
    lock.truncate(0)
    lock.write(f"process {os.getpid()} on {os.uname().nodename}")
    lock.flush()
    return lock
