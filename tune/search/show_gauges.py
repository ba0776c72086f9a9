"""The gauges of a search for Prometheus: what Ray cannot know. Ray itself shows GPUs, memory, processors and disks.

``--metrics-port`` hands them to Ray, which shows them and its own.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from bigbatch.base import json_values
from bigbatch.tune.console.findings import quoted_path
from bigbatch.tune.console.wrapped import say
from bigbatch.tune.export.grafana_files import TARGETS_FILE, TargetsFile, metrics_targets
from bigbatch.tune.plan.search_plan import SearchPlan
from bigbatch.tune.runs.objective import Objective
from bigbatch.tune.runs.observer import Observer, TrialView
from bigbatch.tune.search.running import SearchRun, views_of
from bigbatch.tune.storage.store import StudyStore

KEEP_ENDED_S = 60.0
"""The last values of a trial that has ended stay this long, so that the next scrape sees them."""
STATES = ("waiting", "starting", "running", "complete", "pruned", "paused", "failed", "interrupted")
"""All of them are shown from the start on, also those that no trial is in."""
OF_ENDED = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed", "WAITING": "interrupted"}
TRIAL = ("study", "trial")


@dataclass(frozen=True)
class GaugeKind:
    """One of our gauges. Its unit is in its name, as Prometheus asks for; Ray puts ``ray_`` before it."""

    name: str
    meaning: str
    tags: tuple[str, ...] = TRIAL
    field: str = ""
    """The field of the last epoch's record that it shows; empty: it shows something else."""


TRIALS = GaugeKind("bigbatch_trials", "trials by their state", ("study", "state"))
BEST = GaugeKind("bigbatch_best_objective", "the objective of the best finished trial", ("study", "metric"))
USED_HOURS = GaugeKind(
    "bigbatch_used_device_hours", "GPU hours that the study has used; core hours on CPUs", ("study",)
)
HOURS_LEFT = GaugeKind(
    "bigbatch_budget_left_device_hours", "what is left of --budget-gpu-hours; absent without a budget", ("study",)
)
TIME_LEFT = GaugeKind(
    "bigbatch_budget_left_seconds", "what is left of --time-budget; absent without such a budget", ("study",)
)
OBJECTIVE = GaugeKind(
    "bigbatch_objective", "the metric that the search optimises, after a trial's last epoch", (*TRIAL, "metric")
)
EPOCHS = GaugeKind("bigbatch_epochs", "epochs that a trial has trained, with the part of the present one")
DATA_WAIT = GaugeKind(
    "bigbatch_data_wait_ratio", "the part of the last epoch's training time that waited for images, 0 to 1"
)
TRUST_RATIO = GaugeKind(
    "bigbatch_trust_ratio",
    "quantiles over the layers of the trust ratio of LARS or LAMB, in the last epoch's last step",
    (*TRIAL, "quantile"),
)
OF_RECORD = (
    GaugeKind("bigbatch_train_loss", "mean training loss of the last epoch", field="train_loss"),
    GaugeKind("bigbatch_learning_rate", "learning rate of the last epoch's last step", field="learning_rate"),
    GaugeKind(
        "bigbatch_images_per_second", "training images per second of the last epoch, all workers", field="images_per_s"
    ),
    GaugeKind("bigbatch_noise_scale_images", "gradient noise scale of the last epoch", field="noise_scale"),
)
GAUGES = (TRIALS, BEST, USED_HOURS, HOURS_LEFT, TIME_LEFT, OBJECTIVE, EPOCHS, DATA_WAIT, TRUST_RATIO, *OF_RECORD)
"""All gauges. The dashboard and the documentation have these, and Ray's."""

Series = tuple[GaugeKind, float | None, tuple[str, ...]]
"""A gauge, its value, and the values of its tags in their order. None, or no number: there is no such series."""


def state_of(trial: TrialView) -> str:
    """A trial's state, as one of STATES."""
    if trial.state == "RUNNING":
        return trial.phase
    return "paused" if trial.paused else OF_ENDED[trial.state]


class StudyGauges:
    """An observer that knows what the gauges show now.

    A trial that another one repeats or continues counts no more, as in all tables.

    Args:
        trials: those that the study has when the search begins.
        clock: seconds.
    """

    def __init__(
        self, study: str, objective: Objective, trials: Iterable[TrialView], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._study, self._objective, self._clock = study, objective, clock
        self._ended: dict[int, str] = {}
        self._live: dict[int, TrialView] = {}
        self._left: dict[int, tuple[float, TrialView]] = {}
        self._best = math.nan
        for trial in trials:
            if not trial.is_replaced:
                self._note_end(trial)

    def values(self) -> Iterator[Series]:
        """All series. Another thread may call it than the one of the events."""
        live = list(self._live.values())
        counts = Counter([*list(self._ended.values()), *(state_of(trial) for trial in live)])
        for state in STATES:
            yield TRIALS, counts[state], (self._study, state)
        yield BEST, self._best, (self._study, self._objective.text)
        oldest = self._clock() - KEEP_ENDED_S
        for trial in (*live, *(trial for ended, trial in list(self._left.values()) if ended > oldest)):
            yield from self._of_trial(trial)

    def _of_trial(self, trial: TrialView) -> Iterator[Series]:
        tags = (self._study, str(trial.number))
        within = trial.steps.epoch - 1 + trial.steps.fraction if trial.steps else 0.0
        if trial.phase == "running":
            yield EPOCHS, max(float(trial.epoch), within), tags
        if not trial.records:
            return
        record, shown = trial.records[-1], self._objective.shown
        for kind in OF_RECORD:
            yield kind, json_values.number_or_none(record, kind.field), tags
        train_s = json_values.number(record, "train_s")
        yield DATA_WAIT, json_values.number(record, "data_s") / train_s if train_s else None, tags
        yield OBJECTIVE, shown.value(record), (*tags, shown.name)
        ratios = json_values.mapping(record, "trust_ratios")
        for quantile in ratios:
            yield TRUST_RATIO, json_values.number_or_none(ratios, quantile), (*tags, quantile)

    def trial_planned(self, trial: TrialView) -> None:
        """The trial has its configuration."""
        self._ended.pop(trial.number, None)
        for replaced in (trial.retries, trial.continues):
            if replaced is not None:
                self._ended.pop(replaced, None)
        self._live[trial.number] = trial

    def trial_waiting(self, trial: TrialView) -> None:
        """No resources are free for the trial."""
        self.trial_planned(trial)

    def trial_started(self, trial: TrialView) -> None:
        """The trial's first worker runs."""
        self.trial_planned(trial)

    def trial_ended(self, trial: TrialView) -> None:
        """Count it, and let its own series go a while later."""
        self._live.pop(trial.number, None)
        self._left = {number: one for number, one in self._left.items() if one[0] > self._clock() - KEEP_ENDED_S}
        self._left[trial.number] = self._clock(), trial
        self._note_end(trial)

    def _note_end(self, trial: TrialView) -> None:
        self._ended[trial.number] = "interrupted" if trial.state == "RUNNING" else state_of(trial)
        if trial.state != "COMPLETE" or trial.confirms is not None:
            return
        value = trial.ends[0] if trial.ends else math.nan
        if not math.isnan(value) and (math.isnan(self._best) or self._objective.is_better(value, self._best)):
            self._best = value


REFRESH_S = 1.0
"""Ray hands a value to Prometheus once, and forgets it: so each is set again, more often than Ray exports. Ray has no
call that removes a series; one that is not set any more is gone after two of Ray's export intervals, 10 s each."""
JOIN_S = 5.0
_log = logging.getLogger(__name__)


def gauge_observers(run: SearchRun, store: StudyStore, stack: ExitStack, console: Console) -> list[Observer]:
    """The observer that sets a search's gauges; none without ``--metrics-port``, or if its cluster shows no metrics.

    Call it when Ray runs. A cluster without metrics is only a warning: a search must not end for lack of a picture.
    """
    plan = run.plan
    if plan.options.metrics_port is None:
        return []
    import ray
    from ray.util.metrics import Gauge

    nodes = ray.nodes()
    targets = metrics_targets(nodes)
    file, ends_at = TargetsFile(store.folder, ray.nodes, time.monotonic), _ends_at(run)
    if targets:  # before the line that names the file
        file.look()
        stack.callback(file.close)
    for line in _words(plan, targets, sum(bool(node["Alive"]) for node in nodes)):
        say(console, line)
    if not targets:
        return []
    gauges = StudyGauges(plan.study, plan.objectives.first, views_of(store))
    in_ray: dict[str, Any] = {}

    def look() -> None:
        file.look()
        for kind, value, tags in (*gauges.values(), *_budget(plan, store.ledger.held_s, ends_at)):
            if value is not None and not math.isnan(value):
                if kind.name not in in_ray:
                    in_ray[kind.name] = Gauge(kind.name, kind.meaning, kind.tags)
                in_ray[kind.name].set(value, dict(zip(kind.tags, tags, strict=True)))

    over = threading.Event()
    thread = threading.Thread(target=_keep_looking, args=(look, over), daemon=True, name="gauges")
    thread.start()
    stack.callback(thread.join, JOIN_S)
    stack.callback(over.set)  # before the join
    return [gauges]


def _keep_looking(look: Callable[[], None], over: threading.Event) -> None:
    """Look every REFRESH_S. A failure is said once: a picture of the search must never end the search."""
    said: set[str] = set()
    while not over.wait(REFRESH_S):
        try:
            look()
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            if text not in said:
                said.add(text)
                _log.warning("the gauges for Prometheus are not set: %s", text)


def _words(plan: SearchPlan, targets: tuple[str, ...], nodes: int) -> list[str]:
    """What is shown, where, and to whom. ``nodes``: how many the cluster has."""
    if not targets:
        return [
            f"warning: no node of the cluster at {plan.address} shows metrics: the port is taken there, or Ray was "
            "started without --metrics-export-port. The search goes on without them.\n"
        ]
    local = plan.address == "local"
    where = f"http://{targets[0]}/metrics" if len(targets) == 1 else f"{targets[0]} and {len(targets) - 1} more nodes"
    who = "on this machine" if local else "who reaches these nodes over the network"
    silent = f"warning: {nodes - len(targets)} of {nodes} nodes show no metrics: the port is taken there."
    return [
        *([silent] if len(targets) < nodes else []),
        f"Metrics for Prometheus: {where}. Ray asks for no token there: everybody {who} can read them.",
        f"Its targets: {quoted_path(plan.folder / TARGETS_FILE)}\n",
    ]


def _ends_at(run: SearchRun) -> float | None:
    return None if run.plan.time_budget_s is None else run.started + run.plan.time_budget_s


def _budget(plan: SearchPlan, held_s: float, ends_at: float | None) -> Iterator[Series]:
    tags = (plan.study,)
    yield USED_HOURS, held_s / 3600, tags
    if plan.budget_gpu_hours is not None:
        yield HOURS_LEFT, max(0.0, plan.budget_gpu_hours - held_s / 3600), tags
    if ends_at is not None:
        yield TIME_LEFT, max(0.0, ends_at - time.monotonic()), tags
