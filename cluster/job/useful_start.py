"""Measure what a start of a job adds to its study, to know whether another start is useful or the walltime too short.

An epoch is progress. A checkpoint within an epoch, which trials write when they must end, is progress too: so a search
whose epochs are longer than its walltime continues from start to start.
"""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass
from pathlib import Path

from bigbatch.base.waits import SLURM_EARLY_S
from bigbatch.cluster.job.checks import SHORTEST_RUN_S
from bigbatch.cluster.record import study_progress

CHECKPOINTS = "checkpoints/*/latest.pt"
LONG_ENOUGH_S = 600.0
LOOK_AGAIN_S = 30.0
USUAL_START_UP_S = 60.0
"""Time until the nodes are up and trials begin."""


@dataclass(frozen=True)
class SavedWork:
    """The part of a study that is not trained again. ``checkpoints``: each with the time it was written."""

    epochs: int
    finished: int
    checkpoints: frozenset[tuple[str, int]]


def saved_work(study: Path | None) -> SavedWork | None:
    """The saved work of a study. None if it is not known: for a user's own command, or unreadable files."""
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
    """The study's checkpoints. A checkpoint is written after a step, so a new one means saved training."""
    found = []
    for path in study.glob(CHECKPOINTS):
        try:
            with path.open("rb") as file:  # open it: NFS may cache the result of stat
                found.append((path.parent.name, os.fstat(file.fileno()).st_mtime_ns))
        except FileNotFoundError:  # an ending trial replaces it at this moment
            continue
    return found


@dataclass(frozen=True)
class StartResult:
    """The progress that a start has added to its study.

    Attributes:
        useful: whether it added an epoch, a trial's end or a checkpoint. If that is not known (a user's own command), a
            run of ``LONG_ENOUGH_S`` counts as useful.
        epochs: whether it finished an epoch; also True if that is not known.
        too_short: a message about the walltime, if the search's whole time was not enough to add anything.
    """

    useful: bool
    epochs: bool = True
    too_short: str | None = None


class JobStart:
    """One start of a job, from before its nodes are started.

    Args:
        study: the study's folder; None for a user's own command.
        ends_at: when Slurm ends the job, seconds since the epoch; None: no limit.
        margin_s: trials begin to save this many seconds before the end.
    """

    def __init__(self, study: Path | None, ends_at: float | None, margin_s: float) -> None:
        self._study, self.ends_at, self._margin_s = study, ends_at, margin_s
        self._before = saved_work(study)
        self._began_at = time.time()
        self._driver_began_at = self._driver_ended_at = 0.0
        self._next_look = time.monotonic() + LOOK_AGAIN_S

    def had_work(self) -> bool:
        """Whether the study had saved work when this start began."""
        before = self._before
        return before is not None and bool(before.epochs or before.finished or before.checkpoints)

    def too_short_for_another(self) -> str | None:
        """A message if the limit was moved in this start, so that another would be refused (``checks.check_time``)."""
        whole = math.inf if self.ends_at is None else self.ends_at - self._began_at
        if whole >= self._margin_s + SHORTEST_RUN_S:
            return None
        enough = _minutes(self._margin_s + SHORTEST_RUN_S + USUAL_START_UP_S)
        return (
            f"the job's time limit is {whole:.0f} s now, too short for another start: trials save "
            f"{self._margin_s:.0f} s (--margin) before its end. Write sbatch --time={enough} or more"
        )

    def driver_begins(self) -> None:
        """Note the time at which the driver starts."""
        self._driver_began_at = time.time()

    def driver_is_to_end(self) -> None:
        """Note the time from which trials save."""
        self._driver_ended_at = time.time()

    def is_useful_by_now(self) -> bool:
        """Whether this start has already added something; looked up every ``LOOK_AGAIN_S``, else False."""
        if time.monotonic() < self._next_look:
            return False
        self._next_look = time.monotonic() + LOOK_AGAIN_S
        return self.look().useful

    def look(self) -> StartResult:
        """The progress of this start so far."""
        before, after = self._before, saved_work(self._study)
        if before is None or after is None:
            return StartResult(useful=time.time() - self._began_at >= LONG_ENOUGH_S)
        epochs = after.epochs > before.epochs
        if epochs or after.finished > before.finished or after.checkpoints - before.checkpoints:
            return StartResult(useful=True, epochs=epochs)
        return StartResult(useful=False, epochs=False, too_short=self._too_short())

    def _too_short(self) -> str | None:
        if self.ends_at is None or not self._driver_began_at:
            return None
        if self.ends_at - self._driver_ended_at > self._margin_s + SLURM_EARLY_S:
            return None  # somebody may have ended it by hand
        whole = self.ends_at - self._began_at
        had = self._driver_ended_at - self._driver_began_at
        return (
            f"no trial came to a first checkpoint in the {had:.0f} s that the search had of {whole:.0f} s: another "
            f"start would fail too. Write sbatch --time={_minutes(2 * whole)} or more"
        )


def _minutes(seconds: float) -> int:
    return math.ceil(seconds / 60)
