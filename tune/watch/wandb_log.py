"""Log to Weights & Biases: one run for each trial, grouped by study. Only the driver writes.

Offline mode never needs a network: it writes the runs to the study's folder. One command sends them later from a
machine that has a network.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bigbatch.cluster.host import json_values
from bigbatch.cluster.host.allocation import slurm_job
from bigbatch.train_loop.launch.histogram_lines import histograms_file, read_histograms
from bigbatch.train_loop.progress import StepRecord, StepsReader, steps_file
from bigbatch.train_loop.reporter import EpochRecord
from bigbatch.tune.study import metrics
from bigbatch.tune.study.tables import epoch_of
from bigbatch.tune.watch.observer import TrialView

FLUSH, FLUSH_S = "x_transaction_log_flush_interval", 1.0
"""wandb writes an offline file at least this often. By its own 15 s a killed search would lose more."""
REQUIREMENTS = "x_save_requirements"
"""wandb would list all installed packages for each run. The list of a search's first run is that of all."""
STEP_METRICS = ("train_loss", "train_top1", "learning_rate", "images_per_s")
METRICS = tuple(name for name, column in EpochRecord.columns().items() if column.tracked)


class WandbObserver:
    """Writes each trial to ``folder`` (named ``wandb``) as a run ``<study>-<number>`` of the group ``<study>``.

    ``logs``: the log file of a trial, beside which its worker may write histograms and logged steps; None: it does not.
    A run with logged steps counts W&B's steps in optimizer steps, any other one in epochs.
    """

    def __init__(
        self,
        mode: str,
        study: str,
        folder: Path,
        project: str = "bigbatch",
        logs: Callable[[int], Path] | None = None,
    ) -> None:
        os.environ.setdefault("WANDB_SILENT", "true")
        os.environ.setdefault("WANDB_CONSOLE", "off")
        import wandb

        self._wandb, self._mode, self._study, self._project = wandb, mode, study, project
        # Older versions write at a pace of their own.
        self._settings: dict[str, Any] = {FLUSH: FLUSH_S} if FLUSH in wandb.Settings.model_fields else {}
        self._folder, self._logs = folder, logs
        job = slurm_job()
        self._job = {} if job is None else {"slurm_job_id": job.job_id, "slurm_restart_count": job.restart_count}
        self._runs: dict[int, wandb.Run] = {}
        self._steps: dict[int, LoggedSteps] = {}
        folder.mkdir(parents=True, exist_ok=True)

    def trial_started(self, trial: TrialView) -> None:
        """Open the trial's run."""
        self._runs[trial.number] = self._wandb.init(
            mode=self._mode,  # type: ignore[arg-type]
            project=os.environ.get("WANDB_PROJECT", self._project),
            group=self._study,
            name=f"{self._study}-{trial.number:04d}",
            id=f"{self._study}-{trial.number:04d}",
            resume="allow" if self._mode == "online" else None,
            dir=str(self._folder.parent),  # W&B adds the folder's own name
            job_type="trial",
            config={
                "trial": trial.number,
                "parameters": trial.params,
                **self._job,
                **(trial.config.to_dict() if trial.config else {}),
            },
            reinit="create_new",
            settings=self._wandb.Settings(
                silent=True, console="off", x_disable_stats=True, disable_git=True, disable_code=True, **self._settings
            ),
        )  # fmt: skip
        if self._logs is not None:
            self._steps[trial.number] = LoggedSteps(self._runs[trial.number], steps_file(self._logs(trial.number)))
        if REQUIREMENTS in self._wandb.Settings.model_fields:
            self._settings[REQUIREMENTS] = False
        if self._mode == "offline":  # a trial that goes on has a new file, which takes the place of the earlier one
            for record in trial.records:
                self.epoch_ended(trial, record)

    def steps_done(self, trial: TrialView) -> None:
        """Log the steps of the epoch that runs. Those of a later one wait until this one's metrics are logged."""
        if trial.number in self._steps:
            self._steps[trial.number].log_until(len(trial.records) + 1)

    def epoch_ended(self, trial: TrialView, record: dict[str, object]) -> None:
        """Log the epoch's metrics."""
        run = self._runs.get(trial.number)
        if run is not None:
            values = {"epoch": record["epoch"], **{k: record[k] for k in METRICS if k in record}}
            values |= json_values.mapping(record, metrics.OWN)
            values |= self._histograms(trial.number, epoch_of(record))
            steps = self._steps.get(trial.number)
            number = steps.number_after(record) if steps else record["epoch"]
            run.log(values, step=number, commit=True)  # else it is written when the next epoch ends

    def _histograms(self, number: int, epoch: int) -> dict[str, object]:
        """Under the names of ``wandb.watch``, which W&B's pages show in sections of their own."""
        if self._logs is None:
            return {}
        import numpy as np

        found = read_histograms(histograms_file(self._logs(number)), epoch)
        return {
            name: self._wandb.Histogram(np_histogram=(counts, np.linspace(low, high, len(counts) + 1)))
            for name, (low, high, counts) in found.items()
        }

    def trial_ended(self, trial: TrialView) -> None:
        """Close the trial's run."""
        run, _ = self._runs.pop(trial.number, None), self._steps.pop(trial.number, None)
        if run is not None:
            run.summary["state"] = trial.state
            run.summary["ended_because"] = trial.ended_because
            for objective, value in zip(trial.objectives.each, trial.values, strict=False):  # none unless it finished
                run.summary[f"objective/{objective.text}"] = value
            run.finish(exit_code=0 if trial.state in ("COMPLETE", "PRUNED") else 1)

    def close(self) -> None:
        """Close the runs of trials that did not end."""
        for run in self._runs.values():
            run.finish(exit_code=1)
        self._runs.clear()

    def sync_command(self) -> str | None:
        """The command that sends all offline runs; None if there are none."""
        if self._mode != "offline" or not list(self._folder.glob("offline-run-*")):
            return None
        return f"wandb sync {shlex.quote(str(self._folder))}/offline-run-*"


class LoggedSteps:
    """The logged steps of a trial, as ``step/train_loss`` and so on, each once in the trial's run.

    W&B takes no step below one that it has. So a run on the server that goes on gets only what came after its last one.
    """

    def __init__(self, run: Any, path: Path) -> None:
        self._run, self._path, self._reader = run, path, StepsReader(path)
        self._waiting: list[StepRecord] = []
        self._first = int(run.step)  # the next one, of a run that goes on

    def log_until(self, epoch: int) -> None:
        """Log the steps up to the end of ``epoch``."""
        self._waiting += self._reader.new()
        due = [one for one in self._waiting if one.epoch <= epoch]
        self._waiting = self._waiting[len(due) :]
        for one in due:
            if one.number >= self._first:
                values = {f"step/{name}": getattr(one, name) for name in STEP_METRICS}
                # The last step of an epoch is logged together with the epoch.
                self._run.log(values, step=one.number, commit=one.step < one.steps)

    def number_after(self, record: dict[str, object]) -> int:
        """Log the steps of a finished epoch. Returns W&B's step for its metrics."""
        self.log_until(json_values.whole_number(record, "epoch"))
        if not self._path.exists():
            return json_values.whole_number(record, "epoch")
        return sum(json_values.whole_number(record, name) for name in ("optimizer_steps", "skipped_steps"))
