"""The energy of a study: what its trials' records have measured, and its driver's machine.

Nothing is estimated. What was not measured makes a sum None or is said with it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from bigbatch.base import json_values
from bigbatch.train_loop.host.device_use import ProcessorEnergy

GPU, PROCESSORS = "gpu_energy_j", "cpu_energy_j"
"""Fields of an epoch's record."""
J_PER_KWH = 3.6e6


@dataclass
class StudyEnergy:
    """Joules, of one session of a driver or of several."""

    trials_gpu_j: dict[int, float] = field(default_factory=dict)
    """By trial: its workers' GPUs, in the epochs that measured them."""
    epochs: int = 0
    epochs_measured: int = 0
    """Epochs whose record has the energy of the GPUs."""
    processors_j: float | None = 0.0
    """The processors of the driver's machine while the session held devices, whoever used them. None: not measured."""

    def epoch_ended(self, trial: int, record: Mapping[str, object]) -> None:
        """Count an epoch's record."""
        joules = json_values.number_or_none(record, GPU)
        self.epochs += 1
        if joules is not None:
            self.epochs_measured += 1
            self.trials_gpu_j[trial] = self.trials_gpu_j.get(trial, 0.0) + joules

    def add(self, other: StudyEnergy) -> None:
        """Add the energy of ``other`` to this."""
        for number, joules in other.trials_gpu_j.items():
            self.trials_gpu_j[number] = self.trials_gpu_j.get(number, 0.0) + joules
        self.epochs += other.epochs
        self.epochs_measured += other.epochs_measured
        known = self.processors_j is not None and other.processors_j is not None
        self.processors_j = (self.processors_j or 0.0) + (other.processors_j or 0.0) if known else None

    def words(self) -> str:
        """E.g. ``energy: 1.23 kWh of its trials' GPUs``; or that it was not measured."""
        parts = []
        if self.epochs_measured:
            of = "" if self.epochs_measured == self.epochs else f" in {self.epochs_measured} of {self.epochs} epochs"
            parts.append(f"{sum(self.trials_gpu_j.values()) / J_PER_KWH:.3g} kWh of its trials' GPUs{of}")
        if self.processors_j:
            parts.append(f"{self.processors_j / J_PER_KWH:.3g} kWh of this machine's processors, whoever used them")
        return f"energy: {', '.join(parts) or 'not measured'}"

    def to_dict(self) -> dict[str, object]:
        """As a ledger's file holds it."""
        return {
            "trials_gpu_j": {str(number): round(joules, 3) for number, joules in self.trials_gpu_j.items()},
            "epochs": self.epochs,
            "epochs_measured": self.epochs_measured,
            "processors_j": None if self.processors_j is None else round(self.processors_j, 3),
        }

    @classmethod
    def from_dict(cls, values: object) -> StudyEnergy:
        """Inverse of ``to_dict``. What a session before this version used is not known: None."""
        if not isinstance(values, dict):
            return cls(processors_j=None)
        trials = values.get("trials_gpu_j")
        return cls(
            {int(number): float(joules) for number, joules in trials.items()} if isinstance(trials, dict) else {},
            json_values.whole_number(values, "epochs"),
            json_values.whole_number(values, "epochs_measured"),
            json_values.number_or_none(values, "processors_j"),
        )


class ProcessorsMeter:
    """Joules of this machine's processors since ``begin``. Ask every minute or so: their counters begin again at 0."""

    def __init__(self, processors: ProcessorEnergy | None) -> None:
        self._processors, self._began_j = processors, 0.0

    def begin(self) -> None:
        """Count from now on."""
        if self._processors is not None:
            self._began_j = self._processors.joules()

    def used_j(self) -> float | None:
        """Joules so far; None if they cannot be measured."""
        joules = math.nan if self._processors is None else self._processors.joules() - self._began_j
        return None if math.isnan(joules) else joules


def energy_of(name: str, records: Iterable[Mapping[str, object]]) -> float | None:
    """The sum of GPU or PROCESSORS over a trial's records; None if there is none, or one did not measure it."""
    joules = [json_values.number_or_none(record, name) for record in records]
    measured = [value for value in joules if value is not None]
    return sum(measured) if joules and len(measured) == len(joules) else None
