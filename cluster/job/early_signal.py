"""A ``--signal`` that comes long before ``--margin``. Slurm tells a job nothing of it: two starts in a row do.

Once may be a ``scancel --signal=USR1`` by hand. Twice, with as much of the time limit left, is what every start gets.
"""

from __future__ import annotations

from dataclasses import dataclass

from bigbatch.cluster.host.waits import MARGIN_S, SLURM_EARLY_S
from bigbatch.cluster.record.job_record import JobRecord

STARTS_TO_BE_SURE = 2


@dataclass(frozen=True)
class EarlySignal:
    """``left_s``: of the time limit when USR1 came. ``starts``: in a row in which it came then."""

    left_s: float
    starts: int = 1

    @property
    def sure(self) -> bool:
        """It comes in each start."""
        return self.starts >= STARTS_TO_BE_SURE

    def words(self, margin_s: float) -> str:
        """What it is, and what to write instead."""
        enough = max(margin_s, MARGIN_S)
        return (
            f"Slurm's signal came {self.left_s:.0f} s before the time limit, and trials need {enough:.0f} s to save "
            f"themselves (--margin): if that was sbatch --signal, write --signal=B:USR1@{enough:.0f}"
        )


def last_early_signal(before: JobRecord | None) -> EarlySignal | None:
    """That of the start before this one."""
    stored = before.early_signal if before is not None else None
    return EarlySignal(stored["left_s"], int(stored.get("starts", 1))) if stored and "left_s" in stored else None


def note_early_signal(
    came_at: float | None, ended_at: float, ends_at: float | None, margin_s: float, before: EarlySignal | None
) -> EarlySignal | None:
    """What this start knows of an early signal.

    Args:
        came_at: USR1, seconds since the epoch as all times here; None if it did not.
        ended_at, ends_at: when the driver was told to end, and the time limit, None without one.
        margin_s: before the limit, trials save themselves in any case.
        before: of the last start.
    """
    if ends_at is None:
        return None
    if came_at is None:  # a start that ended before the time of the signal says nothing against it
        return before if before is not None and ends_at - ended_at > before.left_s else None
    left = ends_at - came_at
    if left <= max(margin_s, MARGIN_S) + SLURM_EARLY_S:
        return None
    as_before = before is not None and abs(before.left_s - left) <= SLURM_EARLY_S
    return EarlySignal(left, before.starts + 1 if before is not None and as_before else 1)
