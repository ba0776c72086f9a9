"""A node's private temporary folder: short enough for Ray's sockets, removed at the end, found if it was not."""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from cluster import processes

PREFIX = "bbn-"
OWNER = "owner"
SOCKET_PATH_LIMIT = 107  # bytes, AF_UNIX
RAY_ADDS = 75  # bytes: /session_<date>_<time>_<pid>/sockets/plasma_store


def bases(env: Mapping[str, str] | None = None) -> list[str]:
    """Folders local to the node, best first: the site's, the job's own, the user's, /tmp."""
    env = os.environ if env is None else env
    candidates = [env.get("BIGBATCH_NODE_TMP"), env.get("SLURM_TMPDIR"), env.get("TMPDIR"), "/tmp"]
    return list(dict.fromkeys(os.path.abspath(c) for c in candidates if c))


def is_short_enough(base: str, job_id: str) -> bool:
    return len(f"{base}/{PREFIX}{job_id}-xxxx/r") + RAY_ADDS <= SOCKET_PATH_LIMIT


@contextmanager
def private_folder(job_id: str) -> Iterator[Path]:
    """A new 0700 folder of this job on this node; on leaving it is gone.

    A lock on the file ``owner`` in it, which ends with this process however it ends, tells others that
    it is in use. Raises OSError if no base is usable; the message is one line.
    """
    for base in bases():
        if is_short_enough(base, job_id) and os.access(base, os.W_OK | os.X_OK):
            folder = Path(base) / f"{PREFIX}{job_id}-{secrets.token_hex(2)}"
            folder.mkdir(mode=0o700)
            break
    else:
        raise OSError(f"no writable, short node-local folder among {', '.join(bases())}. Set TMPDIR to one.")
    with (folder / f"{OWNER}.new").open("w") as owner:
        try:
            fcntl.flock(owner, fcntl.LOCK_EX)
            os.rename(folder / f"{OWNER}.new", folder / OWNER)  # seen only once it is locked
            yield folder
        finally:
            remove(folder)


def remove(folder: Path) -> None:
    """Remove ``folder`` even while a dying process still writes into it."""

    def gone() -> bool:
        shutil.rmtree(folder, ignore_errors=True)
        return not folder.exists()

    processes.wait_until(gone, timeout_s=2)


def remove_stale(env: Mapping[str, str] | None = None) -> list[Path]:
    """Remove this user's folders whose job was killed before it could; returns them.

    Only folders of our name, owned by us, whose owner's lock is free; with them end the processes that
    still run out of them.
    """
    removed = []
    for base in bases(env):
        for folder in Path(base).glob(f"{PREFIX}[0-9]*-*"):
            try:
                about = folder.lstat()
                if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid():
                    continue
                with (folder / OWNER).open() as owner:
                    fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:  # none of ours, just being made, or in use
                continue
            processes.end_processes_naming(folder)
            remove(folder)
            removed.append(folder)
    return removed
