"""The drivers of one study in a database: who they are, what each has used, and which trials are left by dead ones.

Each driver has a folder of its own, and an entry in the study: a user attribute ``driver/KEY``, which a thread rewrites
every BEAT_S, with Optuna's heartbeat of each of its trials. A trial names the driver that runs it in OWNER_ATTR. See
docs/decisions/015.
"""

from __future__ import annotations

import contextlib
import secrets
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from bigbatch.base import json_values
from bigbatch.tune.budget.ledger import DeviceSeconds, Ledger
from bigbatch.tune.runs.run import OWNER_ATTR, earlier_of, search_trials
from bigbatch.tune.storage.database import BEAT_S, DEAD_AFTER_S, PatientStorage
from bigbatch.tune.storage.storage_url import DatabaseLost

ENTRY_ATTR = "driver/"
"""Prefix of the study's user attributes with the entries of its drivers."""
FORGOTTEN_AFTER_S = 900.0
"""A driver whose entry is older than this, by the clocks of the hosts, holds no devices any more."""


def entries(attrs: Mapping[str, Any]) -> dict[str, Mapping[str, object]]:
    """Key → what the driver has written about itself, of a study with these user attributes."""
    return {name.removeprefix(ENTRY_ATTR): values for name, values in attrs.items() if name.startswith(ENTRY_ATTR)}


def holding(found: Iterable[Mapping[str, object]]) -> list[Mapping[str, object]]:
    """Those of the drivers that hold devices."""
    recent = time.time() - FORGOTTEN_AFTER_S
    return [one for one in found if one.get("devices") and json_values.number(one, "written_at") > recent]


class Drivers:
    """The drivers of ``study``, as the one in ``folder`` sees them. Call ``beat`` often from one thread.

    ``key``: that of an earlier process in this folder; None: a new one.
    """

    clock = staticmethod(time.monotonic)

    def __init__(self, study: optuna.Study, folder: Path, key: str | None, ledger: Ledger) -> None:
        self._study, self._folder, self._ledger = study, folder, ledger
        # Optuna puts a cache of its own around a database.
        storage = getattr(study._storage, "_backend", study._storage)
        assert isinstance(storage, PatientStorage)
        self._storage = storage
        self.key = key or secrets.token_hex(4)
        # A driver that comes back is a new owner: so the trials of its killed process count as left.
        self.owner = f"{self.key}.{secrets.token_hex(4)}"
        self._others: dict[str, Mapping[str, object]] = {}
        self._beaten_at = self._trusts_from = self.clock()
        self._idle_since: float | None = None
        self._write(self._ledger.devices_now)
        self.look()

    # This driver

    def beat(self) -> None:
        """Give signs of life and read those of the others, if that is due."""
        if self.clock() - self._beaten_at < BEAT_S:
            return
        for trial in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            if self.is_own(trial):
                self._storage.record_heartbeat(trial._trial_id)
        self._write(self._ledger.devices_now)
        self.look()
        if self._was_away():
            self._trusts_from = self.clock() + DEAD_AFTER_S
        self._beaten_at = self.clock()

    def _was_away(self) -> bool:
        """Whether this process or the database was away. Then the others may have been away too, and not be dead."""
        return self.clock() - self._beaten_at > 3 * BEAT_S

    def close(self) -> None:
        """Say that this driver holds nothing any more."""
        with contextlib.suppress(DatabaseLost):
            self._write(0.0)

    def _write(self, devices: float) -> None:
        facts = {"folder": str(self._folder), "devices": devices, "written_at": time.time()}
        self._study.set_user_attr(f"{ENTRY_ATTR}{self.key}", facts | self._ledger.used_here().to_dict())

    def begins(self, trial: optuna.trial.Trial, goal: Path) -> None:
        """This driver runs the trial from now on. If another one has trained it, ``goal`` gets the checkpoint."""
        self._idle_since = None
        # Before the owner is set: until then the trial says whose checkpoint it has.
        before = self._study.get_trials(deepcopy=False) if self.with_others else []
        self._storage.record_heartbeat(trial._trial_id)  # first: a trial that has none is never called left
        trial.set_user_attr(OWNER_ATTR, self.owner)
        if before:
            self.bring_checkpoint(before, trial.number, goal)

    # The others

    def look(self) -> None:
        """Read the entries of the other drivers, and hand the ledger what they have used."""
        self._others = {key: entry for key, entry in entries(self._study.user_attrs).items() if key != self.key}
        used = DeviceSeconds()
        for entry in self._others.values():
            used.add(DeviceSeconds.from_dict(entry) or DeviceSeconds())
        living = holding(self._others.values())
        self._ledger.note_others(used, sum(json_values.number(one, "devices") for one in living))

    @property
    def with_others(self) -> bool:
        """Whether the study has ever had another driver."""
        return bool(self._others)

    def waits_for_others(self) -> bool:
        """Whether this driver, which has nothing to begin, must wait to learn whether the others are still alive."""
        self._idle_since = self.clock() if self._idle_since is None else self._idle_since
        return self.clock() - self._idle_since < DEAD_AFTER_S + 2 * BEAT_S

    # Trials

    def is_own(self, trial: FrozenTrial) -> bool:
        """Whether this process runs the trial."""
        return trial.user_attrs.get(OWNER_ATTR) == self.owner

    def runs_elsewhere(self, trials: Iterable[FrozenTrial]) -> int:
        """How many of the trials other drivers run, confirmations not counted."""
        return sum(t.state == TrialState.RUNNING and not self.is_own(t) for t in search_trials(trials))

    def left(self, running: Sequence[FrozenTrial]) -> list[FrozenTrial]:
        """Which of these trials nobody runs. Asked in a turn: so a trial without an owner was left by a dead driver."""
        trusts = self.clock() >= self._trusts_from and not self._was_away()
        stale = set(self._storage._get_stale_trial_ids(self._study._study_id)) if trusts else set()
        return [t for t in running if not self.is_own(t) and (_driver_of(t) in ("", self.key) or t._trial_id in stale)]

    # Checkpoints

    def bring_checkpoint(self, trials: Sequence[FrozenTrial], number: int, goal: Path) -> None:
        """Copy the checkpoint of a trial that another driver has trained to ``goal``, if this host sees it.

        It is copied, because a driver that seems dead may still write. Without it the trial begins again.
        """
        before = earlier_of(trials[number])
        numbers = [number] if before is None else [number, before]
        owner = next((key for one in numbers if (key := _driver_of(trials[one]))), "")
        folder = Path(json_values.text(self._others.get(owner, {}), "folder"), "checkpoints")
        sources = [folder / f"trial-{one:04d}" for one in numbers]
        if owner in self._others and (source := next(filter(Path.is_dir, sources), None)):
            copy_folder(source, goal)


def _driver_of(trial: FrozenTrial) -> str:
    """The key of the driver that runs the trial, or ran it last; empty if none has."""
    return str(trial.user_attrs.get(OWNER_ATTR, "")).partition(".")[0]


def copy_folder(source: Path, goal: Path) -> None:
    """Copy a folder so that ``goal`` is whole or as before."""
    part = goal.with_name(f".{goal.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        shutil.copytree(source, part)
        # rename replaces no folder that holds files.
        shutil.rmtree(goal, ignore_errors=True)
        part.rename(goal)
    except OSError:  # its owner removes it, or there is no room: the trial begins again
        shutil.rmtree(part, ignore_errors=True)
