"""``bigbatch export STUDY``: copies a study for other tools. Takes no lease, also while the search runs."""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bigbatch.base.atomic_files import replacing
from bigbatch.base.command_line import OneLineParser
from bigbatch.train_loop.config import ConfigError
from bigbatch.tune.console.wrapped import said_in_one_line
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
    add("--sqlite", metavar="FILE", help="copy the study into an SQLite file, for optuna-dashboard")
    add("--tensorboard", metavar="DIR", help="write event files there, with a row for HParams for each trial")
    add("--output", metavar="DIR", default="runs", help="the folder of studies (default: runs)")
    add("--storage", metavar="URL", help="the study's database, if it is in one")
    return p


def main(argv: Sequence[str] | None = None) -> int:
    """Export. Returns the exit code: 0, or 2 for wrong input."""
    args = export_parser().parse_args(argv)
    return said_in_one_line("bigbatch export", lambda: _export(args))


def _export(args: argparse.Namespace) -> None:
    asked = [(name, target) for name in FORMATS if (target := getattr(args, name))]
    if not asked:
        options = ", ".join(f"--{name}" for name in FORMATS)
        raise ConfigError(f"an export needs a format; got none. Write one or more of {options}.")
    folder = find_study(args.study, Path(args.output))
    tables = read_tables(folder, args.storage)
    for name, target in asked:
        try:
            print(FORMATS[name](target, args.storage, folder, tables), flush=True)
        except OSError as error:
            reason = error.strerror or str(error)
            raise ConfigError(
                f"--{name} must be a place that can be written; got {target!r} ({reason}). Write another."
            ) from None


def _csv(target: str, _storage: str | None, _folder: Path, tables: StudyTables) -> str:
    return "\n".join(f"wrote {path}" for path in write_csv_files(tables, Path(target)))


def _sqlite(target: str, storage: str | None, folder: Path, _tables: StudyTables) -> str:
    from bigbatch.tune.export.optuna_database import write_optuna_database

    write_optuna_database(folder, Path(target), storage)
    return f"wrote {target}; look at it: {shlex.join(['optuna-dashboard', f'sqlite:///{target}'])}"


def _tensorboard(target: str, _storage: str | None, folder: Path, tables: StudyTables) -> str:
    from bigbatch.tune.export.event_files import write_event_files

    count = write_event_files(tables, Path(target), folder)
    return f"wrote {count} trials to {target}; look at them: tensorboard --logdir {shlex.quote(target)}"


FORMATS: dict[str, Callable[[str, str | None, Path, StudyTables], str]] = {
    "csv": _csv,
    "sqlite": _sqlite,
    "tensorboard": _tensorboard,
}
"""Name of an option → writes that format. Returns what was written, and how to look at it."""


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
