"""Connect Ray Tune with Optuna: a ``Searcher`` that uses Optuna's ask and tell. Its only memory is the study.

Ray's own ``OptunaSearch`` leaves crashed and NaN trials RUNNING, tells stopped trials as COMPLETE with a cut-off
value, and loses its state with the driver. This bridge tells a trial as soon as its end is known: COMPLETE after
its last epoch, PRUNED with all its values if the pruner stops it, FAIL with the reason. An interrupted trial goes
back to WAITING with its parameters, and the next driver continues it from its last checkpoint.

Optuna's pruners do the early stopping, called by the Tune scheduler. Their state is in the study too, so it survives.
See docs/decisions/001.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import optuna
from optuna.trial import TrialState
from ray.tune.search import Searcher

from bigbatch.cluster.host import json_values
from bigbatch.search_spaces.registry import Space
from bigbatch.search_spaces.workload import Workload
from bigbatch.train_loop.config import RUNTIME_KEYS, TrainConfig
from bigbatch.train_loop.host.disk_full import NO_ROOM
from bigbatch.train_loop.launch.ray_worker import FAILURE, RECORDS
from bigbatch.train_loop.launch.trial_task import TrialTask
from bigbatch.train_loop.progress import StepProgress
from bigbatch.tune.strategies.judgement import SPARED_ATTR
from bigbatch.tune.strategies.samplers import PerTrialSampler
from bigbatch.tune.study import retry
from bigbatch.tune.study.store import StudyStore
from bigbatch.tune.study.tables import EPOCH_ATTR, epoch_of, epoch_records, epoch_s, report_missing, top1_of
from bigbatch.tune.trials.save_time import stop_wait_s
from bigbatch.tune.watch.cluster_view import trial_resources_in_words
from bigbatch.tune.watch.notes import Notes
from bigbatch.tune.watch.observer import Observer, TrialView, tell

MAX_BAD_SAMPLES = 20
"""The search ends after this many invalid configurations in a row."""
STEPS_TO_JUDGE = 10
"""The scheduler stops no trial before this many optimizer steps. With batch 1,024 on digits a run has 12 steps. A
quarter of its epochs is 3 steps of warmup, and the ranking there differs from the ranking at the end."""
MAX_EQUAL_FAILURES = 4
"""The search ends if the first trials, this many, all fail for the same reason."""


@dataclass
class _Live:
    """A trial that Ray works on."""

    trial: optuna.trial.Trial
    view: TrialView
    waiting_for_first: bool = True
    """Whether no epoch has ended since the trial was started."""
    started: float = field(default_factory=lambda: time.monotonic())


class OptunaBridge(Searcher):
    """Suggests configurations from ``store.study`` and tells the study how they ended.

    Args:
        store: the study. Only this object writes to it.
        space, workload: the space to sample, and its workload.
        overrides: ``--set`` keys, which the space does not search.
        seed: the seed of every trial. Initial weights and data order are the same in all trials, so that only the
            configuration makes a difference.
        trials: how many trials to finish (COMPLETE, PRUNED or FAIL).
        room: whether another trial fits beside the trials with the given numbers.
        make_sampler: the sampler for trial number n. A fresh one each time, seeded with n: its
            state is then a function of the study and need not be saved.
        workers: of each trial.
        make_task: what the processes of trial number n are handed, with its configuration.
        observers: receive each event.
        may_start: called before each trial; False ends the search (a budget is spent).
        ending: whether the search was asked to end. A trial that fails from then on may have failed because of that.
    """

    def __init__(
        self,
        store: StudyStore,
        space: Space,
        workload: Workload,
        *,
        overrides: dict[str, object],
        seed: int,
        trials: int,
        room: Callable[[list[int]], bool],
        make_sampler: Callable[[int], optuna.samplers.BaseSampler],
        workers: int,
        make_task: Callable[[int, TrainConfig], TrialTask],
        observers: list[Observer],
        may_start: Callable[[], bool] = lambda: True,
        ending: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__()
        self._store, self._study = store, store.study
        self._space, self._workload, self._overrides, self._seed = space, workload, overrides, seed
        self._trials, self._room = trials, room
        self._make_sampler, self._make_task, self._observers = make_sampler, make_task, observers
        self._may_start, self._ending = may_start, ending
        self._live: dict[str, _Live] = {}
        self._finished = 0
        self._failure, self._equal_failures = "", 0
        self._first_result_s: float | None = None
        self._warned, self._notes = False, Notes()
        self.workers = workers
        self.stopping = False
        """Set before the search ends early. Trials that end from then on count as interrupted."""
        self.fatal: str | None = None
        """Why the search cannot continue at all; None if it can."""

    # Before the search

    def recover(self) -> None:
        """Repair the trials that earlier drivers left; see ``StudyStore.recover``."""
        self._store.recover()
        retry.adopt_checkpoints(self._store)
        self._finished = retry.count_ended(self._study.get_trials(deepcopy=False))

    # Searcher

    def suggest(self, trial_id: str) -> dict[str, object] | str | None:
        """The next trial for Tune; None while no trial fits; FINISHED when no more trials are needed."""
        if self.stopping or self.fatal or self._finished + len(self._live) >= self._trials or not self._may_start():
            return Searcher.FINISHED
        if not self._room([live.trial.number for live in self._live.values()]):
            return None
        for _ in range(MAX_BAD_SAMPLES):
            trial, config, error = self._ask()
            if config is not None:
                return self._start(trial_id, trial, config)
            if self._finished + len(self._live) >= self._trials:
                return Searcher.FINISHED
        self.fatal = (
            f"the space {self._space.name!r} gave {MAX_BAD_SAMPLES} invalid configurations in a row; the last: {error}"
        )
        return Searcher.FINISHED

    def on_trial_result(self, trial_id: str, result: dict[str, object]) -> None:
        """Do nothing: the scheduler hands results to ``observe``, which may stop the trial."""

    def on_trial_complete(self, trial_id: str, result: dict[str, object] | None = None, error: bool = False) -> None:
        """Ray has finished with a trial. A trial that was already told is no longer live."""
        live = self._live.get(trial_id)
        if live is None:
            return
        if error:
            self._fail(trial_id, "a process of the trial died, again after a restart")
        elif self.stopping or self._ending():
            self.put_back(trial_id)
        else:
            self._fail(trial_id, "ended without its last epoch")

    def save(self, checkpoint_path: str) -> None:
        """Do nothing: the study holds everything."""
        with open(checkpoint_path, "w"):
            pass

    def restore(self, checkpoint_path: str) -> None:
        """Do nothing: the study holds everything."""

    def release(self) -> None:
        """Put back the trials that are still live after Ray has stopped: the search ended early."""
        for trial_id in list(self._live):
            self.put_back(trial_id)

    def __getstate__(self) -> dict[str, object]:
        return {}  # Tune pickles its searcher for a restore that this project never uses

    # Results

    def observe(self, trial_id: str, result: dict[str, object]) -> bool:
        """Take in a trial's report. Returns whether to stop the trial.

        Epochs that the study already has are ignored, so a resumed trial may report its past again.
        """
        live = self._live.get(trial_id)
        if live is None:
            return True
        self._notes.hear(live.view.number, result)
        for record in json_values.objects(result, RECORDS):
            if epoch_of(record) > live.view.epoch and self._take_in(trial_id, live, record):
                return True
        if result.get(FAILURE):
            self._fail(trial_id, str(result[FAILURE]))
            return True
        return False

    def _fail(self, trial_id: str, because: str) -> None:
        """Tell a failure. While the search is ending, put the trial back instead: it may have failed because its
        processes and connections were ending."""
        if NO_ROOM in because or self._store.disk.full:
            self.put_back(trial_id, f"stopped because the disk is full; --resume continues it ({because})")
            self._store.disk.trial_met(because)
        elif self.stopping or self._ending():
            self.put_back(trial_id, f"failed while the search was stopping; --resume continues it ({because})")
        else:
            self._tell(trial_id, TrialState.FAIL, because)

    def _take_in(self, trial_id: str, live: _Live, record: dict[str, object]) -> bool:
        """Take in one new epoch. Returns whether the trial has ended with it."""
        epoch, value = epoch_of(record), top1_of(record)
        if not math.isfinite(value) or not math.isfinite(json_values.number(record, "val_loss", math.nan)):
            self._tell(trial_id, TrialState.FAIL, f"validation was not finite in epoch {epoch}")
            return True
        self.runs(live.view.number)
        if live.waiting_for_first:
            live.waiting_for_first = False
            self._first_result_s = max(self._first_result_s or 0.0, time.monotonic() - live.started)
        live.trial.set_user_attr(f"{EPOCH_ATTR}{epoch:05d}", record)
        live.trial.report(value, epoch)
        live.view.records.append(record)
        self._notify("epoch_ended", live.view, record)
        if epoch >= live.view.epochs:
            self._tell(trial_id, TrialState.COMPLETE, "ran to its end", value)
            return True
        # Ask the pruner every epoch: a rung keeps the value of the epoch in which it is first asked. But do not obey it
        # during a short run's first steps: they are warmup and show only which trial warms up faster.
        stop = live.trial.should_prune()
        if stop and json_values.whole_number(record, "optimizer_steps", STEPS_TO_JUDGE) >= STEPS_TO_JUDGE:
            self._tell(trial_id, TrialState.PRUNED, f"stopped by the scheduler after epoch {epoch}")
            return True
        if stop and SPARED_ATTR not in live.trial.user_attrs:
            live.trial.set_user_attr(SPARED_ATTR, epoch)
        return False

    # On the way to the first result

    def waits(self, number: int, at: float) -> None:
        """Note that a trial had no resources at the time ``at`` (time.monotonic). Its time and cost begin later."""
        for live in self._live.values():
            if live.view.number == number and live.view.phase != "running":
                self._store.ledger.end(number)
                live.started, live.view.started_at = max(live.started, at), time.time()
                news, live.view.phase = live.view.phase != "waiting", "waiting"
                if news:
                    self._notify("trial_waiting", live.view)

    def runs(self, number: int, steps: StepProgress | None = None) -> None:
        """Note that a trial's worker runs, and its position ``steps``."""
        for live in self._live.values():
            if live.view.number == number:
                news, live.view.phase = live.view.phase != "running", "running"
                live.view.steps = steps or live.view.steps
                self._store.ledger.begin(number, self.workers, time.monotonic() - live.started)
                if news:
                    self._notify("trial_started", live.view)
                if steps is not None:
                    self._notify("steps_done", live.view)

    def first_result_s(self) -> float | None:
        """The longest measured time in seconds from a trial's start to its first finished epoch.

        If this driver has measured none yet, the longest epoch of the study; None if the study has none.
        """
        if self._first_result_s is None:
            trials = self._study.get_trials(deepcopy=False)
            return max((epoch_s(record) for t in trials for record in epoch_records(t)), default=None)
        return self._first_result_s

    def stop_wait_s(self) -> float:
        """How long the running trials may take to stop by themselves."""
        trials = self._study.get_trials(deepcopy=False)
        return stop_wait_s([item.view.records for item in self._live.values()], map(epoch_records, trials))

    @property
    def live(self) -> int:
        """The number of trials that Ray works on."""
        return len(self._live)

    @property
    def at_work(self) -> int:
        """The number of trials that have their resources."""
        return sum(live.view.phase != "waiting" for live in self._live.values())

    @property
    def finished(self) -> int:
        """The number of trials that have ended."""
        return self._finished

    # Inside

    def _ask(self) -> tuple[optuna.trial.Trial, TrainConfig | None, str]:
        """The next trial, its configuration and "". If the configuration is invalid: the failed trial, None, why."""
        self._study.sampler = PerTrialSampler(self._make_sampler)
        trial = self._study.ask()
        try:
            if "config" in trial.user_attrs:  # interrupted earlier; --resume may change runtime keys
                runtime = {key: value for key, value in self._overrides.items() if key in RUNTIME_KEYS}
                config = TrainConfig.from_dict(trial.user_attrs["config"]).replace_keys(runtime)
                trial.set_user_attr("config", config.to_dict())
                return trial, config, ""
            config = self._space(trial, self._workload, self._overrides).replace_keys({"seed": self._seed})
            config.batch.split(self.workers)
        except (Exception, SystemExit) as error:  # a user's space may raise anything
            reason = _one_line(error)
            self._refuse(trial, f"the space gave no valid configuration: {reason}")
            return trial, None, reason
        trial.set_user_attr("config", config.to_dict())
        return trial, config, ""

    def _refuse(self, trial: optuna.trial.Trial, because: str) -> None:
        """Tell a trial as failed that could not begin."""
        trial.set_user_attr("ended_because", because)
        self._study.tell(trial, state=TrialState.FAIL)
        self._finished += 1
        view = TrialView(trial.number, dict(trial.params), None, state="FAIL", ended_because=because)
        self._notify("trial_ended", view)

    def _start(self, trial_id: str, trial: optuna.trial.Trial, config: TrainConfig) -> dict[str, object]:
        frozen = self._study._storage.get_trial(trial._trial_id)
        attrs, records = frozen.user_attrs, epoch_records(frozen)
        report_missing(trial, frozen)
        attempts = attrs.get("attempts", 0) + 1
        trial.set_user_attr("attempts", attempts)
        trial.set_user_attr("ray_trial_id", trial_id)
        task = self._make_task(trial.number, config)
        view = TrialView(trial.number, dict(trial.params), config, records=records, resumed=attempts > 1)
        view.retries = attrs.get(retry.RETRIES_ATTR)
        view.phase, view.asks = "starting", trial_resources_in_words(task.workers, task.worker_resources)
        self._live[trial_id] = _Live(trial, view)
        self._store.ledger.begin(trial.number, self.workers)
        self._notify("trial_planned", view)
        return task.to_dict()

    def _tell(self, trial_id: str, state: TrialState, because: str, value: float | None = None) -> None:
        live = self._live.pop(trial_id)
        self._note_cost(live)
        live.trial.set_user_attr("ended_because", because)
        self._study.tell(live.trial, values=value, state=state)
        self._finished += 1
        self._end(live, state, because)
        self._note_equal_failures(state, because)
        self._refresh()

    def _note_equal_failures(self, state: TrialState, because: str) -> None:
        """End the search if all trials fail for the same reason, e.g. an unreadable image: more would not help."""
        same = state == TrialState.FAIL and because == self._failure
        self._equal_failures = self._equal_failures + 1 if same else int(state == TrialState.FAIL)
        self._failure = because if state == TrialState.FAIL else ""
        if self._equal_failures == self._finished == MAX_EQUAL_FAILURES:
            self.fatal = f"the first {self._equal_failures} trials all failed for the same reason: {because}"

    def put_back(self, trial_id: str, because: str = "interrupted; --resume continues it") -> None:
        """Let a trial wait in the study. The next driver continues it from its last checkpoint."""
        live = self._live.pop(trial_id, None)
        if live is None:
            return
        self._note_cost(live)
        self._study._storage.set_trial_state_values(live.trial._trial_id, TrialState.WAITING)
        self._end(live, TrialState.WAITING, because)

    def say(self, text: str) -> None:
        """Show a line that belongs to no trial."""
        self._notify("search_said", text)

    def _notify(self, event: str, *arguments: object) -> None:
        tell(self._observers, event, *arguments)

    def _refresh(self) -> None:
        """Rewrite the tables. A full disk does not end the search, because the tables can be made again."""
        try:
            self._store.drop_checkpoints()  # first: it makes room
            self._store.refresh()
        except OSError as error:
            if not self._warned:
                print(f"warning: the study's tables are not up to date: {error}", file=sys.stderr, flush=True)
            self._warned = True

    def _note_cost(self, live: _Live) -> None:
        number = live.trial.number
        self._store.ledger.end(number)
        live.trial.set_user_attr("gpu_hours", self._store.ledger.trial_s(number) / 3600)

    def _end(self, live: _Live, state: TrialState, because: str) -> None:
        live.view.state, live.view.ended_because = state.name, because
        self._notify("trial_ended", live.view)


def _one_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
