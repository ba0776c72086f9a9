"""The energy of a study: what its trials' records have measured.

Nothing is estimated. What was not measured makes a sum None or is said with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from bigbatch.base import json_values

GPU = "gpu_energy_j"
"""The field of an epoch's record."""
J_PER_KWH = 3.6e6


@dataclass
class StudyEnergy:
    """Joules, of one session of a driver or of several."""

    trials_gpu_j: dict[int, float] = field(default_factory=dict)
    """By trial: its workers' GPUs, in the epochs that measured them."""
    epochs: int = 0
    epochs_measured: int = 0
    """Epochs whose record has the energy of the GPUs."""

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

    def words(self) -> str:
        """E.g. ``1.23 kWh of its trials' GPUs``; or that it was not measured."""
        if not self.epochs_measured:
            return "not measured"
        of = "" if self.epochs_measured == self.epochs else f" in {self.epochs_measured} of {self.epochs} epochs"
        return f"{sum(self.trials_gpu_j.values()) / J_PER_KWH:.3g} kWh of its trials' GPUs{of}"

    def to_dict(self) -> dict[str, object]:
        """As a ledger's file holds it."""
        return {
            "trials_gpu_j": {str(number): round(joules, 3) for number, joules in self.trials_gpu_j.items()},
            "epochs": self.epochs,
            "epochs_measured": self.epochs_measured,
        }

    @classmethod
    def from_dict(cls, values: object) -> StudyEnergy:
        """Inverse of ``to_dict``; nothing for what is no such dict."""
        if not isinstance(values, dict):
            return cls()
        trials = values.get("trials_gpu_j")
        return cls(
            {int(number): float(joules) for number, joules in trials.items()} if isinstance(trials, dict) else {},
            json_values.whole_number(values, "epochs"),
            json_values.whole_number(values, "epochs_measured"),
        )


def energy_of(records: Iterable[Mapping[str, object]]) -> float | None:
    """Joules of a trial's GPUs in all its records; None if there is none, or one did not measure them."""
    joules = [json_values.number_or_none(record, GPU) for record in records]
    measured = [value for value in joules if value is not None]
    return sum(measured) if joules and len(measured) == len(joules) else None
