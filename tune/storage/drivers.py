"""The drivers of one study in a database: who they are, which of them live, what each has used.

Each driver has a folder of its own, and an entry in the study: a user attribute ``driver/KEY``, which a thread rewrites
every BEAT_S. It is the driver's sign of life and its ledger. A trial names the driver that runs it in OWNER_ATTR. A
driver is dead once its entry has not changed for DEAD_AFTER_S. Who looks measures that: clocks of hosts differ.
See docs/decisions/015.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
from optuna.exceptions import StorageInternalError
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.exc import DBAPIError

from bigbatch.base import json_values
from bigbatch.tune.budget.ledger import DeviceSeconds, Ledger
from bigbatch.tune.runs.run import OWNER_ATTR, earlier_of, search_trials
from bigbatch.tune.storage.database import PatientStorage, StudyLock

ENTRY_ATTR = "driver/"
"""Prefix of the study's user attributes with the entries of its drivers."""
BEAT_S = 10.0
DEAD_AFTER_S = 60.0
FORGOTTEN_AFTER_S = 900.0
"""A driver that was never seen to change its entry, which is older than this by the wall clock, is dead at once."""


@dataclass(frozen=True)
class DriverEntry:
    """What a driver has written about itself."""

    key: str
    run: str
    """Differs for each process of that driver."""
    beats: int
    folder: str
    words: str
    """Where it runs, e.g. ``host gpu03, process 4711, job 881``."""
    devices: float
    """The devices that it holds now."""
    ended: bool
    written_at: float
    """Seconds since the epoch, by its own clock."""
    used: DeviceSeconds
    """Of all its sessions."""

    def to_dict(self) -> dict[str, object]:
        """As the study keeps it."""
        trials = {str(number): round(seconds, 3) for number, seconds in self.used.trials_s.items()}
        figures = {"held_device_s": round(self.used.held_s, 3), "trial_device_s": trials}
        return {**{k: v for k, v in vars(self).items() if k not in ("key", "used")}, **figures}


def entries(attrs: Mapping[str, Any]) -> list[DriverEntry]:
    """The drivers of a study with these user attributes."""
    found = []
    for name, values in attrs.items():
        if name.startswith(ENTRY_ATTR) and isinstance(values, dict):
            trials = values.get("trial_device_s")
            used = {int(n): float(s) for n, s in trials.items()} if isinstance(trials, dict) else {}
            found.append(
                DriverEntry(
                    key=name.removeprefix(ENTRY_ATTR),
                    run=json_values.text(values, "run"),
                    beats=int(json_values.number(values, "beats")),
                    folder=json_values.text(values, "folder"),
                    words=json_values.text(values, "words"),
                    devices=json_values.number(values, "devices"),
                    ended=values.get("ended") is True,
                    written_at=json_values.number(values, "written_at"),
                    used=DeviceSeconds(json_values.number(values, "held_device_s"), used),
                )
            )
    return found


def may_live(attrs: Mapping[str, Any]) -> list[DriverEntry]:
    """The drivers of a study that may live, as far as one look at its user attributes can tell."""
    return [e for e in entries(attrs) if not e.ended and time.time() - e.written_at <= FORGOTTEN_AFTER_S]


def begin_driver(study: optuna.Study, folder: Path, key: str | None, ledger: Ledger) -> Drivers:
    """The drivers of ``study``, with this one among them.

    ``key``: that of an earlier process in this folder; None: a new one.
    """
    # Optuna puts a cache of its own around a database.
    storage = getattr(study._storage, "_backend", study._storage)
    assert isinstance(storage, PatientStorage)
    return Drivers(study, folder, key or secrets.token_hex(4), ledger, storage)


class Drivers:
    """The drivers of ``study``, as the one in ``folder`` sees them. Call ``beat`` often from one thread.

    Args:
        key: of this driver.
        clock: seconds that go on while the machine is awake.
        wall: seconds since the epoch.
    """

    def __init__(
        self,
        study: optuna.Study,
        folder: Path,
        key: str,
        ledger: Ledger,
        storage: PatientStorage,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._study, self._folder, self._ledger, self._storage = study, folder, ledger, storage
        self.lock = StudyLock(storage, study.study_name)
        self._clock, self._wall = clock, wall
        self.key, self._run, self._beats = key, secrets.token_hex(4), 0
        self._next_beat = clock() + BEAT_S
        self._seen: dict[str, tuple[object, float, bool]] = {}
        """For each thing that is watched: its last state, since when, and whether it has ever changed."""
        self._others: list[DriverEntry] = []
        self._last_look = clock()
        self._asked_at: float | None = None
        self._write(ended=False)
        self.look()

    # This driver

    @property
    def owner(self) -> str:
        """What the trials of this driver's process say."""
        # A driver that comes back has another run, so that what its killed process ran is known to be left.
        return f"{self.key}.{self._run}"

    def beat(self) -> None:
        """Write this driver's entry and read those of the others, if that is due."""
        if self._clock() >= self._next_beat:
            self._next_beat = self._clock() + BEAT_S
            with self._hastily():
                self._write(ended=False)
                self.look()

    def close(self) -> None:
        """Say that this driver has ended. Its trials may be taken at once."""
        with self._hastily():
            self._write(ended=True)

    @contextlib.contextmanager
    def _hastily(self) -> Iterator[None]:
        """Within it, a database that is away is not waited for: the next beat tries again."""
        with contextlib.suppress(StorageInternalError, DBAPIError), self._storage.hasty():
            yield

    def _write(self, *, ended: bool) -> None:
        self._beats += 1
        job = os.environ.get("SLURM_JOB_ID")
        words = f"host {os.uname().nodename}, process {os.getpid()}" + (f", job {job}" if job else "")
        devices = 0.0 if ended else self._ledger.devices_now
        used = self._ledger.used_here()
        entry = DriverEntry(
            self.key, self._run, self._beats, str(self._folder), words, devices, ended, self._wall(), used
        )
        self._study.set_user_attr(f"{ENTRY_ATTR}{self.key}", entry.to_dict())

    # The others

    def look(self) -> None:
        """Read the entries of the other drivers, and hand the ledger what they have used."""
        now = self._clock()
        if now - self._last_look > 3 * BEAT_S:  # this process or the database was away, so nobody was watched
            self._seen = {name: (state, now, changed) for name, (state, _, changed) in self._seen.items()}
        self._last_look = now
        self._others = [entry for entry in entries(self._study.user_attrs) if entry.key != self.key]
        used, devices = DeviceSeconds(), 0.0
        for entry in self._others:
            self._watch(entry.key, (entry.run, entry.beats))
            used.add(entry.used)
            devices += 0.0 if self._is_dead(entry) else entry.devices
        self._ledger.note_others(used, devices)

    @property
    def with_others(self) -> bool:
        """Whether the study has ever had another driver."""
        return bool(self._others)

    def living(self) -> list[DriverEntry]:
        """The other drivers that are not known to be dead."""
        return [entry for entry in self._others if not self._is_dead(entry)]

    def uncertain(self, trials: Iterable[FrozenTrial]) -> bool:
        """Whether a trial runs elsewhere whose driver has given no sign of life since this was first asked.

        ``begins_work`` forgets the question.
        """
        now = self._clock()
        self._asked_at = now if self._asked_at is None else self._asked_at
        for trial in trials:
            if trial.state == TrialState.RUNNING and not self.is_own(trial):
                entry = self._owner_entry(trial)
                _, since, changed = self._seen.get(entry.key if entry else _ownerless(trial), (None, now, False))
                if not changed or since <= self._asked_at:
                    return True
        return False

    def begins_work(self) -> None:
        """This driver begins a trial."""
        self._asked_at = None

    def _watch(self, name: str, state: object) -> None:
        before = self._seen.get(name)
        if before is None or before[0] != state:
            self._seen[name] = (state, self._clock(), before is not None)

    def _is_still(self, name: str) -> bool:
        return name in self._seen and self._clock() - self._seen[name][1] > DEAD_AFTER_S

    def _is_dead(self, entry: DriverEntry) -> bool:
        if entry.ended or self._is_still(entry.key):
            return True
        _, _, changed = self._seen.get(entry.key, (None, 0.0, False))
        return not changed and self._wall() - entry.written_at > FORGOTTEN_AFTER_S

    # Trials

    def is_own(self, trial: FrozenTrial) -> bool:
        """Whether this process runs the trial."""
        return trial.user_attrs.get(OWNER_ATTR) == self.owner

    def runs_elsewhere(self, trials: Iterable[FrozenTrial]) -> int:
        """How many of the trials other drivers run, confirmations not counted."""
        return sum(t.state == TrialState.RUNNING and not self.is_own(t) for t in search_trials(trials))

    def is_left(self, trial: FrozenTrial) -> bool:
        """Whether nobody runs a trial that the study calls RUNNING: its driver is dead, or was here before."""
        if self.is_own(trial):
            return False
        owner = str(trial.user_attrs.get(OWNER_ATTR, ""))
        if owner.partition(".")[0] == self.key:
            return True  # an earlier process of this folder; the folder's lease says that it is gone
        entry = self._owner_entry(trial)
        if entry is not None:
            return self._is_dead(entry) or owner.partition(".")[2] != entry.run
        self._watch(_ownerless(trial), owner)  # its driver died, or has only just begun it
        return not self.living() or self._is_still(_ownerless(trial))

    def _owner_entry(self, trial: FrozenTrial) -> DriverEntry | None:
        key = str(trial.user_attrs.get(OWNER_ATTR, "")).partition(".")[0]
        return next((entry for entry in self._others if entry.key == key), None)

    def takes_over(self, trial: FrozenTrial) -> bool:
        """Whether nobody runs the trial (``is_left``). What is half drawn is forgotten, to be drawn again."""
        if not self.is_left(trial):
            return False
        if "config" not in trial.user_attrs:
            self._storage.drop_proposal(trial._trial_id)
        return True

    # Checkpoints

    def bring_checkpoint(self, trials: Sequence[FrozenTrial], number: int, goal: Path) -> None:
        """Copy the checkpoint of a trial that another driver has trained to ``goal``, if this host sees it.

        It is copied, because a driver that seems dead may still write. Without it the trial begins again.
        """
        trial = trials[number]
        before = earlier_of(trial)
        numbers = [number] if before is None else [number, before]
        owner = self._owner_entry(trial) if OWNER_ATTR in trial.user_attrs or before is None else None
        if owner is None and before is not None and OWNER_ATTR not in trial.user_attrs:
            owner = self._owner_entry(trials[before])
        others = [owner] if owner is not None else []
        if not goal.exists():
            others += [entry for entry in self._others if entry is not owner]
        for entry in others:
            for one in numbers:
                source = Path(entry.folder) / "checkpoints" / goal.with_name(f"trial-{one:04d}").name
                if source.is_dir() and copied(source, goal):
                    return


def _ownerless(trial: FrozenTrial) -> str:
    return f"trial {trial.number}"


def copied(source: Path, goal: Path) -> bool:
    """Copy a folder so that ``goal`` is whole or as before. Returns whether that worked."""
    part = goal.with_name(f".{goal.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        shutil.copytree(source, part)
    except OSError:  # its owner removes it, or there is no room: the trial begins again
        shutil.rmtree(part, ignore_errors=True)
        return False
    # rename replaces no folder that holds files.
    shutil.rmtree(goal, ignore_errors=True)
    with contextlib.suppress(OSError):
        part.rename(goal)
    return goal.exists()
