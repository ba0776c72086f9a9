"""Read W&B's offline files: whose run a file is, how many lines of history it has, and whether the run has ended.

A ``.wandb`` file is a log in LevelDB's format (log_format.md there) after a header of 7 bytes: blocks of 32 KiB with
fragments of a checksum (4 bytes), a length (2), a kind (1: whole, 2: first, 3: middle, 4: last) and the content. What
does not fit into the last 6 bytes of a block is left empty. A record is W&B's protobuf message ``Record``. The file
of a run that trains, or was killed, ends anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HEADER, BLOCK, FRAGMENT = 7, 32768, 7
WHOLE, FIRST, LAST = 1, 2, 4


@dataclass(frozen=True)
class OfflineRun:
    """One file, of one attempt of a trial."""

    path: Path
    run_id: str
    """The same for all attempts of a trial: ``<study>-<number>``."""
    project: str
    entity: str
    """Empty: that of the key."""
    lines: int
    """Of the history: one for each epoch."""
    has_ended: bool
    size_bytes: int

    @property
    def key(self) -> str:
        """The name of its folder, which holds the time at which the attempt began."""
        return self.path.parent.name


def read_offline_run(path: Path) -> OfflineRun | None:
    """What is in the file so far. None while it does not say whose run it is. Raises OSError."""
    from wandb.proto import wandb_internal_pb2

    content = path.read_bytes()
    run, lines, has_ended = None, 0, False
    for data in _records(content):
        record = wandb_internal_pb2.Record.FromString(data)
        kind = record.WhichOneof("record_type")
        if kind == "run" and run is None:
            run = record.run
        lines += kind == "history"
        has_ended = has_ended or kind == "exit"
    if run is None:
        return None
    return OfflineRun(path, run.run_id, run.project, run.entity, lines, has_ended, len(content))


def _records(content: bytes) -> Iterator[bytes]:
    position, parts = HEADER, b""
    while position + FRAGMENT <= len(content):
        if BLOCK - position % BLOCK < FRAGMENT:
            position += BLOCK - position % BLOCK
            continue
        length, kind = int.from_bytes(content[position + 4 : position + 6], "little"), content[position + 6]
        end = position + FRAGMENT + length
        if kind == 0 or end > len(content):  # it is being written
            return
        parts = (b"" if kind in (WHOLE, FIRST) else parts) + content[position + FRAGMENT : end]
        position = end
        if kind in (WHOLE, LAST):
            yield parts


class OfflineRuns:
    """The offline runs of a study's folder ``wandb``. A file is read again only when it has changed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen: dict[Path, tuple[int, OfflineRun | None]] = {}

    def latest(self) -> list[OfflineRun]:
        """For each run the file of its latest attempt, which has all its epochs. In the order of their names.

        If that was killed before it had written as many lines as an earlier one, the earlier one stands for the run.
        """
        found: dict[str, OfflineRun] = {}
        for path in sorted(self._folder.glob("offline-run-*/run-*.wandb")):
            run = self._read(path)
            if run is not None and (run.run_id not in found or run.lines >= found[run.run_id].lines):
                found[run.run_id] = run
        return sorted(found.values(), key=lambda run: run.run_id)

    def others_of(self, run: OfflineRun) -> list[Path]:
        """The files of the run's other attempts, as far as ``latest`` has seen them."""
        return [path for path, (_, one) in self._seen.items() if one and one.run_id == run.run_id and path != run.path]

    def _read(self, path: Path) -> OfflineRun | None:
        try:
            size = path.stat().st_size
            if path not in self._seen or self._seen[path][0] != size:
                run = read_offline_run(path)
                self._seen[path] = (run.size_bytes if run else size, run)
        except OSError:  # it was removed, or its disk is away; it is looked at again
            return None
        return self._seen[path][1]
