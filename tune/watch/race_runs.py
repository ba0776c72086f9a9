"""The runs that may take part in a race: a study's trials and the full runs of ``bigbatch train``, read from files."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bigbatch.cluster.host import json_values
from bigbatch.cluster.host.atomic_files import read_json
from bigbatch.train_loop.config import ConfigError
from bigbatch.tune.study import metrics
from bigbatch.tune.study.description import STUDY_FILE, read_description
from bigbatch.tune.study.objectives import objectives_of
from bigbatch.tune.study.study_tables import read_tables

RESULT_FILE, CONFIG_FILE, RECORDS_FILE = "result.json", "config.json", "records.jsonl"
"""What ``bigbatch train`` writes to its folder."""


@dataclass(frozen=True)
class RacedRun:
    """A trial or a full run."""

    name: str
    """``study/trial-0007``, or the run's folder."""
    state: str
    """In a word: ``done``, ``stopped``, ``failed``, ``running``."""
    optimizer: str
    batch: int | None
    planned: int | None
    """Epochs of the whole run."""
    workers: int | None
    """None for a full run that has not ended: its files do not say."""
    records: Sequence[Mapping[str, object]]
    """Of its epochs, the first one first."""

    @property
    def seconds(self) -> list[float]:
        """At the end of each epoch: of training, validation and checkpoints until then."""
        total, found = 0.0, []
        for record in self.records:
            total += metrics.of_record(metrics.EPOCH_S, record)
            found.append(total)
        return found


def find_runs(paths: Sequence[Path], leave_out: Callable[[str], None]) -> tuple[list[RacedRun], set[str]]:
    """The runs in these folders: studies, full runs, or folders of them.

    Args:
        leave_out: is told why a folder takes no part.

    Returns the runs, and the first objectives of the studies (``val_top1:max``).
    """
    runs: list[RacedRun] = []
    objectives: set[str] = set()
    folders = list(_folders(paths))
    names = _study_names(folders)
    for folder in folders:
        try:
            if (folder / STUDY_FILE).exists():
                runs += _trials(folder, names[folder])
                objectives.add(objectives_of(read_description(folder)).first.shown.text)
            elif (found := _full_run(folder)) is not None:
                runs.append(found)
            else:
                what = (
                    "is neither a study nor a full run with a finished epoch" if folder.exists() else "does not exist"
                )
                leave_out(f"{folder} {what}")
        except ConfigError as error:
            leave_out(f"{folder}: {error}")
        except Exception as error:  # files that someone has edited may hold anything
            leave_out(f"{folder} cannot be read ({type(error).__name__}: {' '.join(str(error).split())})")
    return runs, objectives


def _folders(paths: Sequence[Path]) -> Iterator[Path]:
    """Studies and full runs as they are; of another folder, those in it. Each once, by whatever paths it is named."""
    seen: set[Path] = set()
    for path in paths:
        inside = [] if _is_one(path) or not path.is_dir() else [one for one in sorted(path.iterdir()) if _is_one(one)]
        for one in inside or [path]:
            if one.resolve() not in seen:
                seen.add(one.resolve())
                yield one


def _study_names(folders: Sequence[Path]) -> dict[Path, str]:
    """What each study is called in the table: its name, or its folder where several have one name."""
    found: dict[Path, str] = {}
    for folder in folders:
        if (folder / STUDY_FILE).exists():
            found[folder] = json_values.text(read_json(folder / STUDY_FILE), "name") or folder.name
    several = [name for name, count in Counter(found.values()).items() if count > 1]
    return {folder: str(folder) if name in several else name for folder, name in found.items()}


def _is_one(path: Path) -> bool:
    return any((path / name).exists() for name in (STUDY_FILE, RESULT_FILE, RECORDS_FILE))


# Studies


def _trials(folder: Path, study: str) -> list[RacedRun]:
    """Trials with at least one epoch, without those that another trial repeats or continues: it has their epochs."""
    tables = read_tables(folder, None)
    workers = json_values.whole_number(read_description(folder), "workers", 1)
    rows, epochs = tables.trials.to_pylist(), tables.epochs_of_trials()
    replaced = {row.get(key) for row in rows for key in ("retries", "continues")} - {None}
    return [
        RacedRun(
            name=f"{study}/trial-{row['trial']:04d}",
            state=_state(row),
            optimizer=row.get("config.optimizer.name") or "–",
            batch=row.get("config.batch.global_size"),
            planned=row.get("epochs_planned"),
            workers=workers,
            records=epochs[row["trial"]],
        )
        for row in rows
        if row["trial"] in epochs and row["trial"] not in replaced
    ]


def _state(row: Mapping[str, Any]) -> str:
    words = {"COMPLETE": "done", "PRUNED": "stopped", "FAIL": "failed", "RUNNING": "running", "WAITING": "interrupted"}
    confirms = row.get("confirms")
    return words.get(row["state"], row["state"]) + (f", confirms {confirms}" if confirms is not None else "")


# Full runs


def _full_run(folder: Path) -> RacedRun | None:
    """A run of ``bigbatch train``; None without a finished epoch."""
    result = read_json(folder / RESULT_FILE)
    records = json_values.objects(result, "history") or _lines(folder / RECORDS_FILE)
    if not records:
        return None
    config = json_values.mapping(result, "config") or read_json(folder / CONFIG_FILE)
    return RacedRun(
        name=str(folder),
        state="done" if result else "not ended",
        optimizer=json_values.text(json_values.mapping(config, "optimizer"), "name", "–"),
        batch=json_values.whole_number_or_none(json_values.mapping(config, "batch"), "global_size"),
        planned=json_values.whole_number_or_none(config, "epochs"),
        workers=json_values.whole_number_or_none(result, "workers"),
        records=records,
    )


def _lines(path: Path) -> list[dict[str, object]]:
    """The epochs in the file of a run that goes on. Of an epoch that was trained twice, the later record."""
    found: dict[int, dict[str, object]] = {}
    for line in path.read_text().splitlines(keepends=True) if path.exists() else ():
        record = json.loads(line) if line.endswith("\n") else {}  # else it is being written
        if "epoch" in record:
            found[record["epoch"]] = record
    return [found[epoch] for epoch in sorted(found)]


def epoch_value(record: Mapping[str, object], name: str) -> float:
    """The metric of an epoch; not a number where it is missing."""
    return metrics.of_record(name, record) if record else math.nan
