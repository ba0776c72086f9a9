"""Replace files atomically: a reader finds the old file or the new one, never a part of either.

The new content is first written beside the file, under a name that no reader opens. A writer that fails removes it. A
writer that is killed leaves it behind, and nobody reads it.

Four kinds of files are written in another way; the code of each says why: a lease, whose name may be made only once
(``lease.py``); the owner of a private folder, which must be locked first (``private_folder.py``); a worker's progress,
overwritten in place because NFS caches names (``train_loop/progress.py``); and Optuna's journal, which grows line by
line. ``bigbatch pack`` and ``--stage`` rename whole folders.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from bigbatch.base.json_values import json_object

PRIVATE = 0o600
"""``mode`` of a file that only its owner may read, with any umask."""
_AS_USUAL = 0o666


@contextlib.contextmanager
def replacing(
    path: Path,
    *,
    mode: int = _AS_USUAL,
    durable: bool = False,
    one_writer: bool = False,
    previous: Path | None = None,
) -> Iterator[IO[bytes]]:
    """A file to write to. It replaces ``path`` when the block ends without an error.

    Args:
        mode: permissions, reduced by the umask.
        durable: the new file also survives a crash of the machine.
        one_writer: only one process at a time writes ``path``. The unfinished file is then called ``NAME.partial``, and
            the next writer overwrites the remains of a killed one. Otherwise its name contains host and process, so
            that several processes may write ``path``.
        previous: the file that was at ``path`` is kept under this name. Between two renames there is no ``path``.

    Raises OSError; ``path`` is then unchanged.
    """
    own = f".{path.name}.{os.uname().nodename}.{os.getpid()}"
    unfinished = path.with_name(f"{path.name}.partial" if one_writer else own)
    try:
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        with os.fdopen(descriptor, "wb") as file:
            yield file
            # fsync writes only what Python has passed to the system.
            file.flush()
            if durable:
                os.fsync(file.fileno())
        if previous is not None and path.exists():
            os.replace(path, previous)
        os.replace(unfinished, path)
    # Ctrl-C, too.
    except BaseException:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        raise
    if durable:
        _sync_folder(path.parent)


def write_bytes(path: Path, content: bytes, *, mode: int = _AS_USUAL, durable: bool = False) -> None:
    """Replace ``path`` by a file with ``content``. Arguments and errors: see ``replacing``."""
    with replacing(path, mode=mode, durable=durable) as file:
        file.write(content)


def write_text(path: Path, text: str, *, mode: int = _AS_USUAL, durable: bool = False) -> None:
    """``write_bytes`` of a text, in UTF-8."""
    write_bytes(path, text.encode(), mode=mode, durable=durable)


def write_json(
    path: Path, value: object, *, indent: int | None = None, mode: int = _AS_USUAL, durable: bool = False
) -> None:
    """``write_text`` of ``value`` as JSON, with a line end."""
    write_text(path, json.dumps(value, indent=indent) + "\n", mode=mode, durable=durable)


def read_json(path: Path) -> dict[str, object]:
    """The JSON object in ``path``; empty if the file is missing or holds no JSON object."""
    try:
        return json_object(path.read_text())
    except (OSError, ValueError):
        return {}


def finish_folder(unfinished: Path, folder: Path) -> None:
    """Give a finished folder its name, durably: a reader finds the complete folder, or none.

    Both are on one file system, and there is no ``folder`` yet. Raises OSError.
    """
    # First its content: a crash may keep the rename, and lose files that are not on the disk yet.
    for path in sorted(unfinished.rglob("*")):
        if path.is_dir():
            _sync_folder(path)
        elif path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
    _sync_folder(unfinished)
    os.rename(unfinished, folder)
    _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    """Make a rename durable; a few file systems have no fsync for folders."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        pass
    finally:
        os.close(descriptor)
