"""Recognize a full file system or a used-up quota in an error, and describe it. No torch here."""

from __future__ import annotations

import errno
import logging
import os
import sys
from pathlib import Path

QUOTA, FULL = errno.EDQUOT, errno.ENOSPC
NO_ROOM = "no room for a checkpoint"
"""A worker's report of a full disk begins with these words. The driver recognizes it by them."""
_WORDS = {QUOTA: "quota exceeded", FULL: "no space left"}
"""Words that libraries keep of such an error when they drop its number."""
_ALMOST_NOTHING = 1 << 16


class LogFile(logging.FileHandler):
    """A log file that leaves out lines when the disk is full. ``logging`` would print a traceback for each."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Print the traceback of a failed log line, as ``logging`` does; but not for a full disk: others report
        that."""
        if full_errno(sys.exc_info()[1]) is None:
            super().handleError(record)


class DiskFull(OSError):
    """Nothing more can be written. The message is one line that names the file system."""

    def __init__(self, message: str) -> None:
        super().__init__(FULL, message)
        self.message = message

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[type[DiskFull], tuple[str]]:
        return DiskFull, (self.message,)  # from a worker to the driver


def full_errno(error: BaseException | None, folder: Path | None = None) -> int | None:
    """ENOSPC or EDQUOT if a full disk caused ``error`` or one of its causes; else None.

    ``folder``: the folder that was written to. torch gives no reason for a failed write; then the folder's room is
    checked.
    """
    # Exceptions may be each other's cause: this would never end.
    seen: set[int] = set()
    link = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        if isinstance(link, OSError) and link.errno in _WORDS:
            return link.errno
        found = next((number for number, words in _WORDS.items() if words in str(link).lower()), None)
        if found is not None:
            return found
        link = link.__cause__ or link.__context__
    writer_failed = isinstance(error, RuntimeError) and "PytorchStreamWriter" in str(error)
    if writer_failed and folder is not None and free_bytes(folder) < _ALMOST_NOTHING:
        return FULL
    return None


def describe_full_disk(number: int, folder: Path) -> str:
    """Which file system is full, in words: ``the file system /scratch is full (0.0 of 2.2 GB left)``."""
    where = mount_of(folder)
    if number == QUOTA:
        return f"your quota on the file system {where}, where {folder} lies, is used up"
    try:
        stat = os.statvfs(folder)
    except OSError:
        return f"the file system {where}, where {folder} lies, is full"
    # Some file systems, such as btrfs, count no inodes and show 0.
    if stat.f_files and not stat.f_favail and stat.f_bavail * stat.f_frsize > _ALMOST_NOTHING:
        return f"the file system {where}, where {folder} lies, has no room for another file (no inodes left)"
    left, size = (count * stat.f_frsize / 1e9 for count in (stat.f_bavail, stat.f_blocks))
    return f"the file system {where}, where {folder} lies, is full ({left:.1f} of {size:.1f} GB left)"


def mount_of(folder: Path) -> Path:
    """The mount point of the folder's file system."""
    there = next(p for p in (folder.absolute(), *folder.absolute().parents) if p.exists()).resolve()
    return next(p for p in (there, *there.parents) if os.path.ismount(p))


def free_bytes(folder: Path) -> int:
    """Free bytes of the folder's file system; 0 if they are not known."""
    try:
        stat = os.statvfs(folder)
    except OSError:
        return 0
    return stat.f_bavail * stat.f_frsize
