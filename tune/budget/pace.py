"""Measured times of a study: how long an epoch takes, and how long a trial needs before its first one begins.

Epochs are measured separately for each network, global batch size, image size and part of the data. Means are kept as
sums, so a study of any length costs the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from optuna.trial import FrozenTrial

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


@dataclass
class _Mean:
    total: float = 0.0
    count: int = 0

    def add(self, value: float) -> None:
        self.total += value
        self.count += 1

    @property
    def value(self) -> float:
        return self.total / self.count


class Pace:
    """Mean seconds of epochs by key, and of start-ups."""

    def __init__(self, trials: Iterable[FrozenTrial] = (), start_s: float = 0.0) -> None:
        """``start_s``: what a start-up is taken to last before one was measured."""
        self._epochs: dict[PaceKey, _Mean] = {}
        self._starts, self._expected_s = _Mean(), start_s
        self.shortest_s: float | None = None
        """The shortest epoch that was measured; None before the first."""
        for trial in trials:
            key = pace_key(configuration(trial))
            for record in epoch_records(trial):
                self.add_epoch(key, epoch_s(record))

    def add_epoch(self, key: PaceKey, seconds: float) -> None:
        """Take in the time of one epoch."""
        if seconds > 0:
            self._epochs.setdefault(key, _Mean()).add(seconds)
            self.shortest_s = seconds if self.shortest_s is None else min(self.shortest_s, seconds)

    def add_start(self, seconds: float) -> None:
        """Take in the time from a trial's start to the beginning of its first epoch."""
        self._starts.add(max(0.0, seconds))

    @property
    def start_s(self) -> float:
        """Mean seconds of a start-up."""
        return self._starts.value if self._starts.count else self._expected_s

    def run_s(self, run: PaceRun) -> float:
        """Seconds of a whole run with its start-up; 0 if nothing was measured."""
        epoch_s = self.epoch_s(run[0])
        return 0.0 if epoch_s is None else self.start_s + run[1] * epoch_s

    @property
    def slowest_s(self) -> float:
        """Mean seconds of an epoch with the slowest key; 0 if nothing was measured."""
        return max((mean.value for mean in self._epochs.values()), default=0.0)

    def epoch_s(self, key: PaceKey) -> float | None:
        """Mean seconds of an epoch with this key. None: nothing is known.

        If none was measured: of the slowest key, and longer by what it has more images and pixels than that one.
        """
        if key in self._epochs:
            return self._epochs[key].value
        return max((mean.value * _times(other, key) for other, mean in self._epochs.items()), default=None)


def _times(measured: PaceKey, asked: PaceKey) -> float:
    """How many times more images and pixels an epoch of one key has than that of the other; at least 1."""
    found = 1.0
    # An image's pixels grow with the square of its side.
    for place, power in ((2, 2), (3, 1)):
        one, other = measured[place], asked[place]
        if isinstance(one, (int, float)) and isinstance(other, (int, float)) and one > 0:
            found *= max(1.0, (other / one) ** power)
    return found
