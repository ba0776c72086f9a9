"""Detect a ``--signal`` that comes long before ``--margin``. Slurm does not tell a job about it; two starts in a
row do.

One signal may be a ``scancel --signal=USR1`` by hand. If it comes twice at the same time, every start will get it.
"""

from __future__ import annotations

from dataclasses import dataclass

from bigbatch.base.waits import MARGIN_S, SLURM_EARLY_S
from bigbatch.cluster.record.job_record import JobRecord

STARTS_TO_BE_SURE = 2


@dataclass(frozen=True)
class EarlySignal:
    """``left_s``: seconds before the time limit when USR1 came. ``starts``: how many starts in a row got it then."""

    left_s: float
    starts: int = 1

    @property
    def sure(self) -> bool:
        """Whether it comes in every start."""
        return self.starts >= STARTS_TO_BE_SURE

    def words(self, margin_s: float) -> str:
        """The cause and the fix, in words."""
        enough = max(margin_s, MARGIN_S)
        return (
            f"Slurm's signal came {self.left_s:.0f} s before the time limit, and trials need {enough:.0f} s to save "
            f"themselves (--margin): if that was sbatch --signal, write --signal=B:USR1@{enough:.0f}"
        )


def last_early_signal(before: JobRecord | None) -> EarlySignal | None:
    """The early signal of the previous start."""
    stored = before.early_signal if before is not None else None
    return EarlySignal(stored["left_s"], int(stored.get("starts", 1))) if stored and "left_s" in stored else None


def note_early_signal(
    came_at: float | None, ended_at: float, ends_at: float | None, margin_s: float, before: EarlySignal | None
) -> EarlySignal | None:
    """The early signal as it is known after this start. All times are seconds since the epoch.

    Args:
        came_at: when USR1 came; None: it did not come.
        ended_at, ends_at: when the driver was told to end, and the time limit (None: no limit).
        margin_s: trials save this many seconds before the limit in any case.
        before: the early signal of the last start.
    """
    if ends_at is None:
        return None
    if came_at is None:  # a start that ended before the signal's time proves nothing
        return before if before is not None and ends_at - ended_at > before.left_s else None
    left = ends_at - came_at
    if left <= max(margin_s, MARGIN_S) + SLURM_EARLY_S:
        return None
    as_before = before is not None and abs(before.left_s - left) <= SLURM_EARLY_S
    return EarlySignal(left, before.starts + 1 if before is not None and as_before else 1)
