"""Measured times: of an epoch, of a trial's start before its first epoch, and of the other parts of a session.

Epochs are measured separately for each network, global batch size, image size and part of the data.

A session also takes Ray's start, the first trial's start, and the end. Each session writes what it has measured to its
file in the ledger. A budget keeps room for these times, so the study's next session reads them.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path

from optuna.trial import FrozenTrial

from bigbatch.base import json_values
from bigbatch.base.atomic_files import read_json
from bigbatch.tune.runs.run import configuration, epoch_records
from bigbatch.tune.runs.tables import epoch_s

PaceKey = tuple[object, ...]
"""Trials with the same key are taken to be equally fast."""
PaceRun = tuple[PaceKey, int]
"""A run that is to be made: its key, and its epochs."""
_KEYS = (("model", "name"), ("batch", "global_size"), ("data", "image_size"), ("data", "subset"))


def pace_key(config: object) -> PaceKey:
    """The key of a configuration, given as ``TrainConfig.to_dict`` returns it."""
    found = []
    for section, key in _KEYS:
        part = config.get(section) if isinstance(config, dict) else None
        found.append(part.get(key) if isinstance(part, dict) else None)
    return tuple(found)


MOST_TIMES = 99
"""Times of which the median is taken, the latest ones: so a study of any length costs the same."""


class Pace:
    """Median seconds of epochs by key, and of start-ups.

    A maximum or a mean would contain the epoch in which the file system hung, and the start-up of the trial that waited
    for its place, or was started again after a node was lost.
    """

    def __init__(self, trials: Iterable[FrozenTrial] = (), start_s: float = 0.0) -> None:
        """``start_s``: the assumed seconds of a start-up until one was measured."""
        self._epochs: dict[PaceKey, deque[float]] = {}
        self._starts, self._expected_s = deque[float](maxlen=MOST_TIMES), start_s
        self.shortest_s: float | None = None
        """The shortest epoch that was measured; None before the first."""
        for trial in trials:
            key = pace_key(configuration(trial))
            for record in epoch_records(trial):
                self.add_epoch(key, epoch_s(record))

    def add_epoch(self, key: PaceKey, seconds: float) -> None:
        """Take in the time of one epoch."""
        if seconds > 0:
            self._epochs.setdefault(key, deque(maxlen=MOST_TIMES)).append(seconds)
            self.shortest_s = seconds if self.shortest_s is None else min(self.shortest_s, seconds)

    def add_start(self, seconds: float) -> None:
        """Take in the time from a trial's start to the beginning of its first epoch."""
        self._starts.append(max(0.0, seconds))

    @property
    def start_s(self) -> float:
        """Seconds of a start-up."""
        return statistics.median_low(self._starts) if self._starts else self._expected_s

    def run_s(self, run: PaceRun) -> float:
        """Seconds of a whole run with its start-up; 0 if nothing was measured."""
        epoch_s = self.epoch_s(run[0])
        return 0.0 if epoch_s is None else self.start_s + run[1] * epoch_s

    @property
    def slowest_s(self) -> float:
        """Seconds of an epoch with the slowest key; 0 if nothing was measured."""
        return max(map(statistics.median_low, self._epochs.values()), default=0.0)

    @property
    def first_result_s(self) -> float | None:
        """Seconds from a trial's start to the end of its first epoch, with the slowest key; None: nothing is known."""
        return self.start_s + self.slowest_s if self._epochs or self._starts else None

    def epoch_s(self, key: PaceKey) -> float | None:
        """Seconds of an epoch with this key; if none was measured, of the slowest one. None: nothing is known."""
        return statistics.median_low(self._epochs[key]) if key in self._epochs else self.slowest_s or None


LEDGER_FOLDER = "ledger"
ENDING_S = 8.0
"""How long the end of a search takes beside its checkpoints, until it was measured: Ray's end, tables, findings."""


@dataclass(frozen=True)
class SessionTimes:
    """Seconds. The defaults hold until something was measured; few machines are faster."""

    ray_start_s: float = 6.0
    """From the first device that is held to a running Ray."""
    trial_start_s: float = 8.0
    """From there to the first step of the first trial: Ray Tune's start, the trial's processes, torch and the data."""
    ending_s: float = ENDING_S
    """From the decision to end until the last device is given back."""


def read_session_times(study: Path) -> SessionTimes:
    """What sessions of the study in this folder take, by the latest that has measured it; it need not exist yet."""
    found: dict[str, float] = {}
    # The files of jobs (``job-*.json``) begin with a letter and measure no session.
    for path in sorted(study.glob(f"{LEDGER_FOLDER}/[0-9]*.json")):
        values = read_json(path)
        for field in fields(SessionTimes):
            seconds = json_values.number_or_none(values, field.name)
            found |= {field.name: seconds} if seconds is not None and seconds >= 0 else {}
    return SessionTimes(**found)
