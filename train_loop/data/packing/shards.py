"""Shards of a packed data set, each written by one process: images read, converted, stored, renamed into place.

The processes share only counts of images, each with one writer, so a process that is killed at any moment leaves no
lock behind. A process whose parent has ended ends, too. An image that cannot be stored is refused with the reason.
"""

from __future__ import annotations

import contextlib
import errno
import json
import multiprocessing
import os
import signal
import sys
import zlib
from collections import deque
from collections.abc import Callable, Generator, MutableSequence, Sequence
from dataclasses import dataclass
from io import BytesIO
from multiprocessing import connection, resource_tracker
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from PIL import Image, UnidentifiedImageError

from bigbatch.base.atomic_files import replacing
from bigbatch.train_loop.data.packed import schema
from bigbatch.train_loop.data.packing.sources import PackItem, read_entry
from bigbatch.train_loop.data.pixels import jpeg
from bigbatch.train_loop.data.pixels.crops import opened, to_8_bits, turn_of, turned


class RejectedImage(ValueError):
    """An image that cannot be converted. The message is the reason."""


@dataclass(frozen=True)
class PackProfile:
    """How images are stored."""

    name: str = "full"
    """``full``: original resolution; ``fast``: resized to ``short_side``."""
    short_side: int = 256
    """fast: pixels of the shorter side; smaller images keep their size."""
    quality: int = 90
    """JPEG quality of images that must be encoded anew: all in ``fast``; in ``full`` those that are no plain JPEG."""
    jpegtran: str | None = None
    """Program for ``full`` without loss; None: JPEGs are encoded again with their own tables."""


@dataclass(frozen=True)
class StoredImage:
    """A record: an image file's bytes, and the facts about it."""

    data: bytes
    width: int
    height: int
    pixel_sums: npt.NDArray[np.float64]
    """``[3, 2]``: of red, green and blue, mean and mean square over the image, of values 0 to 1."""


def convert(data: bytes, profile: PackProfile) -> StoredImage:
    """Raises RejectedImage with the reason in a few words."""
    if not data:
        raise RejectedImage("zero bytes")
    try:
        image = opened(BytesIO(data))
        image.load()
        stored = _store(data, image, profile)
        pixels = _statistics(to_8_bits(image).convert("RGB"))
    except UnidentifiedImageError:
        raise RejectedImage("no image that Pillow knows") from None
    except Exception as error:  # Pillow raises OSError, SyntaxError, ValueError, struct.error and others
        raise RejectedImage(" ".join(str(error).split()) or type(error).__name__) from None
    # Opened once more: the stored image may be turned or smaller than the source's, and the index needs its size.
    with Image.open(BytesIO(stored)) as final:
        width, height = final.size
    with contextlib.suppress(jpeg.JpegError):  # an image without restart markers is decoded whole
        stored = jpeg.stamp(stored)
    return StoredImage(stored, width, height, pixels)


def _store(data: bytes, image: Image.Image, profile: PackProfile) -> bytes:
    turn = turn_of(image)
    plain = image.mode in ("RGB", "L") and turn is None
    small = image.width * image.height < jpeg.MIN_PIXELS
    if plain and small and image.format in ("JPEG", "PNG"):
        return data
    if profile.name == "full" and plain and image.format == "JPEG":
        if profile.jpegtran:
            try:
                return jpeg.with_restarts(data, profile.jpegtran)
            except jpeg.JpegError:
                pass  # damaged in a way that Pillow reads over
        return jpeg.encode(image, quality=None)
    upright = turned(_as_rgb(image), turn)
    if profile.name == "fast":
        upright = _shrink(upright, profile.short_side)
    elif small:
        return _png(upright)
    return jpeg.encode(upright, profile.quality)


def _as_rgb(image: Image.Image) -> Image.Image:
    """Grey stays grey; 16 bits become 8; transparency is dropped, as in an image folder."""
    image = to_8_bits(image)
    return image if image.mode in ("RGB", "L") else image.convert("RGB")


def _shrink(image: Image.Image, short_side: int) -> Image.Image:
    scale = short_side / min(image.size)
    if scale >= 1:
        return image
    return image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.LANCZOS)


def _png(image: Image.Image) -> bytes:
    buffer = BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def _statistics(image: Image.Image) -> npt.NDArray[np.float64]:
    """From all pixels of a small image, or every 16th of a larger one: that suffices for a data set's mean."""
    step = 4 if min(image.size) > 64 else 1
    pixels = np.asarray(image)[::step, ::step].reshape(-1, 3) / 255
    return np.stack([pixels.mean(0), np.square(pixels).mean(0)], axis=1)


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


WAKE_S = 0.5
"""Seconds without news, at most."""


class PackFailed(RuntimeError):
    """The pack ended early. Finished shards are kept."""


def write_shards(tasks: Sequence[ShardTask], workers: int) -> Generator[int, None, None]:
    """Write all shards. Yields the number of images seen so far, several times a second.

    Close it: that kills processes that still write, because a shard takes minutes and an unfinished one is useless.

    Raises OSError if the disk is full, PackFailed if a process was killed or failed in another way.
    """
    context = multiprocessing.get_context("spawn")  # fork would copy Arrow's threads in an unknown state
    counts = context.RawArray("q", max(len(tasks), 1))  # without a lock: each number has one writer
    waiting, running = deque(enumerate(tasks)), dict[int, SpawnProcess]()
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                number, task = waiting.popleft()
                # daemon: it must not outlive this process, whose end would otherwise wait for it.
                process = context.Process(target=_work, args=(task, counts, number, os.getpid()), daemon=True)
                _start(process)
                running[process.sentinel] = process
            for sentinel in connection.wait(list(running), WAKE_S):
                process = running.pop(cast("int", sentinel))
                process.join()
                _check_end(process.exitcode or 0)
            yield sum(counts)
    finally:
        # First kill all: while one is joined, the others would go on writing.
        for process in running.values():
            process.kill()
        for process in running.values():
            process.join()


def _check_end(code: int) -> None:
    if code in (errno.ENOSPC, errno.EDQUOT):
        raise OSError(code, os.strerror(code))
    if code:
        how = "was killed (memory?)" if code < 0 else "failed"
        raise PackFailed(f"a process {how}; the same command goes on from the finished shards")


def _start(process: SpawnProcess) -> None:
    """Start it with SIGINT blocked for good: a terminal's Ctrl-C reaches all processes, and this one answers it."""
    resource_tracker.ensure_running()  # which would unblock it
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# --- in a process of its own ---


def _work(task: ShardTask, counts: MutableSequence[int], number: int, parent: int) -> None:
    def count_image() -> None:
        counts[number] += 1
        if os.getppid() != parent:  # it was killed
            os._exit(1)

    try:
        write_shard(task, count_image)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            sys.exit(error.errno)
        raise
