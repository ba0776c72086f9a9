"""The energy of trials and studies: what their epochs' records have measured. Nothing is estimated."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from bigbatch.base import json_values
from bigbatch.tune.runs.run import AnyTrial, epoch_records, replaced_trials

GPU = "gpu_energy_j"
"""The field of an epoch's record."""
J_PER_KWH = 3.6e6


def energy_in_words(trials: Sequence[AnyTrial]) -> str:
    """E.g. ``1.23 kWh of its trials' GPUs``; or that it was not measured.

    A trial that another one continues or repeats is not counted: that one has its epochs.
    """
    again = replaced_trials(trials)
    records = [record for trial in trials if trial.number not in again for record in epoch_records(trial)]
    measured = [joules for record in records if (joules := json_values.number_or_none(record, GPU)) is not None]
    if not measured:
        return "not measured"
    of = "" if len(measured) == len(records) else f" in {len(measured)} of {len(records)} epochs"
    return f"{sum(measured) / J_PER_KWH:.3g} kWh of its trials' GPUs{of}"


def energy_of(records: Iterable[Mapping[str, object]]) -> float | None:
    """Joules of a trial's GPUs in all its records; None if there is none, or one did not measure them."""
    joules = [json_values.number_or_none(record, GPU) for record in records]
    measured = [value for value in joules if value is not None]
    return sum(measured) if joules and len(measured) == len(joules) else None
