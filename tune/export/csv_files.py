"""``bigbatch export --csv DIR``: trials.csv and epochs.csv, with the columns of the Parquet tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from bigbatch.cluster.host.atomic_files import replacing
from bigbatch.tune.study.study_tables import StudyTables

if TYPE_CHECKING:
    import pyarrow as pa


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
