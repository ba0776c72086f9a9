"""The study's folder. The journal is the truth; every other file can be made again from it.

study.json       the plan, and for each session: commit, versions, host, Slurm job
optuna.journal   Optuna's JournalStorage: parameters, states, intermediate values, epoch records
trials.parquet   one row for each trial (tune/runs/tables.py)
epochs.parquet   one row for each epoch of each trial
best.json        the best trial's TrainConfig; with a frontier, the answer's (tune/runs/frontier.py)
frontier.json    for each value of the frontier its best trial; their TrainConfigs are in frontier/
pareto.json      with several objectives: the trials that no other one beats (tune/runs/objectives.py)
checkpoints/     one folder for each trial that may still need it, and the best one's
ledger/          a file for each session: devices × time, held and spent on trials (tune/budget/ledger.py)
progress.json    with a database: how far the study is, for jobs (cluster/record/study_progress.py)
logs/            driver.log, ray.log, trial-NNNN.log
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import optuna

from bigbatch.base import json_values
from bigbatch.base.atomic_files import write_json
from bigbatch.train_loop.config import ConfigError
from bigbatch.train_loop.config.given import unusable_config
from bigbatch.train_loop.host.folder_hold import FolderHold, Pulse, hold_folder
from bigbatch.tune.budget.ledger import Ledger, open_bill
from bigbatch.tune.runs import feasible, tables
from bigbatch.tune.runs.answer import answer_of, leading_trial
from bigbatch.tune.runs.frontier import FrontierFacts, frontier_facts
from bigbatch.tune.runs.objectives import PARETO_FILE, Objectives, objectives_of, write_front
from bigbatch.tune.runs.retry import hours_of_run
from bigbatch.tune.runs.run import count_ended, devices_of, epoch_records
from bigbatch.tune.runs.verdict import Verdict, decided, verdict_on
from bigbatch.tune.storage.description import (
    SCHEMA_VERSION,
    STUDY_FILE,
    Description,
    no_trials,
    read_description,
    redact,
)
from bigbatch.tune.storage.frontier_file import FRONTIER_FILE, write_frontier
from bigbatch.tune.storage.journal_file import Disk, open_journal, repair_journal
from bigbatch.tune.storage.kept_checkpoints import drop_ended, drop_paused
from bigbatch.tune.storage.storage_url import DatabaseLost, check_database_file

if TYPE_CHECKING:  # it imports SQLAlchemy, which the journal does not need
    from bigbatch.tune.storage.drivers import Drivers

PATIENT_S = 60.0
"""How long a driver waits for its first turn."""
Agree = Callable[[optuna.Study], None]
JOURNAL_FILE, PROGRESS_FILE = "optuna.journal", "progress.json"
REFRESH_SHARE = 0.05
"""While trials run, the driver spends at most this share of its time on rewriting the tables."""


class StudyStore:
    """A study's folder. One driver at a time holds it.

    Use ``create`` for a new study and ``open`` for an existing one. Both take the folder's lease, which ``close`` gives
    back and which ends with the process.
    """

    def __init__(self, folder: Path, storage_url: str | None = None) -> None:
        self.folder = folder
        self._storage_url = storage_url
        self.objectives = Objectives()
        """What the study optimises; study.json says it."""
        self._hold: FolderHold | None = None
        self._pulse: Pulse | None = None
        self.ledger: Ledger
        """The device hours that the study has used. Exists from the moment the folder is held."""
        self._next_refresh = 0.0
        self.disk = Disk(folder)
        self.study: optuna.Study

    drivers: Drivers | None = None
    """The drivers of a study in a database; None without one."""

    # Paths

    @property
    def log_folder(self) -> Path:
        """The folder of driver.log, ray.log and the trials' logs."""
        return self.folder / "logs"

    @property
    def best_file(self) -> Path:
        """best.json: the configuration of the best trial."""
        return self.folder / "best.json"

    @property
    def stop_file(self) -> Path:
        """While this file exists, trials stop after their current step and write a checkpoint."""
        return self.folder / ".stop"

    def checkpoint_folder(self, number: int) -> Path:
        """The folder of a trial's checkpoints."""
        return self.folder / "checkpoints" / f"trial-{number:04d}"

    def trial_log(self, number: int) -> Path:
        """The log file of a trial's workers."""
        return self.log_folder / f"trial-{number:04d}.log"

    # Life

    @classmethod
    def create(
        cls,
        folder: Path,
        name: str,
        description: Description,
        storage_url: str | None,
        agree: Agree = lambda study: None,
        *,
        join: bool = False,
    ) -> StudyStore:
        """Make the folder and an empty study in it. Raises ConfigError if it already holds a study.

        Args:
            agree: called on a study in a database, while no other driver decides; it may refuse with ConfigError.
            join: whether the database may hold the study already.
        """
        store = cls(folder, storage_url)
        store.objectives = objectives_of(description)
        was_there = folder.exists()
        store._make_folder()
        store._take()
        if (folder / STUDY_FILE).exists() or (folder / JOURNAL_FILE).exists():
            store.close()
            raise ConfigError(
                f"a new study needs an empty folder; {str(folder)!r} holds a study. "
                "Write --resume to continue it, or --study OTHER."
            )
        # First the description: a study without one could be neither resumed nor made again.
        _write_description(folder, {"schema_version": SCHEMA_VERSION, "name": name, **description})
        try:
            store._begin_study(name, agree, join)
        except (optuna.exceptions.DuplicatedStudyError, ConfigError) as error:
            store.close()
            (folder / STUDY_FILE).unlink()
            if not was_there:
                shutil.rmtree(folder)
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(
                f"--storage must not hold a study of this name yet; got {name!r}. Write --study OTHER, --resume in its "
                "own folder, or --join to work on it with another driver."
            ) from None
        store._meet_drivers({})
        return store

    @classmethod
    def open(cls, folder: Path, storage_url: str | None, agree: Agree = lambda study: None) -> StudyStore:
        """Open the study in ``folder``. Works after the driver was killed at any moment."""
        description = read_description(folder)
        # Without a session the driver was killed before the database had the study.
        if description.get("sessions"):
            check_database_file(storage_url)
        store = cls(folder, storage_url)
        store.objectives = objectives_of(description)
        store._take()
        try:
            repair_journal(folder / JOURNAL_FILE)
            store._load(description, agree)
            store._meet_drivers(description)
        # Also after Ctrl-C: a lease that stays behind would keep the next driver out.
        except BaseException:
            store.close()
            raise
        return store

    def _begin_study(self, name: str, agree: Agree, join: bool) -> None:
        """Make the study, or with ``join`` find that of another driver."""
        storage = self._storage()
        with deciding(storage, name):
            self.study = self._empty_study(name, storage, join=join)
            if self._storage_url is not None:
                agree(self.study)

    def _meet_drivers(self, description: Description) -> None:
        """Give signs of life to the other drivers of a study in a database."""
        if self._storage_url is None:
            return
        from bigbatch.tune.storage.drivers import Drivers

        key = json_values.text_or_none(description, "driver")
        self.drivers = Drivers(self.study, self.folder, key, self.ledger)
        if key is None:
            self.describe({"driver": self.drivers.key})
        self._pulse = Pulse(self.drivers.beat)  # not the lease's: the database may be away for long

    def _load(self, description: Description, agree: Agree) -> None:
        name, storage = description["name"], self._storage()
        try:
            self.study = optuna.load_study(study_name=name, storage=storage)
            if self._storage_url is not None:
                with deciding(storage, name):
                    agree(self.study)
        except KeyError:
            if description.get("sessions"):
                raise no_trials(self.folder) from None
            # The driver was killed before the study's first entry: nothing is lost.
            self.study = self._empty_study(name, storage)

    def _empty_study(self, name: str, storage: optuna.storages.BaseStorage, *, join: bool = False) -> optuna.Study:
        return optuna.create_study(
            study_name=name, storage=storage, directions=self.objectives.directions, load_if_exists=join
        )

    def discard(self) -> None:
        """Remove a study that has no content yet. That of other drivers stays."""
        if self.drivers is not None and self.drivers.with_others:
            self.close()
            shutil.rmtree(self.folder, ignore_errors=True)
        elif not self.study.get_trials(deepcopy=False):
            # Else its thread would write this driver's entry into a study that is gone.
            if self._pulse is not None:
                self._pulse.close()
            self.drivers = None  # its entry goes with the study
            optuna.delete_study(study_name=self.study.study_name, storage=self.study._storage)
            self.close()
            shutil.rmtree(self.folder, ignore_errors=True)

    def recover(self) -> None:
        """Repair trials that a killed driver left RUNNING: complete those with all epochs, put back the others.

        The trials of this process, and those of another driver that may live, stay as they are.
        """
        running = self.study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.RUNNING,))
        for trial in running if self.drivers is None else self.drivers.left(running):
            records = epoch_records(trial)
            # Before the state: Optuna changes no trial that has ended.
            self.study._storage.set_trial_user_attr(
                trial._trial_id, "gpu_hours", self.ledger.trial_s(trial.number) / 3600
            )
            verdict = self._verdict(trial, records)
            if verdict is None:
                # Optuna has no public call from RUNNING to WAITING (docs/decisions/003).
                self.study._storage.set_trial_state_values(trial._trial_id, optuna.trial.TrialState.WAITING)
            else:
                self._end_late(trial, records, verdict)

    def _verdict(self, trial: optuna.trial.FrozenTrial, records: list[dict[str, object]]) -> Verdict | None:
        if not records:
            return None
        found = verdict_on(
            records,
            epochs=trial.user_attrs["config"]["epochs"],
            objectives=self.objectives,
            constraints=feasible.constraints_of(trial.user_attrs),
            gpu_hours=hours_of_run(self.study, self.ledger, trial.number),
            devices=devices_of(trial),
        )
        return found or decided(trial.user_attrs, tables.epoch_of(records[-1]))

    def _end_late(self, trial: optuna.trial.FrozenTrial, records: list[dict[str, object]], verdict: Verdict) -> None:
        """End a trial whose last epoch is in the study, but whose end is not."""
        live = optuna.trial.Trial(self.study, trial._trial_id)
        tables.report_missing(live, trial, self.objectives)
        for name, value in verdict.attrs.items():
            live.set_user_attr(name, value)
        hours = hours_of_run(self.study, self.ledger, trial.number)
        feasible.note_constraints(live, feasible.excesses(feasible.constraints_of(trial.user_attrs), records, hours))
        self.study.tell(live, values=verdict.values, state=verdict.state)

    def in_turn(self) -> contextlib.AbstractContextManager[None]:
        """The time in which no other driver of the study decides. Raises ConfigError if another one hangs."""
        return deciding(self.study._storage, self.study.study_name)

    def close(self) -> None:
        """Close the ledger and give the folder back."""
        if self._hold is not None:
            self.ledger.close()
            if self.drivers is not None and self._pulse is not None:
                self._pulse.close()
                self.drivers.close()
            # Last: from here on another driver may write the folder.
            self._hold.close()
            self._hold = None

    def _make_folder(self) -> None:
        try:
            for sub in (self.folder, self.log_folder, self.folder / "checkpoints"):
                sub.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"--output must be a writable folder; got {str(self.folder)!r} ({error.strerror}). "
                "Write --output with another folder."
            ) from None

    def _take(self) -> None:
        self._hold = hold_folder(self.folder, "a study's folder", "write --study OTHER")
        ledger = self.folder / "ledger"
        self.ledger = Ledger(ledger, bill=open_bill(ledger))
        self._hold.also(self.ledger.beat)

    def _storage(self) -> optuna.storages.BaseStorage:
        """The study's journal, or its database. Raises ConfigError if it cannot be opened."""
        url = self._storage_url
        if url is None:
            return open_journal(self.folder / JOURNAL_FILE, self.disk)
        try:
            from bigbatch.tune.storage.database import PatientStorage  # SQLAlchemy; the journal needs none

            return PatientStorage(url)
        except Exception as error:  # SQLAlchemy and each database driver raise their own
            reason = str(error).strip().splitlines()[0]
            raise ConfigError(
                f"--storage must be the URL of a database that can be opened; got {redact(url)!r}: {redact(reason)}. "
                "Write e.g. postgresql+psycopg://user@host/db, or leave it out for the journal file."
            ) from None

    # Files made from the journal

    def refresh(self, *, force: bool = False) -> None:
        """Rewrite the tables and best.json from the study. While trials run, REFRESH_SHARE limits how often."""
        started = time.monotonic()
        if not force and started < self._next_refresh:
            return
        trials = self.study.get_trials(deepcopy=False)
        tables.write_trials(trials, self.folder / "trials.parquet", self.objectives)
        tables.write_epochs(trials, self.folder / "epochs.parquet")
        if self._storage_url is not None:
            _write_progress(trials, self.folder, self.objectives)
        frontier = answer_of(trials, read_description(self.folder), self.objectives)
        best = leading_trial(trials, frontier, self.objectives)
        if frontier is not None:
            write_frontier(frontier, self.folder)
        else:  # what had not learned may have learned since
            (self.folder / FRONTIER_FILE).unlink(missing_ok=True)
        if self.objectives.several:
            write_front(self.objectives, trials, self.folder / PARETO_FILE)
        if best is not None:
            config = best.user_attrs["config"]
            because = frontier.unusable_because if frontier else None
            write_json(self.best_file, unusable_config(config, because) if because else config, indent=2, durable=True)
        self._next_refresh = time.monotonic() + (time.monotonic() - started) / REFRESH_SHARE

    def drop_checkpoints(self) -> None:
        """Remove checkpoints of ended trials, except the best ones' and those from which another trial may go on."""
        drop_ended(self, self._frontier_facts)
        drop_paused(self)

    def _frontier_facts(self) -> FrontierFacts | None:
        """What study.json says about the answer; None where the search has several objectives or a target."""
        one = self.objectives.one_metric
        return frontier_facts(read_description(self.folder), self.objectives.first) if one else None

    def add_session(self, session: dict[str, object], **changes: object) -> None:
        """Append the facts of this driver's run to study.json, and change other keys."""
        description = read_description(self.folder)
        description.setdefault("sessions", []).append(session)
        _write_description(self.folder, {**description, **changes})

    def describe(self, changes: dict[str, object]) -> None:
        """Change keys of study.json."""
        _write_description(self.folder, {**read_description(self.folder), **changes})

    def write_last(self, outcome: str, elapsed_s: float) -> None:
        """Write the tables and the session's end. Without room, or without the database, they stay unchanged."""
        if not self.folder.exists():
            return
        with contextlib.suppress(DatabaseLost), self.disk.quietly():
            self.drop_checkpoints()
            self.refresh(force=True)
        with self.disk.quietly():
            description = read_description(self.folder)
            if description.get("sessions"):
                end = {"outcome": "disk full" if self.disk.full else outcome, "elapsed_s": round(elapsed_s, 1)}
                description["sessions"][-1].update(end)
            _write_description(self.folder, description)


def _write_progress(trials: Sequence[optuna.trial.FrozenTrial], folder: Path, objectives: Objectives) -> None:
    """How far a study in a database is, for jobs and the queue, which read no database."""
    best = leading_trial(trials, None, objectives)
    facts = {"finished": count_ended(trials), "ended": sum(trial.state.is_finished() for trial in trials)}
    facts["epochs"] = sum(len(epoch_records(trial)) for trial in trials)
    value = best.values[0] if best is not None and best.values else None
    write_json(folder / PROGRESS_FILE, {"schema_version": SCHEMA_VERSION, **facts, "best": value})


def _write_description(folder: Path, description: Description) -> None:
    write_json(folder / STUDY_FILE, description, indent=2, durable=True)


@contextlib.contextmanager
def deciding(storage: optuna.storages.BaseStorage, name: str) -> Iterator[None]:
    """The time in which no other driver of a study in a database decides.

    Raises ConfigError if another one does not end its turn.
    """
    if isinstance(storage, optuna.storages.JournalStorage):
        yield
        return
    # SQLAlchemy, which a journal does not need.
    from bigbatch.tune.storage.database import study_lock

    with study_lock(storage, name, PATIENT_S) as may:
        if not may:
            raise ConfigError(
                f"--storage must let a driver have its turn; got none within {PATIENT_S:.0f} s, because another driver "
                f"of {name!r} hangs. End that one, and start again."
            )
        yield
