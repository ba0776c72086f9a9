"""What Ray Tune calls while a search runs: a scheduler, a stopper and callbacks that hand everything to the bridge."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ray.tune import Callback
from ray.tune.progress_reporter import TrialProgressCallback
from ray.tune.schedulers import FIFOScheduler, TrialScheduler
from ray.tune.stopper import Stopper

from tune.bridge import OptunaBridge

STOP_WAIT_S = 10.0
"""How long trials may take to write their checkpoints when a search ends early."""


class PrunerScheduler(FIFOScheduler):
    """Stops trials when the bridge, that is Optuna's pruner, says so."""

    def __init__(self, bridge: OptunaBridge) -> None:
        super().__init__()
        self._bridge = bridge

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        stop = self._bridge.observe(trial.trial_id, result)
        return TrialScheduler.STOP if stop else TrialScheduler.CONTINUE

    def __getstate__(self) -> dict[str, Any]:
        return {}


class StopWhen(Stopper):
    """Ends the whole search once ``over()`` says so; trials that run then count as interrupted.

    They are first asked to stop by themselves, by ``stop_file``: so they write a checkpoint. After
    ``STOP_WAIT_S`` they are stopped.
    """

    def __init__(self, bridge: OptunaBridge, over: Callable[[], bool], stop_file: Path) -> None:
        self._bridge, self._over, self._stop_file = bridge, over, stop_file
        self._asked_at: float | None = None

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        if self._asked_at is None and self._over():
            self._bridge.stopping = True
            self._stop_file.touch()
            self._asked_at = time.monotonic()
        waited = time.monotonic() - self._asked_at if self._asked_at is not None else 0.0
        return self._asked_at is not None and (waited > STOP_WAIT_S or not self._bridge.live)

    def __getstate__(self) -> dict[str, Any]:
        return {}


class NoEmptyFolders(Callback):
    """Removes the folder that Tune makes of each trial, and leaves empty, when it has ended.

    With its experiment state Tune copies all of them to the study's folder: one more inode a trial, until the end.
    """

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        if trial.local_path:
            with contextlib.suppress(OSError):  # it is not there, or not empty
                os.rmdir(trial.local_path)


class Silence(TrialProgressCallback):
    """Tune adds its own, which prints of trials that end without a last result also where verbose is 0."""

    def _print(self, msg: str) -> None:
        pass

    def log_result(self, *_: Any, **__: Any) -> None:
        pass
