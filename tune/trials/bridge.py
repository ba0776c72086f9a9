"""Connect Ray Tune with Optuna: a ``Searcher`` that hands Tune the trials of a ``TrialManager``.

Ray's own ``OptunaSearch`` leaves crashed and NaN trials RUNNING, tells stopped trials as COMPLETE with a cut-off
value, and loses its state with the driver. Here the study is the only memory, and only the manager writes to it. Tune
starts and ends the trials' processes. See docs/decisions/001 and 024.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ray.tune.search import Searcher

from bigbatch.base import json_values
from bigbatch.train_loop.config import TrainConfig
from bigbatch.train_loop.errors import FailureKind, read_kind
from bigbatch.train_loop.launch.ray_worker import FAILURE, FAILURE_KIND, HALVINGS, NODES, RECORDS, RESTARTED
from bigbatch.train_loop.launch.trial_task import TrialTask
from bigbatch.train_loop.launch.worker_lines import NOTES
from bigbatch.train_loop.loop.oom_retry import Halving, config_after_oom
from bigbatch.tune.models.protocol import TrialDecision
from bigbatch.tune.runs.run import HALVINGS_ATTR, devices_of
from bigbatch.tune.trials.live_trial import LiveTrial, Over
from bigbatch.tune.trials.trial_manager import TrialManager


class OptunaBridge(TrialManager, Searcher):
    """A manager that Ray Tune calls as its ``Searcher``.

    Args:
        room: whether another trial fits beside trials that hold so many devices each.
        make_task: what the processes of trial number n are handed, with its configuration.

    All others are those of ``TrialManager``.
    """

    def __init__(
        self,
        *arguments: Any,
        room: Callable[[list[float]], bool],
        make_task: Callable[[int, TrainConfig], TrialTask],
        **more: Any,
    ) -> None:
        # Each by itself: Ray's Searcher does not call the next class's.
        Searcher.__init__(self)
        TrialManager.__init__(self, *arguments, **more)
        self._room, self._make_task = room, make_task
        self._warned_of: set[str] = set()
        self._pause_files: dict[str, Path] = {}

    def suggest(self, trial_id: str) -> dict[str, object] | str | None:
        """The next trial for Tune; None while no trial fits or none is due; FINISHED when no more are needed."""
        try:
            live = self.next_trial(trial_id, lambda: self._room([devices_of(live) for live in self._live.values()]))
        except Over:
            return Searcher.FINISHED
        return None if live is None else self._task(trial_id, live)

    def _task(self, trial_id: str, live: LiveTrial) -> dict[str, object]:
        """What the trial's processes are handed."""
        task = replace(self._make_task(live.number, live.train_config), avoided=tuple(sorted(self._avoided())))
        self._pause_files[trial_id] = task.pause_file
        self._remove_pause_file(trial_id)  # of a driver that was killed
        live.works = False
        self._notify("trial_planned", live)
        return task.to_dict()

    def observe(self, trial_id: str, result: dict[str, object]) -> bool:
        """Take in a trial's report. Returns whether Tune should stop the trial.

        A paused trial is not stopped by Tune: its processes end by themselves, after they have written a checkpoint.
        """
        live = self._live.get(trial_id)
        if live is None:
            return True
        for text in json_values.texts(result, NOTES):
            if text not in self._warned_of:  # each warning once; the live table moves down to make room for it
                self._warned_of.add(text)
                print(f"warning: trial {live.number}: {text}", file=sys.stderr, flush=True)
        if line := note_oom_retries(live, json_values.objects(result, HALVINGS)):
            self.say(line)
        if why := result.get(RESTARTED):
            self.say(f"trial {live.number} starts its workers again, from its last checkpoint if it has one: {why}")
        nodes = {str(node["node_id"]): str(node["host"]) for node in json_values.objects(result, NODES)}
        for record in json_values.objects(result, RECORDS):
            decision = self.take_in(trial_id, record, nodes)
            if decision == TrialDecision.STOP:
                return True
            if decision == TrialDecision.PAUSE:
                with contextlib.suppress(OSError):  # without the file, the trial runs on to its end
                    self._pause_files[trial_id].touch()
        if result.get(FAILURE):
            kind = read_kind(result.get(FAILURE_KIND)) or FailureKind.PROCESS
            self.fail(trial_id, str(result[FAILURE]), kind, nodes)
            return True
        return False

    def on_trial_result(self, trial_id: str, result: dict[str, object]) -> None:
        """Do nothing: the scheduler hands results to ``observe``, which may stop the trial."""

    def on_trial_complete(self, trial_id: str, result: dict[str, object] | None = None, error: bool = False) -> None:
        """Ray has finished with a trial. A trial whose end the study has is no longer live."""
        self._remove_pause_file(trial_id)
        if error:
            self.fail(trial_id, "a process of the trial died, again after a restart")
        else:
            self.ended(trial_id)

    def _remove_pause_file(self, trial_id: str) -> None:
        if trial_id in self._pause_files:
            with contextlib.suppress(OSError):
                self._pause_files[trial_id].unlink(missing_ok=True)

    def save(self, checkpoint_path: str) -> None:
        """Do nothing: the study holds everything."""
        with open(checkpoint_path, "w"):
            pass

    def restore(self, checkpoint_path: str) -> None:
        """Do nothing: the study holds everything."""

    def __getstate__(self) -> dict[str, object]:
        return {}  # Tune pickles its searcher for a restore that this project never uses


def note_oom_retries(live: LiveTrial, reported: Sequence[Mapping[str, object]]) -> str:
    """Write the halvings that a trial reports to the study, with the micro-batch that fitted in its configuration.

    Returns a line for the user; "" if the study knows all of them. A resumed trial reports its past ones again.
    """
    if not reported or list(reported) == live.user_attrs.get(HALVINGS_ATTR):
        return ""
    halvings = [Halving(**values) for values in reported]  # type: ignore[arg-type]
    config = config_after_oom(live.train_config, halvings)
    live.note({"config": config.to_dict(), HALVINGS_ATTR: list(reported)})
    return f"trial {live.number}: {halvings[-1]}"
