"""``bigbatch export STUDY``: copies a study for other tools. Takes no lease, also while the search runs."""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bigbatch.base.atomic_files import replacing
from bigbatch.base.command_line import OneLineParser
from bigbatch.train_loop.config import ConfigError
from bigbatch.tune.console.text import said_in_one_line
from bigbatch.tune.storage.study_tables import StudyTables, read_tables
from bigbatch.tune.storage.summary import find_study

if TYPE_CHECKING:
    import pyarrow as pa


def export_parser() -> argparse.ArgumentParser:
    """The options of ``bigbatch export``."""
    p = OneLineParser(
        prog="bigbatch export",
        description="Copy a study for other tools. Repeat the command to bring a copy up to date.",
    )
    add = p.add_argument
    add("study", metavar="STUDY|PATH", help="a study's name in --output, or its folder")
    add("--csv", metavar="DIR", help="write trials.csv and epochs.csv there")
    add("--tensorboard", metavar="DIR", help="write event files there, with a row for HParams for each trial")
    add("--output", metavar="DIR", default="runs", help="the folder of studies (default: runs)")
    return p


def main(argv: Sequence[str] | None = None) -> int:
    """Export. Returns the exit code: 0, or 2 for wrong input."""
    args = export_parser().parse_args(argv)
    return said_in_one_line("bigbatch export", lambda: _export(args))


def _export(args: argparse.Namespace) -> None:
    if args.csv is None and args.tensorboard is None:
        raise ConfigError("an export needs a format; got none. Write --csv DIR, --tensorboard DIR or both.")
    folder = find_study(args.study, Path(args.output))
    tables = read_tables(folder)
    try:
        if args.csv is not None:
            print(*(f"wrote {path}" for path in write_csv_files(tables, Path(args.csv))), sep="\n", flush=True)
        if args.tensorboard is not None:
            from bigbatch.tune.export.event_files import write_event_files

            count = write_event_files(tables, Path(args.tensorboard) / folder.resolve().name)
            shown = shlex.quote(args.tensorboard)
            print(f"wrote {count} trials to {args.tensorboard}; look at them: tensorboard --logdir {shown}", flush=True)
    except OSError as error:
        raise ConfigError(
            f"an export needs folders that can be written; got {error.filename!r} ({error.strerror}). Write another."
        ) from None


def write_csv_files(tables: StudyTables, folder: Path) -> list[Path]:
    """Write both tables to ``folder``, which is made if needed. Returns the files. Raises OSError.

    Times are in UTC. A list or a map is written as JSON, a missing value as an empty field.
    """
    import pyarrow.csv as pc

    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, table in (("trials", tables.trials), ("epochs", tables.epochs)):
        path = folder / f"{name}.csv"
        with replacing(path) as file:
            pc.write_csv(_without_lists(table), file)
        paths.append(path)
    return paths


def _without_lists(table: pa.Table) -> pa.Table:
    """Arrow's CSV writer knows neither lists nor maps."""
    import pyarrow as pa

    for index, field in enumerate(table.schema):
        if pa.types.is_list(field.type) or pa.types.is_map(field.type):
            plain = dict if pa.types.is_map(field.type) else list
            texts = [None if value is None else json.dumps(plain(value)) for value in table.column(index).to_pylist()]
            table = table.set_column(index, field.name, pa.array(texts, pa.string()))
    return table
