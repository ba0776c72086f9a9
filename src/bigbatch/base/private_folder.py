"""A private temporary folder for Ray. Its path is short enough for sockets. It is removed at the end, or later by a
sweep.

Jobs use it on each node (``temporary_folder``), and searches for their own Ray (``train_loop/launch/ray_session.py``).
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from bigbatch.base import processes
from bigbatch.base.waits import FOLDER_GONE_S

PREFIX = "bbn-"
OWNER = "owner"
USER_TMPDIR = "BIGBATCH_USER_TMPDIR"
"""If TMPDIR is our private folder, this variable holds its earlier value; empty if it was not set."""
SOCKET_PATH_LIMIT = 107  # bytes, AF_UNIX
RAY_ADDS = 75  # bytes: /session_<date>_<time>_<pid>/sockets/plasma_store
LEAST_FREE_BYTES = 32 << 20
"""Ray's processes die without a message if their logs and sockets have no room."""
LEAST_FREE_INODES = 150
"""They also die if they can make no file. With 2 CPUs and no work, Ray 2.60 has 130 files and folders."""
TAIL = "[0-9a-f]" * 4
"""Pattern of what ``make_private_folder`` adds to the prefix."""
OURS_BY_NAME = re.compile(r"bb(n|-ray)-.*[0-9a-f]{4}")
"""A private folder of a job or a search."""


def base_folders() -> list[str]:
    """Node-local folders, the best first: the site's, the job's own, the user's, /tmp."""
    candidates = [*map(os.environ.get, ("BIGBATCH_NODE_TMP", "SLURM_TMPDIR", "TMPDIR")), "/tmp"]
    return list(dict.fromkeys(os.path.abspath(c) for c in candidates if c))


def make_private_folder(prefix: str, candidates: Sequence[str]) -> tuple[Path, IO[str]]:
    """A new folder with mode 0700 in the first suitable one of ``candidates``, and the open file ``owner`` in it.

    A lock on that file tells others that the folder is in use; it ends with this process in any case. Raises OSError
    with a message of one line if no candidate is suitable.
    """
    reasons = []
    for base in candidates:
        if why_not := _why_unsuitable(base, prefix):
            reasons.append(f"{base} {why_not}")
        else:
            folder = Path(base) / f"{prefix}{secrets.token_hex(2)}"
            folder.mkdir(mode=0o700)
            owner = (folder / f"{OWNER}.new").open("w")
            fcntl.flock(owner, fcntl.LOCK_EX)
            os.rename(folder / f"{OWNER}.new", folder / OWNER)  # visible only after it is locked
            return folder, owner
    raise OSError(
        f"Ray's files need a short, writable folder on {os.uname().nodename}, with {LEAST_FREE_BYTES >> 20} MiB and "
        f"{LEAST_FREE_INODES} inodes free; got {', '.join(reasons)}. Make room, or set TMPDIR to such a folder."
    )


def _why_unsuitable(base: str, prefix: str) -> str | None:
    """Why Ray's files cannot be in ``base``, in words; None if they can."""
    if len(f"{base}/{prefix}xxxx/r") + RAY_ADDS > SOCKET_PATH_LIMIT:
        return "(too long for sockets)"
    if not os.access(base, os.W_OK | os.X_OK):
        return "(not writable)"
    stat = os.statvfs(base)
    free = stat.f_bavail * stat.f_frsize
    if stat.f_files and stat.f_favail < LEAST_FREE_INODES:  # some file systems count none, and show 0
        return f"({stat.f_favail} inodes free)"
    return f"({free >> 20} MiB free)" if free < LEAST_FREE_BYTES else None


def temporary_folder_variables(folder: Path, env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Variables for processes whose temporary files belong into ``folder``. ``env``: the user's variables.

    Python puts sockets into TMPDIR. The user's path may be too long for them; the folder's is short.
    """
    outer = env.get("TMPDIR", "")
    if USER_TMPDIR in env and OURS_BY_NAME.fullmatch(Path(outer).name):  # a search within a job, or within a search
        outer = env[USER_TMPDIR]
    return {"TMPDIR": str(folder), USER_TMPDIR: outer}


@contextmanager
def temporary_folder(job_id: str) -> Iterator[Path]:
    """A new folder of this job on this node, removed when the block ends. Raises OSError as ``make_private_folder``."""
    folder, owner = make_private_folder(f"{PREFIX}{job_id}-", base_folders())
    with owner:
        try:
            yield folder
        finally:
            remove_folder(folder)


def remove_folder(folder: Path) -> None:
    """Remove ``folder`` even if a dying process still writes into it.

    The owner's file is removed last: if the removal is interrupted, the next sweep recognizes the rest by it.
    """

    def gone() -> bool:
        with suppress(OSError):
            for path in folder.iterdir():
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path, ignore_errors=True)
                elif path.name != OWNER:
                    path.unlink()
        shutil.rmtree(folder, ignore_errors=True)
        return not folder.exists()

    processes.wait_until(gone, timeout_s=FOLDER_GONE_S)


def remove_stale(pattern: str = f"{PREFIX}[0-9]*-{TAIL}", candidates: Sequence[str] | None = None) -> list[Path]:
    """Remove this user's folders that killed processes left behind. Returns the removed folders.

    It removes only folders with our name that belong to this user and whose lock is free. It also ends Ray processes
    that still run from them.
    """
    removed = []
    for base in base_folders() if candidates is None else candidates:
        for folder in Path(base).glob(pattern):
            if _is_abandoned(folder):
                # First: they would write into the folder again.
                processes.end_processes_of(folder)
                remove_folder(folder)
                removed.append(folder)
    return removed


def _is_abandoned(folder: Path) -> bool:
    try:
        # /tmp is everybody's: a link there must not lead the removal to another folder.
        about = folder.lstat()
        if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid():
            return False
        with (folder / OWNER).open() as owner:  # without one it is being made, or is no folder of ours
            fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
    except OSError:  # already gone, or in use
        return False
