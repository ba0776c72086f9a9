"""One shard of a packed data set, written by one process: images read, converted, stored, renamed into place."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from bigbatch.base.atomic_files import replacing
from bigbatch.train_loop.data.packed import schema
from bigbatch.train_loop.data.packing.convert import PackProfile, RejectedImage, StoredImage, convert
from bigbatch.train_loop.data.packing.sources import PackItem, read_entry

BATCH_BYTES = 32 << 20
"""Images in a record batch. A process holds two batches in memory."""

Row = tuple[object, ...]


@dataclass(frozen=True)
class ShardTask:
    """The work of one process: one shard."""

    folder: Path
    file: str
    part: str
    items: Sequence[PackItem]
    profile: PackProfile

    @property
    def note(self) -> Path:
        """This file is written after the shard. If it exists, the shard is complete."""
        return self.folder / f"{self.file}.json"


def write_shard(task: ShardTask, count_image: Callable[[], None]) -> None:
    """Write the shard, then its note. Raises OSError if the disk is full or the source is gone."""
    rejected: list[tuple[str, str, str]] = []
    sums, images, largest = np.zeros((3, 2)), 0, 0
    target = task.folder / task.file
    metadata = {schema.METADATA_KEY: json.dumps({"part": task.part}).encode()}
    shard_schema = schema.SHARD_SCHEMA.with_metadata(metadata)
    with replacing(target, durable=True, one_writer=True) as file, pa.ipc.new_file(file, shard_schema) as writer:
        rows: list[Row] = []
        waiting = 0
        for item in task.items:
            try:
                stored = convert(read_entry(item.entry), task.profile)
            except RejectedImage as reason:
                rejected.append((task.part, item.entry.name, str(reason)))
                count_image()
                continue
            rows.append(_row(item, stored))
            sums += stored.pixel_sums
            images, largest = images + 1, max(largest, stored.width, stored.height)
            waiting += len(stored.data)
            if waiting >= BATCH_BYTES:
                writer.write_batch(_batch(rows, shard_schema))
                rows, waiting = [], 0
            count_image()
        if rows:
            writer.write_batch(_batch(rows, shard_schema))
    facts = {
        "shard": vars(
            schema.ShardInfo(task.file, task.part, images, target.stat().st_size, schema.file_sha256(target))
        ),
        "rejected": rejected,
        "pixel_sums": sums.tolist(),
        "largest_side": largest,
    }
    with replacing(task.note, one_writer=True) as file:
        file.write(json.dumps(facts).encode())


def _row(item: PackItem, stored: StoredImage) -> Row:
    # File names need not be UTF-8, but Arrow's strings are.
    key = item.entry.name.encode(errors="surrogateescape").decode(errors="replace")
    return (stored.data, key, item.label, stored.height, stored.width, zlib.crc32(stored.data))


def _batch(rows: list[Row], arrow_schema: pa.Schema) -> pa.RecordBatch:
    columns = [
        pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), arrow_schema, strict=True)
    ]
    return pa.record_batch(columns, schema=arrow_schema)
