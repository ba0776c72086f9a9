"""Space for results: what is left, and a full file system or a used-up quota in an error. No torch."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from bigbatch.cluster.host import profiles, quota
from bigbatch.train_loop.config import ConfigError

QUOTA, FULL = errno.EDQUOT, errno.ENOSPC
NO_ROOM = "no room for a checkpoint"
"""A worker's report of a full disk begins with these words. The driver recognizes it by them."""
_WORDS = {QUOTA: "quota exceeded", FULL: "no space left", errno.EROFS: "read-only file system"}
"""Words that remain of such an error if a library drops its number."""
_LOST = (errno.EACCES, errno.EPERM, errno.EIO, errno.ESTALE)
"""Errors of writes in a folder that was writable before: changed permissions, a lost file server or ticket."""
_ALMOST_NOTHING = 1 << 16


class LogFile(logging.FileHandler):
    """A log file that leaves out lines when the disk is full. ``logging`` would print a traceback for each."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Print the traceback of a failed line; but not for a full disk, which other code reports."""
        if full_errno(sys.exc_info()[1]) is None:
            super().handleError(record)

    def close(self) -> None:
        """Close the file, without what a full disk has left in its buffer."""
        try:
            super().close()
        except OSError as error:
            if full_errno(error) is None:
                raise


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
    """The number of the error if ``error`` or one of its causes is a disk that is full or read-only; else None.

    ``folder``: the folder that was written to. Then a file in it that cannot be written counts too. torch gives no
    reason for a failed write; then the folder's room is checked.
    """
    # Exceptions may be each other's cause: this would never end.
    seen: set[int] = set()
    link = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        if isinstance(link, OSError) and (link.errno in _WORDS or (link.errno in _LOST and _lies_in(link, folder))):
            return link.errno
        text = "".join(traceback.format_exception_only(link)).lower()  # str() may raise for a user's
        found = next((number for number, words in _WORDS.items() if words in text), None)
        if found is not None:
            return found
        link = link.__cause__ or link.__context__
    writer_failed = isinstance(error, RuntimeError) and "PytorchStreamWriter" in str(error)
    if writer_failed and folder is not None and free_bytes(folder) < _ALMOST_NOTHING:
        return FULL
    return None


@contextlib.contextmanager
def full_disk_named(folder: Path) -> Iterator[None]:
    """Within the block, turn an error that a full disk caused into DiskFull: a checkpoint was written to ``folder``."""
    try:
        yield
    except DiskFull:
        raise
    except (OSError, RuntimeError) as error:
        # The cause of an OwnCodeError: its text has lines of the user's files, which may speak of quotas.
        number = full_errno(error.__cause__ or error, folder)
        if number is None:
            raise
        raise DiskFull(f"{NO_ROOM}: {describe_full_disk(number, folder)}") from error


def _lies_in(error: OSError, folder: Path | None) -> bool:
    file = error.filename
    return folder is not None and isinstance(file, str) and Path(file).absolute().is_relative_to(folder.absolute())


def describe_full_disk(number: int, folder: Path) -> str:
    """Which file system is full, in words: ``the file system /scratch is full (0.0 of 2.2 GB left)``."""
    where = mount_of(folder)
    if number not in (QUOTA, FULL):
        return f"{folder}, in the file system {where}, can no longer be written ({os.strerror(number)})"
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
    there = next(p for p in (folder.absolute(), *folder.absolute().parents) if os.path.exists(p)).resolve()
    return next(p for p in (there, *there.parents) if os.path.ismount(p))


def free_bytes(folder: Path) -> int:
    """Free bytes of the folder's file system; 0 if they are not known."""
    try:
        stat = os.statvfs(folder)
    except OSError:
        return 0
    return stat.f_bavail * stat.f_frsize


RESERVE = 1.05


@dataclass(frozen=True)
class SpaceNeeded:
    """The most that will be written."""

    bytes: int
    inodes: int
    why: str
    """In a few words, e.g. ``3 checkpoints of 0.3 GB``."""


@dataclass(frozen=True)
class SpaceLeft:
    """The room that is left. None: not counted."""

    bytes: int | None
    inodes: int | None
    bytes_by: str
    inodes_by: str
    """The source of these numbers: the file system, or the site's quota command."""


def space_left(folder: Path) -> SpaceLeft:
    """The room for ``folder``, which need not exist: the file system's, or the quota's if that is less."""
    there = next(p for p in (folder, *folder.parents) if os.path.exists(p))
    stat = os.statvfs(there)
    # 0 blocks in all: the file system does not count them.
    free = stat.f_bavail * stat.f_frsize if stat.f_blocks else None
    room = SpaceLeft(free, stat.f_favail if stat.f_files else None, "the file system", "the file system")
    command, lines = site_quota()
    allowed = quota.parse_quota_left(lines, there)
    if allowed is None:
        return room
    if allowed.bytes is not None and (room.bytes is None or allowed.bytes < room.bytes):
        room = SpaceLeft(allowed.bytes, room.inodes, command, room.inodes_by)
    if allowed.inodes is not None and (room.inodes is None or allowed.inodes < room.inodes):
        room = SpaceLeft(room.bytes, allowed.inodes, room.bytes_by, command)
    return room


@cache
def site_quota() -> tuple[str, tuple[str, ...]]:
    """The site's quota command and its output; empty if there is none, or it does not answer."""
    try:
        site = profiles.find_site()
        return site.quota_command or "", tuple(quota.run_quota_command(site))
    except profiles.InputError:
        return "", ()


def quota_lines() -> list[str]:
    """The output of the site's quota command, for people: its format may be unknown."""
    command, lines = site_quota()
    return [f"quota by {command}:", *(f"  {line}" for line in lines)] if lines else []


def check_disk_space(option: str, folder: Path, need: SpaceNeeded) -> None:
    """Raise ConfigError, naming ``option``, if ``need`` exceeds the room for ``folder``.

    The folder's present content counts as room, because a resumed run overwrites it.
    """
    room, (held_bytes, held_inodes) = space_left(folder), bytes_and_inodes(folder)
    free = None if room.bytes is None else room.bytes + held_bytes
    inodes = None if room.inodes is None else room.inodes + held_inodes
    fix = f"Free some, or write {option} with a folder on another file system."
    need_bytes = int(need.bytes * RESERVE)
    if free is not None and need_bytes > free:
        raise ConfigError(
            f"the results need up to {format_bytes(need_bytes)} ({need.why}); got {format_bytes(free)} left for "
            f"{str(folder)!r} by {room.bytes_by}. {fix}"
        )
    if inodes is not None and need.inodes > inodes:
        raise ConfigError(
            f"the results need up to {need.inodes:,} inodes ({need.why}); got {inodes:,} left for "
            f"{str(folder)!r} by {room.inodes_by}. {fix}"
        )


def format_bytes(count: int) -> str:
    """Bytes as people write them: ``1.25 GB``, ``3.10 MB``."""
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.2f} MB"


def bytes_and_inodes(folder: Path) -> tuple[int, int]:
    """Bytes and inodes of a folder."""
    found: list[os.stat_result] = []
    for parent, folders, files in os.walk(folder):  # unlike rglob, it skips folders that vanish
        for name in folders + files:
            with contextlib.suppress(FileNotFoundError):  # another run renames its checkpoint into place
                found.append(os.lstat(os.path.join(parent, name)))
    return sum(stat.st_size for stat in found), len(found)
