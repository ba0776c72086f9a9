"""Count the device seconds that a study has used: held by its drivers and spent on its trials, over all sessions.

A device is a GPU; without GPUs, one of the concurrent workers. The folder ``ledger/`` has a file for each session
of a driver, ``0001.json`` …. The thread that renews the study's lease rewrites it every WRITE_S, so a kill loses at
most that much. Every sum is a sum over these files: a later session never counts again what an earlier one has
counted.

In a Slurm job the bill begins and ends with the job. The first session after a job's start counts the devices from that
start on; a later one from the end of the session before. A job of BigBatch itself writes what it held after its driver
(``job-*.json``, see ``cluster/job/billing.py``).
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from bigbatch.base import json_values
from bigbatch.base.atomic_files import read_json, write_json
from bigbatch.cluster.host.allocation import job_start, slurm_job

SCHEMA_VERSION = 1
WRITE_S = 10.0


@dataclass
class DeviceSeconds:
    """Device seconds, of one session or of several."""

    held_s: float = 0.0
    """Held by drivers, from Ray's start to its end."""
    trials_s: dict[int, float] = field(default_factory=dict)
    """Used by each trial, in all its attempts."""

    def add(self, other: DeviceSeconds) -> None:
        """Add the seconds of ``other`` to these."""
        self.held_s += other.held_s
        for number, seconds in other.trials_s.items():
            self.trials_s[number] = self.trials_s.get(number, 0.0) + seconds

    def to_dict(self) -> dict[str, object]:
        """As a session's file and a driver's entry have it."""
        trials = {str(number): round(seconds, 3) for number, seconds in self.trials_s.items()}
        return {"held_device_s": round(self.held_s, 3), "trial_device_s": trials}

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> DeviceSeconds | None:
        """Such a part of a file; None if it is damaged."""
        held_s, trials_s = json_values.number_or_none(values, "held_device_s"), values.get("trial_device_s")
        if held_s is None or not isinstance(trials_s, dict):
            return None
        try:
            used_s = {int(number): float(seconds) for number, seconds in trials_s.items()}
            return cls(float(held_s), used_s)
        except (TypeError, ValueError):
            return None


@dataclass(frozen=True)
class OpenBill:
    """The part of a job's bill that no session has counted yet."""

    job: str
    """Its name and the number of its restart, ``ID.RESTART``."""
    since: float
    """When that part begins, in seconds since the epoch."""
    wall: Callable[[], float] = time.time


def open_bill(folder: Path) -> OpenBill | None:
    """The bill of the job around this process; None outside a job, and where Slurm does not say when it began.

    The open part begins with this start of the job, or at the last write of a session since then. That may be a session
    of this study or of another one beside it.

    Args:
        folder: the study's ledger.
    """
    found = job_start()
    if found is None:
        return None
    job, since = found
    for path in folder.parent.parent.glob(f"*/{folder.name}/*.json"):
        with contextlib.suppress(OSError):
            # A file from before that moment cannot change it, and need not be read.
            if path.stat().st_mtime < since:
                continue
        values = read_json(path)
        if values.get("slurm_job") == job:
            since = max(since, _seconds(json_values.text(values, "written_at")))
    return OpenBill(job, since)


class Ledger:
    """The ledger of one study. One driver at a time adds a session. Call ``beat`` often and ``close`` at the end.

    Args:
        folder: made with the first entry.
        clock: seconds that go on while the machine is awake.
        bill: the part of the job's bill that no session has counted yet. None: nothing was billed before.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic, bill: OpenBill | None = None) -> None:
        self._folder, self._clock, self._bill = folder, clock, bill
        self._lock, self._writing = threading.Lock(), threading.Lock()
        self._before = read_ledger(folder)
        self._ending_since: float | None = None
        self._session = DeviceSeconds()
        self._elsewhere, self._devices_elsewhere = DeviceSeconds(), 0.0
        self._running: dict[int, float] = {}
        self._devices: float | None = None
        self._at = 0.0
        self._path: Path | None = None
        self._next_write = 0.0
        self._facts: dict[str, object] = {}

    # What was used

    def used(self) -> DeviceSeconds:
        """The sum of all sessions so far."""
        total = self.used_here()
        with self._lock:
            total.add(self._elsewhere)
        return total

    def used_here(self) -> DeviceSeconds:
        """The sum of all sessions in this folder, without what the study's other drivers have used."""
        with self._lock:
            self._charge()
            total = DeviceSeconds()
            total.add(self._before)
            total.add(self._session)
            return total

    def note_others(self, used: DeviceSeconds, devices: float) -> None:
        """Take what the study's other drivers have used so far, and the devices that they hold now."""
        with self._lock:
            self._elsewhere, self._devices_elsewhere = used, devices

    @property
    def devices_now(self) -> float:
        """The devices that this driver holds now."""
        with self._lock:
            return self._held_now()

    @property
    def devices_elsewhere(self) -> float:
        """The devices that the study's other drivers hold now."""
        return self._devices_elsewhere

    @property
    def held_s(self) -> float:
        """Device seconds that all drivers have held."""
        with self._lock:
            self._charge()
            return self._before.held_s + self._session.held_s + self._elsewhere.held_s

    def trial_s(self, number: int) -> float:
        """Device seconds that the trial has used in all its attempts."""
        with self._lock:
            self._charge()
            parts = (self._before, self._session, self._elsewhere)
            return sum(part.trials_s.get(number, 0.0) for part in parts)

    # What is being used

    def hold(self, devices: float | None) -> None:
        """Set the number of devices that the driver holds from now on. None, as at the start: those of its trials."""
        with self._lock:
            first = self._begin_session()
            self._devices = devices
            if devices:
                self._facts["devices_held"] = devices
                if self._bill is not None:
                    before_s = max(0.0, self._bill.wall() - self._bill.since)
                    self._facts["billed_before_s"] = round(before_s, 3)
                    self._session.held_s += devices * before_s
                    self._bill = None
        self._write_first(first)

    def begin(self, trial: int, devices: float) -> None:
        """Note that a trial uses so many devices from now on, 0.5 for half of one. Does nothing if it already runs."""
        with self._lock:
            first = self._begin_session()
            if trial not in self._running:
                self._running[trial] = devices
        self._write_first(first)

    def end(self, trial: int) -> None:
        """Note that the trial uses no device from now on."""
        with self._lock:
            self._charge()
            self._running.pop(trial, None)

    def note(self, **seconds: float) -> None:
        """Write what this session has measured of itself; see ``tune/budget/pace.py``."""
        with self._lock:
            self._facts |= {name: round(value, 3) for name, value in seconds.items()}

    def ending(self) -> None:
        """Note that the search ends from now on. ``close`` records how long that took."""
        self._ending_since = self._ending_since or self._clock()

    # The folder

    def beat(self) -> None:
        """Write the session's file if that is due. After a failure the next beat tries again. Raises OSError then."""
        with self._lock:
            if self._path is None or self._clock() < self._next_write:
                return
            self._next_write = self._clock() + WRITE_S
        try:
            self._write_session()
        except OSError as error:
            reason = f"the study's ledger cannot be written, its hours are counted in memory only ({error.strerror})"
            raise OSError(error.errno, reason) from None

    def write(self) -> None:
        """Write the session's file now, for a reader. On a full disk a later beat does it."""
        with self._lock:
            self._begin_if_others_held()
        with contextlib.suppress(OSError):
            self._write_session()

    def close(self) -> None:
        """End the session: it holds nothing any more. A full disk loses what the last beats could not write."""
        with self._lock:
            self._begin_if_others_held()
            self._charge()
            self._running, self._devices = {}, 0.0
            self._facts["ended_at"] = _now()
            if self._ending_since is not None:
                self._facts["ending_s"] = round(self._clock() - self._ending_since, 3)
        with contextlib.suppress(OSError):
            self._write_session()
        with self._lock:
            self._before.add(self._session)
            self._path, self._session = None, DeviceSeconds()

    def _begin_if_others_held(self) -> None:
        """Let a session that began nothing write what the study's other drivers hold by now."""
        if self._path is None and self._elsewhere.held_s:
            self._bill = None  # the bill stays open: this session counts nothing of it
            self._begin_session()

    def _begin_session(self) -> bool:
        """Choose this driver's file, with the next free number. Returns whether this is its first entry."""
        self._charge()
        if self._path is not None:
            return False
        numbers = [int(path.stem) for path in self._folder.glob("*.json") if path.stem.isdecimal()]
        self._path = self._folder / f"{max(numbers, default=0) + 1:04d}.json"
        self._facts = {"host": os.uname().nodename, "pid": os.getpid(), "started_at": _now()}
        if self._bill is not None:
            self._facts["slurm_job"] = self._bill.job
        return True

    def _write_first(self, first: bool) -> None:
        if first:
            with contextlib.suppress(OSError):  # the disk is full; the beats go on trying
                self._write_session()

    def _write_session(self) -> None:
        """Write the file outside the lock: the file system may hang, and the search's thread takes that lock."""
        with self._writing:
            with self._lock:
                self._charge()
                path, facts = self._path, {**self._facts, "devices": self._held_now()}
                facts |= {"elsewhere_device_s": round(self._elsewhere.held_s, 3)} if self._elsewhere.held_s else {}
                now = DeviceSeconds()
                now.add(self._session)
            if path is not None:
                _write(path, now, **facts)

    def _charge(self) -> None:
        """Add the GPU hours since the last call: of all devices that are held, and of each trial that runs."""
        now, before = self._clock(), self._at
        self._at = now
        if self._path is None:
            return
        elapsed_s = max(0.0, now - before)
        self._session.held_s += self._held_now() * elapsed_s
        for number, devices in self._running.items():
            self._session.trials_s[number] = self._session.trials_s.get(number, 0.0) + devices * elapsed_s

    def _held_now(self) -> float:
        return sum(self._running.values()) if self._devices is None else self._devices


def read_ledger(folder: Path) -> DeviceSeconds:
    """The sum of all sessions. A damaged file counts nothing and is named on stderr."""
    total = DeviceSeconds()
    for path in ledger_files(folder):
        used = read_session(path)
        if used is None:
            print(f"warning: {path} is damaged; its hours are not counted", file=sys.stderr, flush=True)
        else:
            total.add(used)
    return total


def ledger_files(folder: Path) -> list[Path]:
    """The files of all sessions, in the order of their names."""
    return sorted(folder.glob("*.json"))


def _seconds(written_at: str) -> float:
    try:
        return datetime.fromisoformat(written_at).timestamp()
    except ValueError:
        return 0.0


def read_session(path: Path) -> DeviceSeconds | None:
    """What one file counts; None if it is damaged."""
    return DeviceSeconds.from_dict(read_json(path))


def _write(path: Path, used: DeviceSeconds, **facts: object) -> None:
    path.parent.mkdir(exist_ok=True)
    write_json(path, {"schema_version": SCHEMA_VERSION, **facts, "written_at": _now(), **used.to_dict()})


def owns_cluster(*, local: bool) -> bool:
    """Whether this search holds all devices of its cluster: on its own Ray, or in its own Slurm job."""
    return local or slurm_job() is not None


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
