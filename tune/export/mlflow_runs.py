"""``bigbatch export --mlflow FILE``: an experiment for the study and a run for each trial.

FILE is an SQLite file, as MLflow itself makes by default: its older store, a folder of files, is closed since MLflow
3.13 (github.com/mlflow/mlflow/issues/18534). The address of a tracking server may stand in its place.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from bigbatch.train_loop.config import ConfigError
from bigbatch.tune.export.trial_rows import (
    Settings,
    check_origin,
    epoch_ends,
    exported_runs,
    name_of,
    seconds_of,
    worth_of,
)
from bigbatch.tune.runs.run import Run
from bigbatch.tune.storage.study_tables import StudyTables

if TYPE_CHECKING:
    from mlflow.entities import Run as TheirRun
    from mlflow.tracking import MlflowClient

TRIAL_TAG, DIGEST_TAG = "bigbatch.trial", "bigbatch.digest"
"""Tags of a run: the trial's number; and what was written of it, set last, so that a half-written run lacks it."""
SOURCE_TAG = "bigbatch.exported_from"
"""Tag of the experiment: the study's folder."""
AT_A_TIME, TEXT_LENGTH = 100, 6000
"""MLflow's limits: parameters of a request, and characters of one."""
METRICS_AT_A_TIME = 1000
STATUS_OF_RUN = {"COMPLETE": "FINISHED", "PRUNED": "KILLED", "FAIL": "FAILED"}
BRIEF = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "20"}
"""For the first request. Later ones keep MLflow's patience, as they lose what was sent before."""

T = TypeVar("T")


def write_mlflow_runs(tables: StudyTables, target: str, source: Path) -> int:
    """Write the study's trials as runs. Returns how many were written; those that are there already are left alone.

    Args:
        target: an SQLite file, or the URI of a tracking server (``http://HOST:PORT``).
        source: the study's folder.

    Raises ConfigError if MLflow is not installed, ``target`` cannot be used or has another study of that name.
    """
    if "://" not in target:
        _check_own(Path(target))
    # Before the import, which begins it.
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    try:
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient
        from sqlalchemy.exc import SQLAlchemyError
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"--mlflow needs the package mlflow-skinny; {error.name!r} is not installed. "
            "Run: pip install 'bigbatch[mlflow]'"
        ) from None
    # They would print a line for each table of a new database.
    logging.getLogger("alembic").setLevel(logging.WARNING)
    logging.getLogger("mlflow").setLevel(logging.WARNING)
    try:
        if "://" not in target:
            Path(target).parent.mkdir(parents=True, exist_ok=True)
        client = MlflowClient(tracking_uri=target if "://" in target else f"sqlite:///{Path(target).absolute()}")
        return _write_all(client, tables, target, source)
    except (MlflowException, SQLAlchemyError, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(
            f"--mlflow takes a file for MLflow's database or the address of its server; got {target!r} ({reason}). "
            "Write e.g. --mlflow mlflow.db"
        ) from None


def _check_own(path: Path) -> None:
    """Raise ConfigError if ``path`` is a database of something else: MLflow would add its tables to it, and fail.

    The same for a path that MLflow would take for another one.
    """
    if "?" in str(path.absolute()):
        raise ConfigError(
            f"--mlflow takes a file without '?' in its path, where options begin for MLflow; got {str(path)!r}. "
            "Write another file."
        )
    if not path.is_file() or not path.stat().st_size:
        return
    try:
        # ro: a look must not make a file or change one.
        with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
            tables = {str(name) for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    except sqlite3.Error as error:
        tables = {str(error)}
    if tables and ("experiments" not in tables or "studies" in tables):  # Optuna's have studies
        raise ConfigError(
            f"--mlflow takes a new file or MLflow's database; got {str(path)!r}, which is something else "
            f"({', '.join(sorted(tables)[:3])}). Write another file."
        )


@contextlib.contextmanager
def _brief_trials() -> Iterator[None]:
    """A request that fails is repeated twice, not seven times over four minutes, unless the user has set that."""
    ours = {name: value for name, value in BRIEF.items() if name not in os.environ}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name in ours:
            os.environ.pop(name, None)


def _write_all(client: MlflowClient, tables: StudyTables, target: str, source: Path) -> int:
    with _brief_trials():  # whether there is a server at all
        found = client.get_experiment_by_name(tables.name)
    # By default MLflow would make a folder for them in the current one.
    where = None if "://" in target else f"{Path(target).absolute()}.artifacts"
    experiment = (
        client.create_experiment(tables.name, artifact_location=where) if found is None else found.experiment_id
    )
    if found is not None:
        check_origin("mlflow", target, tables.name, str(found.tags.get(SOURCE_TAG, "")), source)
    client.set_experiment_tag(experiment, SOURCE_TAG, str(source.absolute()))
    earlier = _earlier_runs(client, experiment)
    written = 0
    for run, settings, facts in exported_runs(tables):
        points = [[epoch, sorted(numbers.items())] for epoch, _, numbers in epoch_ends(run)]
        worth = worth_of(run, tables.objectives)
        content = json.dumps([run.state.name, settings, facts, worth, points], sort_keys=True)
        digest = hashlib.sha256(content.encode()).hexdigest()
        copies = earlier.get(str(run.number), [])
        kept = [copy for copy in copies if copy.data.tags.get(DIGEST_TAG) == digest]
        for copy in copies:
            if copy not in kept[:1]:
                client.delete_run(copy.info.run_id)
        if not kept:
            made = _write_run(client, experiment, run, settings, facts, worth)
            client.set_tag(made, DIGEST_TAG, digest)
            written += 1
    return written


def _earlier_runs(client: MlflowClient, experiment: str) -> dict[str, list[TheirRun]]:
    """Trial → its runs, of earlier exports."""
    found: dict[str, list[TheirRun]] = {}
    token = None
    while True:
        page = client.search_runs([experiment], page_token=token)
        for run in page:
            if TRIAL_TAG in run.data.tags:
                found.setdefault(run.data.tags[TRIAL_TAG], []).append(run)
        token = page.token
        if not token:
            return found


def _write_run(
    client: MlflowClient, experiment: str, run: Run, settings: Settings, facts: Settings, worth: Mapping[str, float]
) -> str:
    """Returns the ID that MLflow gives it."""
    from mlflow.entities import Metric, Param

    started = int(1000 * seconds_of(run.datetime_start))
    tags = {TRIAL_TAG: str(run.number), "bigbatch.state": run.state.name, **_texts(facts)}
    made = client.create_run(experiment, start_time=started, tags=tags, run_name=name_of(run)).info.run_id
    for some in _portions([Param(name, text) for name, text in _texts(settings).items()], AT_A_TIME):
        client.log_batch(made, params=some)
    metrics = [
        Metric(name, value, int(1000 * time), epoch)
        for epoch, time, numbers in epoch_ends(run)
        for name, value in numbers.items()
    ]
    end = int(1000 * seconds_of(run.datetime_complete)) or started
    metrics += [Metric(f"objective.{name}", value, end, run.epochs) for name, value in worth.items()]
    for some_metrics in _portions(metrics, METRICS_AT_A_TIME):
        client.log_batch(made, metrics=some_metrics)
    if run.state.name in STATUS_OF_RUN:
        client.set_terminated(made, STATUS_OF_RUN[run.state.name], end_time=end)
    return made


def _texts(values: Mapping[str, object]) -> dict[str, str]:
    return {name: str(value)[:TEXT_LENGTH] for name, value in values.items()}


def _portions(items: Sequence[T], size: int) -> Iterator[list[T]]:
    rest = iter(items)
    while portion := list(islice(rest, size)):
        yield portion
