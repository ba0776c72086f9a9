"""Find the file system of a path, and whether several hosts share it (Linux)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

MOUNTS = Path("/proc/self/mountinfo")
SHARED = frozenset(
    "9p afs beegfs beegfs_nodev ceph cifs cvmfs dvs gfs2 glusterfs gpfs lustre lustre_lite nfs nfs4 ocfs2 orangefs "
    "panfs pvfs2 smb3 virtiofs wekafs fuse.beegfs fuse.ceph fuse.ceph-fuse fuse.glusterfs fuse.juicefs fuse.sshfs "
    "fuse.weka".split()
)
"""The kernel's names of the types of file systems that several hosts may mount."""
IN_MEMORY = frozenset(("tmpfs", "ramfs", "devtmpfs"))
"""Types of file systems that no other host can mount."""


def file_system_type(path: Path, mounts: Path = MOUNTS) -> str:
    """The type of the file system of ``path`` (or of its nearest existing parent), e.g. ext4; "" if unknown.

    ``mounts`` has the format of proc_pid_mountinfo(5). The last of several mounts on one point counts.
    """
    try:
        # Mount points need not be UTF-8.
        lines = mounts.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return ""
    # With a slash at its end, because /data does not contain /database.
    wanted = os.path.join(os.path.realpath(path), "")
    found, kind = "", ""
    for line in lines:
        fields, _, rest = line.partition(" - ")
        columns = fields.split(" ")
        if len(columns) < 5 or not rest:
            continue
        point = os.path.join(_unescaped(columns[4]), "")
        if wanted.startswith(point) and len(point) >= len(found):
            found, kind = point, rest.split(" ")[0]
    return kind


def is_shared(path: Path, mounts: Path = MOUNTS) -> bool:
    """Whether several hosts may share the path's file system."""
    return file_system_type(path, mounts) in SHARED


def is_of_one_host(path: Path, temporary: Iterable[str], shared: Path, mounts: Path = MOUNTS) -> bool:
    """Whether only this host sees a path, as far as that can be known here.

    Args:
        temporary: folders that each host has to itself, unless they lie on a shared file system.
        shared: a folder that all hosts see. They also see everything else on its file system.
    """
    if _device(path) == _device(shared):
        return False
    kind, place = file_system_type(path, mounts), os.path.join(os.path.realpath(path), "")
    inside = any(place.startswith(os.path.join(os.path.realpath(base), "")) for base in temporary)
    return kind in IN_MEMORY or (inside and kind not in SHARED)


def _device(path: Path) -> int:
    """The number of the file system of a path, or of its nearest existing parent."""
    existing = next(place for place in (path.absolute(), *path.absolute().parents) if os.path.exists(place))
    return existing.stat().st_dev


def _unescaped(text: str) -> str:
    """Decode a path: mountinfo writes space, tab, newline and backslash as octal numbers."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), text)
