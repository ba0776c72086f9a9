"""Decide how long trials may take to write their checkpoints when a search ends early.

A trial looks for the stop request after each optimizer step. Between two steps there may be an epoch's end: precise
BatchNorm, validation, a checkpoint. A step of a large batch, accumulated over many micro-batches, may take minutes. If
the wait is too short, this work is lost. So the wait depends on the measured epochs of the study.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence

from bigbatch.cluster.host import json_values
from bigbatch.cluster.host.waits import AFTER_TRIALS_S, LEAST_WAIT_S, MOST_WAIT_S
from bigbatch.tune.study.tables import EPOCH_PARTS

UNMEASURED_WAIT_S = 120.0
"""Used before any epoch of the study has ended."""
SAVE_VARIABLE = "BIGBATCH_SAVE_S"
"""A job of ``cluster/`` sets this variable: how long the driver may take in all before it is killed."""

Records = Sequence[Mapping[str, object]]


def longest_gap_s(records: Records) -> float | None:
    """The longest time in seconds that a run trained without looking for a stop request; None without an epoch."""
    gaps, steps_before = [], 0
    for record in records:
        steps = sum(json_values.whole_number(record, name) for name in ("optimizer_steps", "skipped_steps"))
        taken = max(1, steps - steps_before)
        steps_before = steps
        pauses_s = sum(json_values.number(record, part) for part in EPOCH_PARTS if part != "train_s")
        gaps.append(json_values.number(record, "train_s") / taken + pauses_s)
    return max(gaps, default=None)


def stop_wait_s(live: Iterable[Records], study: Iterable[Records], env: Mapping[str, str] = os.environ) -> float:
    """Seconds that running trials may take to stop by themselves.

    Args:
        live: epoch records of each running trial. A trial without any counts as slow as the slowest in the study.
        study: epoch records of all trials.
    """
    known = [longest_gap_s(records) for records in live]
    if None in known:
        known += [longest_gap_s(records) for records in study]
    gaps = [gap for gap in known if gap is not None]
    wait = (
        2 * max(gaps) if gaps else UNMEASURED_WAIT_S
    )  # twice, because a file system or a node may be slow at that moment
    return min(max(wait, LEAST_WAIT_S), _most_s(env))


def _most_s(env: Mapping[str, str]) -> float:
    try:
        granted = float(env[SAVE_VARIABLE])
    except (KeyError, ValueError):
        return MOST_WAIT_S
    return min(MOST_WAIT_S, max(LEAST_WAIT_S, granted - AFTER_TRIALS_S))
