"""How far a study in a database is, as a small file in its folder: jobs and the queue read no database.

A study with a journal needs none: the journal says it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from bigbatch.cluster.host.atomic_files import write_json
from bigbatch.tune.study.tables import epoch_s
from bigbatch.tune.watch.observer import TrialView, ranked
from bigbatch.tune.watch.views import FINISHED

SCHEMA_VERSION = 1
PROGRESS_FILE = "progress.json"
"""In the study's folder; ``bigbatch.cluster.record.study_progress`` reads it."""


class ProgressFileWriter:
    """An observer that writes ``progress.json`` after each epoch, and after each trial that is over.

    It is not written when a search begins: a file that has changed means that something was trained.

    Args:
        trials: those that the study has.
    """

    def __init__(self, folder: Path, trials: Iterable[TrialView]) -> None:
        self._path = folder / PROGRESS_FILE
        self._trials = {trial.number: trial for trial in trials}

    def trial_started(self, trial: TrialView) -> None:
        """Write the progress."""
        self._trials[trial.number] = trial

    def epoch_ended(self, trial: TrialView, record: Mapping[str, object]) -> None:
        """Write the progress."""
        self._trials[trial.number] = trial
        self._write()

    def trial_ended(self, trial: TrialView) -> None:
        """Write the progress."""
        self._trials[trial.number] = trial
        if trial.state in FINISHED:
            self._write()

    def _write(self) -> None:
        trials = self._trials.values()
        states = [trial.state for trial in trials]
        epochs = [record for trial in trials for record in trial.records]
        best = next(iter(ranked(trials)), None)
        write_json(
            self._path,
            {
                "schema_version": SCHEMA_VERSION,
                "epochs": len(epochs),
                "longest_epoch_s": max(map(epoch_s, epochs), default=None),
                "complete": states.count("COMPLETE"),
                "pruned": states.count("PRUNED"),
                "failed": states.count("FAIL"),
                "running": states.count("RUNNING"),
                "waiting": states.count("WAITING"),
                "best": best.ends[0] if best else None,
            },
        )
