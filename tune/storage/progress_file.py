"""How far a study in a database is, as a small file in its folder: jobs and the queue read no database.

A study with a journal needs none: the journal says it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from bigbatch.base.atomic_files import write_json
from bigbatch.tune.runs.observer import FINISHED, TrialView, ranked

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
        self._noted: dict[int, tuple[str, int]] = {}
        self._states: Counter[str] = Counter()
        self._epochs = 0
        self._best: TrialView | None = None
        for trial in trials:
            self._note(trial)

    def trial_started(self, trial: TrialView) -> None:
        """Note the trial."""
        self._note(trial)

    def epoch_ended(self, trial: TrialView, record: Mapping[str, object]) -> None:
        """Write the progress."""
        self._note(trial)
        self._write()

    def trial_ended(self, trial: TrialView) -> None:
        """Write the progress."""
        self._note(trial)
        if trial.state in FINISHED:
            self._write()

    def _note(self, trial: TrialView) -> None:
        """Count the trial as it is now, in the place of what was noted of it. The others have not changed."""
        state, epochs = self._noted.get(trial.number, ("", 0))
        self._states.subtract([state])
        self._states.update([trial.state])
        self._epochs += len(trial.records) - epochs
        self._noted[trial.number] = (trial.state, len(trial.records))
        self._best = next(iter(ranked([one for one in (self._best, trial) if one is not None])), None)

    def _write(self) -> None:
        write_json(
            self._path,
            {
                "schema_version": SCHEMA_VERSION,
                "epochs": self._epochs,
                "complete": self._states["COMPLETE"],
                "pruned": self._states["PRUNED"],
                "failed": self._states["FAIL"],
                "best": self._best.ends[0] if self._best else None,
            },
        )
