"""A packed set copied once a node to a faster folder (``--stage``): node-local or flash scratch. No torch.

    DIR/NAME-<user>-<source>-<content>/       the copy: the set's name, the user's number, digests of path and index
    DIR/NAME-<user>-<source>-<content>.lock   held shared by those who read the copy, alone by the one who makes it

The copy appears under its name when it is whole (``.partial`` until then, and what a killed process left of it is
made anew). Each shard's SHA-256 is compared with the index while it is copied. A copy of another content of the same
source is removed if nobody reads it. Users who share DIR have separate copies.
"""

from __future__ import annotations

import fcntl
import glob
import hashlib
import os
import shutil
import sys
from pathlib import Path
from string import Template
from typing import IO

from bigbatch.base.private_folder import USER_TMPDIR
from bigbatch.train_loop.config import ConfigError
from bigbatch.train_loop.data.packed import schema
from bigbatch.train_loop.host.command_line import check_writable

BLOCK_BYTES = 1 << 22
RESERVE = 1.02
"""The free space must be this many times the size."""

_held: dict[str, IO[str] | None] = {}
"""Locks on copies that this process reads, until it ends; None on file systems without locks."""


class StageError(ConfigError):
    """This node cannot hold a copy; others may, and the source can be read in its place."""


def stage_packed_set(source: str, folder: str) -> str:
    """The copy of the packed set ``source`` on this node, made by the first who asks; the others wait for it.

    Args:
        folder: variables in it (``$TMPDIR``) are this node's.

    Raises StageError where there is too little room, and where the folder cannot be written; ConfigError for a source
    that is damaged.
    """
    root = _root(folder)
    info = schema.read_info(source)
    index = Path(source, schema.INDEX)
    name = f"{Path(source).name}-{os.getuid()}-{_digest(os.path.realpath(source).encode())}"
    target = root / f"{name}-{_digest(index.read_bytes())}"
    if str(target) in _held:
        return str(target)
    try:
        root.mkdir(parents=True, exist_ok=True)
        lock = _lock(target)
        if not _is_whole(target):
            _remove_stale(root, name, target)
            shutil.rmtree(target, ignore_errors=True)
            if lock is not None:  # remains of a killed process would take up room
                shutil.rmtree(f"{target}.partial", ignore_errors=True)
            _check_room(root, source, info)
            _copy(source, info, target, shared=lock is None)
        if lock is not None:
            fcntl.flock(lock, fcntl.LOCK_SH)
    except OSError as error:
        raise StageError(
            f"--stage must be a folder that can be written on each node; got {folder!r}: {error.strerror or error}. "
            "Write another folder, or leave --stage out."
        ) from None
    _held[str(target)] = lock
    return str(target)


def check_stage_folder(folder: str) -> None:
    """Raise ConfigError where ``folder`` is none that this machine can write. For runs whose workers are all here."""
    check_writable("--stage", _root(folder))


def _root(folder: str) -> Path:
    """Like a shell. Raises StageError for an unset variable."""
    env = _environment()
    unset = [f"${name}" for name in Template(folder).get_identifiers() if not env.get(name)]
    root = Path(Template(os.path.expanduser(folder)).safe_substitute(env))
    if unset or "$" in str(root) or not root.is_absolute():
        why = f"{' and '.join(unset)} is not set here" if unset else f"here that is {str(root)!r}"
        raise StageError(
            f"--stage must be an absolute path on each node; got {folder!r}, and {why}. "
            "Set the variable there, write the path, or write --stage none."
        )
    return root


def _environment() -> dict[str, str]:
    """In a job's Ray cluster TMPDIR is Ray's folder: the user's is meant."""
    env = dict(os.environ)
    if USER_TMPDIR in env:
        env["TMPDIR"] = env[USER_TMPDIR]
    return env


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:12]


def _lock(target: Path) -> IO[str] | None:
    """A lock: shared if the copy is complete, else exclusive; waits for a copying process. It ends with its process."""
    lock = Path(f"{target}.lock").open("a+")  # NFS: a shared lock needs read access, an exclusive one write access
    try:
        _take(lock, fcntl.LOCK_SH, target)
        if not _is_whole(target):
            _take(lock, fcntl.LOCK_EX, target)
    except OSError:
        lock.close()
        return None
    return lock


def _take(lock: IO[str], how: int, target: Path) -> None:
    try:
        fcntl.flock(lock, how | fcntl.LOCK_NB)
    except BlockingIOError:
        print(f"waiting for the process that stages {target}", file=sys.stderr, flush=True)
        fcntl.flock(lock, how)


def _is_whole(target: Path) -> bool:
    if not (target / schema.INDEX).is_file():
        return False
    try:
        schema.read_info(str(target))
    except ConfigError:  # somebody has cleaned up the scratch file system
        return False
    return True


def _remove_stale(root: Path, name: str, target: Path) -> None:
    """Remove copies of earlier versions of the source, unless somebody reads them."""
    for old in root.glob(f"{glob.escape(name)}-*.lock"):
        copy = old.with_suffix("")
        if copy == target:
            continue
        try:
            with old.open("a+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(copy, ignore_errors=True)
                shutil.rmtree(f"{copy}.partial", ignore_errors=True)
                old.unlink(missing_ok=True)
        except OSError:  # it is read, or there are no locks
            continue


def _check_room(root: Path, source: str, info: schema.PackedInfo) -> None:
    needed = int(RESERVE * (sum(s.bytes for s in info.shards) + os.path.getsize(os.path.join(source, "index.arrow"))))
    free = os.statvfs(root).f_bavail * os.statvfs(root).f_frsize
    if needed > free:
        raise StageError(
            f"--stage needs {needed / 1e9:.3g} GB for {source}; {free / 1e9:.3g} GB are left in {root}. "
            "Write another folder, or leave --stage out."
        )


def _copy(source: str, info: schema.PackedInfo, target: Path, shared: bool) -> None:
    total = sum(shard.bytes for shard in info.shards)
    print(f"staging {source} ({total / 1e9:.3g} GB) in {target}", file=sys.stderr, flush=True)
    # Without locks each process copies for itself, and the first that is done wins.
    partial = Path(f"{target}.{os.uname().nodename}-{os.getpid()}.partial" if shared else f"{target}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        for shard in info.shards:
            found = _copy_file(Path(source, shard.file), partial / shard.file)
            if found != shard.sha256:
                raise ConfigError(
                    "a shard must be as it was packed; got other bytes (SHA-256) in "
                    f"{os.path.join(source, shard.file)}. Copy or pack it again."
                )
        _copy_file(Path(source, schema.INDEX), partial / schema.INDEX)
        try:
            os.rename(partial, target)
        except OSError:
            if not _is_whole(target):
                raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _copy_file(source: Path, target: Path) -> str:
    """Write the copy to the disk. Returns its SHA-256."""
    digest = hashlib.sha256()
    with source.open("rb") as reader, target.open("wb") as writer:
        while block := reader.read(BLOCK_BYTES):
            digest.update(block)
            writer.write(block)
        writer.flush()
        os.fsync(writer.fileno())
    return digest.hexdigest()
