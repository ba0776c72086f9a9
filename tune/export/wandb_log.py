"""Log a search to Weights & Biases: one run for each trial, grouped by study. Only the driver writes."""

from __future__ import annotations

import shlex
from pathlib import Path

from bigbatch.cluster.host.optuna_journal import State
from bigbatch.train_loop.launch.wandb_run import OFFLINE_RUNS, WandbRun
from bigbatch.tune.runs.objectives import Objectives
from bigbatch.tune.runs.run import Run


class WandbObserver:
    """Writes each trial to ``wandb`` in the study's ``folder``: a run ``<study>-<number>`` of the group ``<study>``."""

    def __init__(self, mode: str, study: str, folder: Path, objectives: Objectives) -> None:
        self._mode, self._study, self._folder, self._objectives = mode, study, folder, objectives
        self._runs: dict[int, WandbRun] = {}
        self._has_begun = False

    def trial_started(self, trial: Run) -> None:
        """Open the trial's run."""
        run = self._runs[trial.number] = WandbRun(
            self._mode,
            self._folder,
            f"{self._study}-{trial.number:04d}",
            {"trial": trial.number, "parameters": trial.params, **trial.config},
            group=self._study,
            job_type="trial",
            lists_packages=not self._has_begun,
        )
        self._has_begun = True
        for record in trial.records:
            run.epoch(record)

    def epoch_ended(self, trial: Run, record: dict[str, object]) -> None:
        """Log the epoch's metrics."""
        if run := self._runs.get(trial.number):
            run.epoch(record)

    def trial_ended(self, trial: Run) -> None:
        """Close the trial's run."""
        if run := self._runs.pop(trial.number, None):
            # No values unless it finished.
            worth = zip(self._objectives.each, trial.values, strict=False)
            summary: dict[str, object] = {f"objective/{objective.text}": value for objective, value in worth}
            summary |= {"state": trial.state.name, "ended_because": trial.because}
            run.finish(summary, failed=trial.state not in (State.COMPLETE, State.PRUNED))

    def close(self) -> None:
        """Close the runs of trials that did not end."""
        for run in self._runs.values():
            run.finish({}, failed=True)
        self._runs.clear()

    def sync_command(self) -> str | None:
        """W&B's command that sends all offline runs; None if there are none."""
        if self._mode != "offline" or not any(self._folder.glob(OFFLINE_RUNS)):
            return None
        return f"wandb sync {shlex.quote(str(self._folder))}/{OFFLINE_RUNS}"
