"""``bigbatch pack SRC DST``: images of any source as a few Arrow files that are read at the speed of the GPU.

Everything is written into ``DST.packing`` and renamed to DST at the end: a pack that was killed never looks
finished. A shard is the unit of work and of resuming: repeating the command continues after the last finished shard.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import errno
import fcntl
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bigbatch.base.atomic_files import replacing
from bigbatch.base.command_line import INTERRUPTED, WRONG_INPUT, OneLineParser, parse_fraction
from bigbatch.train_loop.config import ConfigError
from bigbatch.train_loop.data.catalogue import is_packed
from bigbatch.train_loop.data.packed import schema
from bigbatch.train_loop.data.packing.shards import (
    PackFailed,
    PackProfile,
    RejectedImage,
    ShardTask,
    convert,
    write_shards,
)
from bigbatch.train_loop.data.packing.sources import PackItem, PackSource, find_source, read_entry
from bigbatch.train_loop.data.pixels.jpeg import jpegtran_path
from bigbatch.train_loop.data.sets.layout import printable
from bigbatch.train_loop.host import disk_space
from bigbatch.train_loop.host.command_line import ProgressLine, check_writable

MIN_SHARD_BYTES, SHARDS_AT_LEAST = 16 << 20, 16
"""Small sources get at least this many shards, finer than --shard-mb, so that all processes have work."""

RESERVE = 1.1
"""The free space must be this many times the estimated size."""

SAMPLE_RUNS, SAMPLE_RUN = 4, 8
"""The estimate uses this many neighbouring images at this many places: a Parquet row group is read at once."""

ROW_BYTES = 90
"""Bytes of an image in shard and index, beside its own bytes and twice its key."""


def pack_parser() -> argparse.ArgumentParser:
    """The options of ``bigbatch pack``."""
    p = OneLineParser(
        prog="bigbatch pack",
        usage="bigbatch pack SRC DST [options]\n       bigbatch pack --verify DST\n       bigbatch pack --info DST",
        description="Pack images into a few Arrow files. SRC: an image folder, tars or Parquet files.",
    )
    add = p.add_argument
    add("paths", nargs="+", metavar="SRC DST")
    add("--profile", choices=("full", "fast"), help="full (default): keep the size; fast: make images smaller")
    add("--short-side", type=int, metavar="PIXELS", help="short side of an image in the fast profile (256)")
    add("--quality", type=int, metavar="Q", help="JPEG quality; the full profile keeps JPEGs as they are (90)")
    add("--workers", type=int, metavar="N", help="number of processes (default: one for each available core)")
    add("--shard-mb", type=int, default=512, metavar="MB", help="a shard holds at most MB of the source (512)")
    add(
        "--val-part",
        type=parse_fraction,
        metavar="PART",
        help="validate on this part, e.g. 10%%, if the source has no validation images",
    )
    add("--verify", action="store_true", help="check every shard of DST again")
    add("--info", action="store_true", help="show what DST holds")
    return p


def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes: 0 done, 1 the pack or the check failed, 2 wrong input, 130 Ctrl-C."""
    args = pack_parser().parse_args(argv)
    try:
        if args.verify or args.info:
            return _check(args)
        if len(args.paths) != 2:
            raise ConfigError(f"pack takes a source and a destination; got {' '.join(args.paths)!r}. Write SRC DST.")
        return _pack(args)
    except ConfigError as error:
        print(f"bigbatch pack: error: {error}", file=sys.stderr)
        return WRONG_INPUT
    except PackFailed as error:
        print(f"bigbatch pack: failed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("bigbatch pack: interrupted; the same command goes on from the finished shards", file=sys.stderr)
        return INTERRUPTED


def _check(args: argparse.Namespace) -> int:
    """``--info`` and ``--verify``, which compares every shard's SHA-256."""
    if len(args.paths) != 1 or not is_packed(args.paths[0]):
        raise ConfigError(f"--verify and --info take one packed folder; got {' '.join(args.paths)!r}. Check the path.")
    folder = os.path.abspath(args.paths[0])
    schema.check_index(folder)
    files = schema.PackedFiles(folder)
    info, columns = files.info, files.columns
    if args.info:
        some = ", ".join(map(printable, info.class_names[:5])) + (", …" if len(info.class_names) > 5 else "")
        medians = " × ".join(f"{np.median(columns[side]):.0f}" for side in ("width", "height"))
        print(f"source         {info.source} ({info.kind}), fingerprint {info.fingerprint[:12]}")
        full = "full, jpegtran {jpegtran}, quality {quality} for what is no plain JPEG"
        used = full if info.profile["name"] == "full" else "{name}, short side {short_side}, quality {quality}"
        print(f"profile        {used.format(**info.profile)}")
        print(f"images         {info.train_size} training, {info.val_size} validation, {info.rejected} rejected")
        print(f"classes        {len(info.class_names)}: {some}")
        print(f"pixels         {medians} (medians), {columns['bytes'].mean() / 1000:.1f} kB an image")
        print(f"shards         {len(info.shards)} files, {sum(shard.bytes for shard in info.shards) / 1e6:.1f} MB")
    if args.verify:
        wrong = [s.file for s in info.shards if schema.file_sha256(os.path.join(folder, s.file)) != s.sha256]
        if wrong:
            raise PackFailed(
                f"the bytes of {', '.join(wrong)} in {folder} have changed (SHA-256). Copy or pack it again"
            )
        print(f"{info.train_size + info.val_size} images in {len(info.shards)} shards are as they were packed")
    return 0


def _pack(args: argparse.Namespace) -> int:
    workers = args.workers if args.workers is not None else len(os.sched_getaffinity(0))
    for option, value, low, high in (
        ("--workers", workers, 1, 1024),
        ("--short-side", args.short_side, 16, 4096),
        ("--quality", args.quality, 1, 100),
        ("--shard-mb", args.shard_mb, 1, 1 << 16),
    ):
        if value is not None and not low <= value <= high:
            raise ConfigError(f"{option} must be {low} to {high}; got {value}. Write a number in between.")
    if args.val_part is not None and not 0 < args.val_part < 1:
        raise ConfigError(f"--val-part must be above 0 and below 1; got {args.val_part:g}. Write e.g. --val-part 0.1.")
    if args.short_side is not None and args.profile != "fast":
        raise ConfigError(
            f"--short-side is an option of the fast profile; got --short-side {args.short_side} without it. "
            "Write --profile fast, or leave --short-side out."
        )
    destination = Path(os.path.abspath(os.path.expanduser(args.paths[1])))
    if os.path.lexists(destination):  # False also for one in a folder that may not be entered
        raise ConfigError(f"the destination must not exist; got {str(destination)!r}. Write another or remove it.")
    check_writable("DST", destination.parent)
    if is_packed(os.path.expanduser(args.paths[0])):
        raise ConfigError(
            f"the source must be images; got {args.paths[0]!r}, which is packed already. Use it as it is (--data), or "
            "pack the images that it was made of."
        )
    source = find_source(args.paths[0], args.val_part or 0.0)
    if Path(source.path) in destination.parents:  # a training would take it for a class
        raise ConfigError(
            f"the destination must lie beside the source; got {str(destination)!r} in {source.path!r}. Write another."
        )
    given = {"name": args.profile, "short_side": args.short_side, "quality": args.quality}
    profile = PackProfile(**{name: value for name, value in given.items() if value is not None})
    if profile.name == "full":  # fast encodes each image anew in any case
        profile = dataclasses.replace(profile, jpegtran=jpegtran_path())
    if profile.name == "full" and not profile.jpegtran:
        print("no jpegtran found: JPEGs are encoded again with their own tables and sampling, not losslessly")
    for line in disk_space.quota_lines():
        print(line)
    return pack(source, destination, profile, workers, args.shard_mb << 20)


def pack(source: PackSource, destination: Path, profile: PackProfile, workers: int, shard_bytes: int) -> int:
    """Pack ``source``; returns the exit code. Raises ConfigError before anything is written, else PackFailed."""
    for text in source.notes:
        print(f"note: {text}")
    folder = destination.with_name(f"{destination.name}.packing")
    tasks = _tasks(source, folder, profile, shard_bytes)
    check_pack_fits(folder.parent, [task for task in tasks if not task.note.exists()])
    folder.mkdir(parents=True, exist_ok=True)
    with _only_one(folder):
        _same_plan(folder, source, profile, shard_bytes)
        try:
            _write_shards(tasks, workers)
            rejected = _finish(folder, source, profile, tasks)
            folder.replace(destination)
        except OSError as error:
            reason = "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else str(error)
            raise PackFailed(f"{reason}; the same command goes on from the finished shards in {folder}") from None
        # Only now: an interrupted pack needs these files to continue.
        for name in ("plan.json", "lock", *(task.note.name for task in tasks)):
            (destination / name).unlink()
    stored = len(source.train) + len(source.val) - rejected
    print(f"packed {stored} images of {len(source.class_names)} classes into {destination}")
    if rejected:
        print(f"rejected {rejected} image{'s' * (rejected > 1)}: see {destination / schema.REJECTED}")
    return 0


def check_pack_fits(parent: Path, tasks: Sequence[ShardTask]) -> None:
    """Raise ConfigError if there is no room for the shards that are not written yet."""
    left = disk_space.space_left(parent)
    need = int(RESERVE * estimated_bytes(tasks))
    if left.bytes is not None and need > left.bytes:
        raise ConfigError(
            f"packing needs about {disk_space.format_bytes(need)}; got {disk_space.format_bytes(left.bytes)} left in "
            f"{parent} by {left.bytes_by}. Free some, write elsewhere, or use --profile fast."
        )


def estimated_bytes(tasks: Sequence[ShardTask]) -> int:
    """Estimated bytes of shards and index, from converting some images: the ratio depends on the source's format."""
    items = [(item, task.profile) for task in tasks for item in task.items]
    source = stored = 0
    for run in np.linspace(0, max(len(items) - SAMPLE_RUN, 0), SAMPLE_RUNS).astype(int):
        for item, profile in items[run : run + SAMPLE_RUN]:
            with contextlib.suppress(RejectedImage, OSError):  # the process that writes its shard reports it
                data = read_entry(item.entry)
                source += len(data)
                stored += len(convert(data, profile).data)
    images = sum(item.entry.size for item, _ in items) * stored / max(source, 1)
    return int(images + sum(ROW_BYTES + 2 * len(item.entry.name) for item, _ in items))


def _tasks(source: PackSource, folder: Path, profile: PackProfile, shard_bytes: int) -> list[ShardTask]:
    total = sum(item.entry.size for items in (source.train, source.val) for item in items)
    limit = min(shard_bytes, max(MIN_SHARD_BYTES, total // SHARDS_AT_LEAST))
    tasks = []
    for name, items in (("train", source.train), ("val", source.val)):
        for number, chunk in enumerate(_chunks(items, limit)):
            tasks.append(ShardTask(folder, f"{name}-{number:05d}.arrow", name, chunk, profile))
    return tasks


def _chunks(items: Sequence[PackItem], limit_bytes: int) -> Iterator[Sequence[PackItem]]:
    start, held = 0, 0
    for at, item in enumerate(items):
        held += item.entry.size
        if held >= limit_bytes or at + 1 == len(items):
            yield items[start : at + 1]
            start, held = at + 1, 0


@contextlib.contextmanager
def _only_one(folder: Path) -> Iterator[None]:
    with open(folder / "lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"one pack at a time; got another at work in {folder}. Wait for it.") from None
        except OSError:  # a file system without locks
            pass
        yield


def _same_plan(folder: Path, source: PackSource, profile: PackProfile, shard_bytes: int) -> None:
    plan = {
        "fingerprint": source.fingerprint(),
        "profile": dataclasses.asdict(profile),
        "shard_bytes": shard_bytes,
    }
    path = folder / "plan.json"
    if not path.exists():
        with replacing(path, one_writer=True) as file:
            file.write(json.dumps(plan).encode())
    elif json.loads(path.read_text()) != plan:
        raise ConfigError(
            f"a pack goes on with the source and options that it began with; got others in {folder}. "
            "Use those, or remove the folder."
        )


# --- the work ---


def _write_shards(tasks: Sequence[ShardTask], workers: int) -> None:
    open_tasks = [task for task in tasks if not task.note.exists()]
    images = sum(len(task.items) for task in tasks)
    done = images - sum(len(task.items) for task in open_tasks)
    if done:
        print(f"resuming: {done} of {images} images are packed")
    began, line = time.monotonic(), ""
    progress = ProgressLine()
    with contextlib.closing(write_shards(open_tasks, workers)) as counts:
        for images_done in counts:
            line = f"{done + images_done}/{images} images"
            if images_done:
                rate = images_done / max(time.monotonic() - began, 1e-9)
                left = datetime.timedelta(seconds=round((images - done - images_done) / rate))
                line += f"  {rate:.0f} images/s  {left} left"
            progress.show(line)
    if line:
        print(line, file=sys.stderr)


def _finish(folder: Path, source: PackSource, profile: PackProfile, tasks: Sequence[ShardTask]) -> int:
    """Write the rejected images and, last, the index; returns how many images were rejected."""
    notes = [json.loads(task.note.read_text()) for task in tasks]
    # A file's name as Arrow can store it: bytes that are not UTF-8 become ?.
    rejected = [
        [text.encode("utf-8", "replace").decode() for text in row] for note in notes for row in note["rejected"]
    ]
    columns = {name: [row[place] for row in rejected] for place, name in enumerate(("part", "key", "reason"))}
    pq.write_table(
        pa.table({name: pa.array(column, pa.string()) for name, column in columns.items()}), folder / schema.REJECTED
    )
    shards = tuple(schema.ShardInfo(**note["shard"]) for note in notes)
    sizes = {name: sum(s.images for s in shards if s.part == name) for name in schema.PARTS}
    for name, size in sizes.items():
        if size == 0:
            raise PackFailed(f"no image of the {name} part could be stored; see {folder / schema.REJECTED}")
    sums = np.sum([note["pixel_sums"] for note in notes if note["shard"]["part"] == "train"], axis=0) / sizes["train"]
    # Rounding can make the variance of one colour negative.
    mean, std = sums[:, 0], np.sqrt(np.maximum(sums[:, 1] - sums[:, 0] ** 2, 0))
    info = schema.PackedInfo(
        format=schema.FORMAT,
        source=os.path.basename(source.path),
        kind=source.kind,
        fingerprint=source.fingerprint(),
        profile={**dataclasses.asdict(profile), "jpegtran": profile.jpegtran is not None},
        class_names=source.class_names,
        train_size=sizes["train"],
        val_size=sizes["val"],
        rejected=len(rejected),
        mean=tuple(mean.round(6).tolist()),
        std=tuple(std.round(6).tolist()),
        largest_side=max(note["largest_side"] for note in notes),
        shards=shards,
    )
    _write_index(folder, info)
    return len(rejected)


def _write_index(folder: Path, info: schema.PackedInfo) -> None:
    table = pa.concat_tables([_shard_index(folder / shard.file, number) for number, shard in enumerate(info.shards)])
    # Readers of the index read only its first batch.
    (columns,) = table.combine_chunks().to_batches()
    columns = columns.replace_schema_metadata(schema.index_metadata(info, columns))
    index = folder / schema.INDEX
    with replacing(index, durable=True, one_writer=True) as file, pa.ipc.new_file(file, columns.schema) as writer:
        writer.write_batch(columns)


def _shard_index(path: Path, number: int) -> pa.Table:
    """The shard's columns but the images, and where in the file each image lies."""
    with pa.memory_map(str(path)) as file:
        whole = file.read_buffer()
        reader = pa.ipc.open_file(pa.BufferReader(whole))
        found = []
        for batch in (reader.get_batch(i) for i in range(reader.num_record_batches)):
            _, offsets, data = batch.column("image").buffers()
            starts = np.frombuffer(offsets, np.int64)[: len(batch) + 1]
            columns = {
                "shard": pa.array(np.full(len(batch), number, np.int32)),
                "offset": pa.array(starts[:-1] + (data.address - whole.address)),
                "bytes": pa.array(np.diff(starts).astype(np.int32)),
            }
            columns |= {field.name: batch.column(field.name) for field in schema.IMAGE_FIELDS}
            found.append(pa.RecordBatch.from_pydict(columns, schema=schema.INDEX_SCHEMA))
        # Copied out of the mapped file, which is closed now.
        table = pa.Table.from_batches(found, schema.INDEX_SCHEMA)
        return table.take(pa.array(np.arange(len(table))))


if __name__ == "__main__":
    sys.exit(main())
