"""The gauges of a search: each trial's last epoch, and how far the study is."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

from bigbatch.cluster.host import json_values
from bigbatch.train_loop.launch import gauges
from bigbatch.train_loop.launch.gauges import GaugeBoard, GaugeKind
from bigbatch.tune.study.objective import Objective
from bigbatch.tune.watch.observer import TrialView

OF_RECORD: dict[GaugeKind, str] = {
    gauges.TRAIN_LOSS: "train_loss",
    gauges.LEARNING_RATE: "learning_rate",
    gauges.IMAGES: "images_per_s",
    gauges.NOISE_SCALE: "noise_scale",
}
"""Gauge → the field of the epoch's record that it shows."""
STATES = ("waiting", "starting", "running", "complete", "pruned", "paused", "failed", "interrupted")
"""All of them are shown from the start on, also those that no trial is in."""
OF_ENDED = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed", "WAITING": "interrupted"}


def state_of(trial: TrialView) -> str:
    """A trial's state, as one of STATES."""
    if trial.state == "RUNNING":
        return trial.phase
    return "paused" if trial.paused else OF_ENDED[trial.state]


class StudyGauges:
    """An observer that sets the gauges which need the study. The workers of a trial set the others.

    A trial that another one repeats or continues counts no more, as in all tables.

    Args:
        trials: those that the study has when the search begins.
    """

    def __init__(self, board: GaugeBoard, study: str, objective: Objective, trials: Iterable[TrialView]) -> None:
        self._board, self._study, self._objective = board, study, objective
        self._ended: dict[int, str] = {}
        self._live: dict[int, TrialView] = {}
        self._best = math.nan
        for trial in trials:
            if not trial.is_replaced:
                self._note_end(trial)

    def look(self) -> None:
        """Count the trials by state. Another thread may call it than the one of the events."""
        counts = Counter(list(self._ended.values()))
        counts.update(state_of(trial) for trial in list(self._live.values()))
        for state in STATES:
            self._board.set(gauges.TRIALS, counts[state], study=self._study, state=state)

    def trial_planned(self, trial: TrialView) -> None:
        """The trial has its configuration."""
        self._begin(trial)

    def trial_waiting(self, trial: TrialView) -> None:
        """No resources are free for the trial."""
        self._begin(trial)

    def trial_started(self, trial: TrialView) -> None:
        """The trial's first worker runs."""
        self._begin(trial)
        if trial.records:
            self.epoch_ended(trial, trial.records[-1])

    def epoch_ended(self, trial: TrialView, record: dict[str, object]) -> None:
        """Show the epoch's record."""
        tags = {"study": self._study, "trial": trial.number}
        for kind, name in OF_RECORD.items():
            self._board.set(kind, json_values.number_or_none(record, name), **tags)
        train_s = json_values.number(record, "train_s")
        waited = json_values.number(record, "data_s") / train_s if train_s else None
        self._board.set(gauges.DATA_WAIT, waited, **tags)
        shown = self._objective.shown
        self._board.set(gauges.OBJECTIVE, shown.value(record), metric=shown.name, **tags)

    def trial_ended(self, trial: TrialView) -> None:
        """Count it, and let its own series go a while later."""
        self._live.pop(trial.number, None)
        self._note_end(trial)
        self._board.end(study=self._study, trial=trial.number)

    def _begin(self, trial: TrialView) -> None:
        self._ended.pop(trial.number, None)
        for replaced in (trial.retries, trial.continues):
            if replaced is not None:
                self._ended.pop(replaced, None)
        self._live[trial.number] = trial

    def _note_end(self, trial: TrialView) -> None:
        self._ended[trial.number] = "interrupted" if trial.state == "RUNNING" else state_of(trial)
        if trial.state != "COMPLETE" or trial.confirms is not None:
            return
        value = trial.ends[0] if trial.ends else math.nan
        if not math.isnan(value) and (math.isnan(self._best) or self._objective.is_better(value, self._best)):
            self._best = value
            self._board.set(gauges.BEST, value, study=self._study, metric=self._objective.text)
