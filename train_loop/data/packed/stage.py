"""A packed set copied once a node to a faster folder (``--stage``): node-local or flash scratch. No torch.

    DIR/NAME-<user>-<source>-<content>/       the copy: the set's name, the user's number, digests of path and index

``once_a_node.py`` makes it. Each shard's SHA-256 is compared with the index while it is copied. A copy of other content
of the same source is removed if no process reads it. Users who share DIR have separate copies.
"""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path
from string import Template

from bigbatch.base.private_folder import USER_TMPDIR
from bigbatch.train_loop.config import ConfigError
from bigbatch.train_loop.data.packed import schema
from bigbatch.train_loop.host.once_a_node import RESERVE, OnceANode, room_missing

BLOCK_BYTES = 1 << 22


class StageError(ConfigError):
    """This node cannot hold a copy; others may, and the source can be read in its place."""


def stage_packed_set(source: str, folder: str) -> str:
    """The copy of the packed set ``source`` on this node. The first process makes it; the others wait for it.

    Args:
        folder: variables in it (``$TMPDIR``) are this node's.

    Raises StageError if there is too little room, or the folder cannot be written; ConfigError for a damaged source.
    """
    root = _root(folder)
    info = schema.read_info(source)
    index = Path(source, schema.INDEX)
    name = f"{Path(source).name}-{os.getuid()}-{_digest(os.path.realpath(source).encode())}"
    target = root / f"{name}-{_digest(index.read_bytes())}"
    copy = OnceANode(target, f"{name}-", _is_whole, lambda partial: _copy(source, info, partial, root), "stages")
    try:
        copy.hold(keep=True)
    except OSError as error:
        raise StageError(
            f"--stage must be a folder that can be written on each node; got {folder!r}: {error.strerror or error}. "
            "Write another folder, or leave --stage out."
        ) from None
    return str(target)


def _root(folder: str) -> Path:
    """The folder, with variables replaced as in a shell. Raises StageError for an unset variable."""
    # In a job's Ray cluster TMPDIR is Ray's folder: the user's is meant.
    env = {**os.environ, "TMPDIR": os.environ.get(USER_TMPDIR, os.environ.get("TMPDIR", ""))}
    root = Path(Template(os.path.expanduser(folder)).safe_substitute({name: env[name] for name in env if env[name]}))
    if "$" in str(root) or not root.is_absolute():
        raise StageError(
            f"--stage must be an absolute path on each node; got {folder!r}, here {str(root)!r}. "
            "Set the variable there, write the path, or write --stage none."
        )
    return root


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:12]


def _is_whole(target: Path) -> bool:
    if not (target / schema.INDEX).is_file():
        return False
    try:
        schema.read_info(str(target))
    except ConfigError:  # somebody has cleaned up the scratch file system
        return False
    return True


def _copy(source: str, info: schema.PackedInfo, partial: Path, root: Path) -> None:
    size = sum(s.bytes for s in info.shards) + os.path.getsize(os.path.join(source, schema.INDEX))
    if missing := room_missing(root, size):
        raise StageError(
            f"--stage needs {RESERVE * size / 1e9:.3g} GB for {source}; {missing}. "
            "Write another folder, or leave --stage out."
        )
    print(f"staging {source} ({size / 1e9:.3g} GB) in {root}", file=sys.stderr, flush=True)
    for shard in info.shards:
        found = _copy_file(Path(source, shard.file), partial / shard.file)
        if found != shard.sha256:
            raise ConfigError(
                "a shard must be as it was packed; got other bytes (SHA-256) in "
                f"{os.path.join(source, shard.file)}. Copy or pack it again."
            )
    # Last: without its index a folder is no packed set.
    _copy_file(Path(source, schema.INDEX), partial / schema.INDEX)


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
