"""What a session of a search takes beside its training: Ray's start, the first trial's start, and the end.

Each session writes what it has measured to its file in the ledger. A budget keeps room for these times, so the next
session reads them: those of its own study, else of the latest ones in the studies beside it, by the same host. The
median counts, so that one session on a busy machine decides nothing.
"""

from __future__ import annotations

import contextlib
import os
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from bigbatch.base import json_values
from bigbatch.base.atomic_files import read_json

LEDGER_FOLDER = "ledger"
ENDING_S = 8.0
"""How long the end of a search takes beside its checkpoints, until it was measured: Ray's end, tables, findings."""
MOST_READ = 20
"""Sessions of other studies that are read, the latest ones."""
MOST_COUNTED = 5
"""Values of which the median is taken, the latest ones."""


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
    """What sessions of the study in this folder take; it need not exist yet."""
    # Files of jobs that lend nodes, or that bill after their driver, begin with a letter and measure no session.
    own = sorted(study.glob(f"{LEDGER_FOLDER}/[0-9]*.json"), reverse=True)
    found = _measured(read_json(path) for path in own)
    names = [field.name for field in fields(SessionTimes)]
    if any(name not in found for name in names):
        others = (read_json(path) for path in _latest(study.parent) if path not in own)
        found = _measured(one for one in others if one.get("host") == os.uname().nodename) | found
    return SessionTimes(**found)


def _measured(sessions: Iterable[Mapping[str, object]]) -> dict[str, float]:
    """Of each time that was measured the median of the latest values. ``sessions``: the latest first."""
    values: dict[str, list[float]] = {}
    for session in sessions:
        for field in fields(SessionTimes):
            seconds = json_values.number_or_none(session, field.name)
            if seconds is not None and seconds >= 0:
                values.setdefault(field.name, []).append(seconds)
    return {name: statistics.median(found[:MOST_COUNTED]) for name, found in values.items()}


def _latest(output: Path) -> list[Path]:
    """The files of the latest sessions in a folder of studies."""
    changed: list[tuple[float, Path]] = []
    for path in output.glob(f"*/{LEDGER_FOLDER}/[0-9]*.json"):
        with contextlib.suppress(OSError):
            changed.append((path.stat().st_mtime, path))
    return [path for _, path in sorted(changed, reverse=True)[:MOST_READ]]
