"""What a search tells those who watch it: the display, W&B, tests."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from bigbatch.train_loop.config import TrainConfig
from bigbatch.train_loop.progress import Steps

Phase = Literal["waiting", "starting", "running"]


@dataclass
class TrialView:
    """A trial as it stands. ``state`` is Optuna's: RUNNING, COMPLETE, PRUNED, FAIL, WAITING."""

    number: int
    params: dict[str, Any]
    config: TrainConfig | None
    """None where the space gave no valid one: then the trial has failed before it began."""
    state: str = "RUNNING"
    records: list[dict[str, Any]] = field(default_factory=list)
    """Epoch records, oldest first (bigbatch.train_loop.reporter.EpochRecord)."""
    ended_because: str | None = None
    started_at: float = field(default_factory=time.time)
    """Seconds since the epoch."""
    resumed: bool = False
    retries: int | None = None
    """The failed trial that this one tries again."""
    retried_by: int | None = None
    """The trial that tries this failed one again: then this one counts no more."""
    phase: Phase = "running"
    """Of a trial in state RUNNING: ``waiting`` for resources, ``starting`` its workers, or ``running``."""
    asks: str = ""
    """What its workers need together, e.g. ``4 CPUs``."""
    steps: Steps | None = None
    """Where it is within an epoch, by the last word of its worker."""

    @property
    def epochs(self) -> int:
        """How many it is to train; 0 without a configuration."""
        return self.config.epochs if self.config is not None else 0

    @property
    def epoch(self) -> int:
        return int(self.records[-1]["epoch"]) if self.records else 0

    @property
    def value(self) -> float | None:
        """Validation top-1 after the last epoch, 0 to 1."""
        return float(self.records[-1]["val_top1"]) if self.records else None


class Observer(Protocol):
    """Called by the driver, in its thread, one call at a time.

    Three more are called where an observer has them: ``trial_planned(trial)`` once it has its configuration,
    ``trial_waiting(trial)`` where there is no room for it yet, ``steps_done(trial)`` as ``trial.steps`` moves on.
    One that shows lines has ``search_said(text)`` too: what belongs to no trial.
    """

    def trial_started(self, trial: TrialView) -> None:
        """Its first worker runs. A trial that could not begin has no such call."""

    def epoch_ended(self, trial: TrialView, record: dict[str, Any]) -> None: ...

    def trial_ended(self, trial: TrialView) -> None: ...
