"""What a start of a job adds to its study: whether another start is of any use, and where the walltime is too short.

An epoch is progress, and so is a checkpoint within one, which trials write when they are told to end: a search
whose epochs are longer than its walltime goes on from start to start all the same.
"""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass
from pathlib import Path

from bigbatch.cluster.job.early_signal import SLURM_EARLY_S, EarlySignal
from bigbatch.cluster.record import study_progress

CHECKPOINTS = "checkpoints/*/latest.pt"
LONG_ENOUGH_S = 600.0
USUAL_START_UP_S = 60.0
"""Until the nodes are up and trials begin."""


@dataclass(frozen=True)
class SavedWork:
    """What of a study is not trained again. ``checkpoints``: which, and when each was written."""

    epochs: int
    finished: int
    checkpoints: frozenset[tuple[str, int]]


def saved_work(study: Path | None) -> SavedWork | None:
    """None where nobody can say: a command of the user's own, or files that cannot be read."""
    if study is None:
        return None
    try:
        trials = study_progress.read_study_progress(study)
        return SavedWork(
            study_progress.finished_epochs(study), trials.finished if trials else 0, frozenset(_checkpoints(study))
        )
    except OSError:
        return None


def _checkpoints(study: Path) -> list[tuple[str, int]]:
    """A checkpoint is written after a step, never before the first: a new one is training that stays."""
    found = []
    for path in study.glob(CHECKPOINTS):
        try:
            with path.open("rb") as file:  # opened: NFS may remember what stat said of it
                found.append((path.parent.name, os.fstat(file.fileno()).st_mtime_ns))
        except FileNotFoundError:  # a trial that ends replaces it at this moment
            continue
    return found


@dataclass(frozen=True)
class StartResult:
    """What a start has added to its study.

    Attributes:
        useful: an epoch, a trial's end or a checkpoint was added. Where nobody can say (a command of the user's own)
            a run of ``LONG_ENOUGH_S`` counts as useful.
        epochs: an epoch was finished, or nobody can say.
        too_short: what to say of the walltime if nothing was added in all of the time that it leaves a search.
    """

    useful: bool
    epochs: bool = True
    too_short: str | None = None


class JobStart:
    """One start of a job, from before its nodes are started.

    Args:
        study: None for a command of the user's own.
        ends_at: when Slurm ends the job, seconds since the epoch; None without a limit.
        margin_s: before that, trials save themselves.
    """

    def __init__(self, study: Path | None, ends_at: float | None, margin_s: float) -> None:
        self._study, self._ends_at, self._margin_s = study, ends_at, margin_s
        self._before = saved_work(study)
        self._began_at = time.time()
        self._driver_began_at = self._driver_ended_at = 0.0

    def too_short_for_an_epoch(self) -> str | None:
        """What to say before nodes are waited for, where the study knows of an epoch that would not fit."""
        longest = self._longest_epoch_s()
        if self._ends_at is None or not longest:
            return None
        left = self._ends_at - self._margin_s - self._began_at
        if longest <= left:
            return None
        enough = _minutes(longest + self._margin_s + USUAL_START_UP_S)
        return (
            f"an epoch of this study took up to {longest:.0f} s, and this start leaves trials {left:.0f} s: they go on "
            f"from checkpoints within epochs. With sbatch --time={enough} or more an epoch fits."
        )

    def driver_begins(self) -> None:
        self._driver_began_at = time.time()

    def driver_is_to_end(self) -> None:
        """From here on trials save themselves."""
        self._driver_ended_at = time.time()

    def look(self, early: EarlySignal | None = None) -> StartResult:
        """What this start has added so far. ``early``: Slurm's signal, where it came long before the margin."""
        before, after = self._before, saved_work(self._study)
        if before is None or after is None:
            return StartResult(useful=time.time() - self._began_at >= LONG_ENOUGH_S)
        epochs = after.epochs > before.epochs
        if epochs or after.finished > before.finished or after.checkpoints - before.checkpoints:
            return StartResult(useful=True, epochs=epochs)
        return StartResult(useful=False, epochs=False, too_short=self._too_short(early))

    def _too_short(self, early: EarlySignal | None) -> str | None:
        if self._ends_at is None or not self._driver_began_at:
            return None
        each_start = early is not None and early.sure
        if self._ends_at - self._driver_ended_at > self._margin_s + SLURM_EARLY_S and not each_start:
            return None  # told to end by hand, for all that is known
        whole = self._ends_at - self._began_at
        had = self._driver_ended_at - self._driver_began_at
        needed = max(2 * whole, whole - had + self._longest_epoch_s())
        return (
            f"no trial came to a first checkpoint in the {had:.0f} s that the search had of {whole:.0f} s: another "
            f"start would not either. Write sbatch --time={_minutes(needed)} or more"
            + (f". {early.words(self._margin_s)}" if early is not None and each_start else "")
        )

    def _longest_epoch_s(self) -> float:
        """0 where none was measured."""
        return (study_progress.longest_epoch_s(self._study) if self._study else None) or 0.0


def _minutes(seconds: float) -> int:
    return math.ceil(seconds / 60)
