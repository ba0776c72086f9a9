"""The gauges that a search shows to Prometheus, and the board that keeps them alive in Ray."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

REFRESH_S = 1.0
"""Ray hands a value to Prometheus once, and forgets it. So each value is set again, more often than Ray exports."""
KEEP_ENDED_S = 60.0
"""The last values of a trial that has ended stay this long, so that the next scrape sees them."""
JOIN_S = 5.0

TRIAL = ("study", "trial")
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class GaugeKind:
    """One of our gauges. Its unit is in its name, as Prometheus asks for."""

    name: str
    meaning: str
    tags: tuple[str, ...]

    @property
    def exported(self) -> str:
        """Its name in Prometheus: Ray puts its own name before ours."""
        return f"ray_{self.name}"


OBJECTIVE = GaugeKind(
    "bigbatch_objective", "the metric that the search optimises, after a trial's last epoch", (*TRIAL, "metric")
)
TRAIN_LOSS = GaugeKind("bigbatch_train_loss", "mean training loss of the last epoch", TRIAL)
LEARNING_RATE = GaugeKind("bigbatch_learning_rate", "learning rate of the last epoch's last step", TRIAL)
IMAGES = GaugeKind("bigbatch_images_per_second", "training images per second of the last epoch, all workers", TRIAL)
DATA_WAIT = GaugeKind(
    "bigbatch_data_wait_ratio", "the part of the last epoch's training time that waited for images, 0 to 1", TRIAL
)
NOISE_SCALE = GaugeKind("bigbatch_noise_scale_images", "gradient noise scale of the last epoch", TRIAL)
EPOCHS = GaugeKind("bigbatch_epochs", "epochs that a trial has trained, with the part of the present one", TRIAL)
TRUST_RATIO = GaugeKind(
    "bigbatch_trust_ratio",
    "quantiles over the layers of the trust ratio of LARS or LAMB, in the last epoch's last step",
    (*TRIAL, "quantile"),
)
GPU_MEMORY = GaugeKind("bigbatch_gpu_memory_used_bytes", "memory in use on a worker's GPU (NVML)", (*TRIAL, "rank"))
GPU_USE = GaugeKind(
    "bigbatch_gpu_utilization_ratio", "the part of the last moments in which a worker's GPU computed, 0 to 1 (NVML)",
    (*TRIAL, "rank"),
)  # fmt: skip
GPU_POWER = GaugeKind("bigbatch_gpu_power_watts", "power that a worker's GPU draws (NVML)", (*TRIAL, "rank"))
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

GAUGES = (
    OBJECTIVE, TRAIN_LOSS, LEARNING_RATE, IMAGES, DATA_WAIT, NOISE_SCALE, EPOCHS, TRUST_RATIO, GPU_MEMORY, GPU_USE,
    GPU_POWER, TRIALS, BEST, USED_HOURS, HOURS_LEFT, TIME_LEFT,
)  # fmt: skip
"""All gauges. The dashboard and the documentation have these, and no others."""

Series = tuple[GaugeKind, tuple[str, ...]]
"""A gauge and the values of its tags, in their order."""
Sink = Callable[[GaugeKind, float, Mapping[str, str]], None]


class GaugeBoard:
    """The present values of this process's gauges. While it is entered, a thread hands them to Ray again and again.

    Ray has no call that removes a series. A series that is not set any more is gone after two of Ray's export
    intervals, 10 s each if nothing else is set; ``end`` uses that.

    Args:
        look: called before each round; sets what changes without an event.
        sink: gets each value. None: Ray.
        clock: seconds.
    """

    def __init__(
        self,
        look: Callable[[GaugeBoard], None] | None = None,
        sink: Sink | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._look, self._sink, self._clock = look, sink or RayGauges(), clock
        self._lock, self._stop = threading.Lock(), threading.Event()
        self._values: dict[Series, float] = {}
        self._until: dict[Series, float] = {}
        self._thread = threading.Thread(target=self._run, daemon=True, name="gauges")
        self._said: set[str] = set()

    def __enter__(self) -> GaugeBoard:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(JOIN_S)

    def set(self, kind: GaugeKind, value: float | None, **tags: object) -> None:
        """Set a value. None, or not a number: it was not measured, so there is no such series (any more)."""
        series = kind, tuple(str(tags[tag]) for tag in kind.tags)
        with self._lock:
            self._until.pop(series, None)
            if value is None or math.isnan(value):
                self._values.pop(series, None)
            else:
                self._values[series] = float(value)

    def end(self, **tags: object) -> None:
        """Let go of all series with these tags, after KEEP_ENDED_S."""
        wanted = {(tag, str(value)) for tag, value in tags.items()}
        with self._lock:
            for kind, values in self._values:
                if wanted <= set(zip(kind.tags, values, strict=True)):
                    self._until[kind, values] = self._clock() + KEEP_ENDED_S

    def refresh(self) -> None:
        """One round: look, forget what has ended, hand over the rest."""
        if self._look is not None:
            self._look(self)
        now = self._clock()
        with self._lock:
            for series in [series for series, until in self._until.items() if until <= now]:
                del self._until[series], self._values[series]
            values = list(self._values.items())
        for (kind, texts), value in values:
            self._sink(kind, value, dict(zip(kind.tags, texts, strict=True)))

    def _run(self) -> None:
        while not self._stop.wait(REFRESH_S):
            try:
                self.refresh()
            except Exception as error:  # a picture of the search must never end the search
                text = f"{type(error).__name__}: {error}"
                if text not in self._said:
                    self._said.add(text)
                    _log.warning("the gauges for Prometheus are not set: %s", text)


class RayGauges:
    """Hands values to Ray's gauges, which are made when they are first used. Needs a Ray that runs."""

    def __init__(self) -> None:
        self._made: dict[str, Any] = {}

    def __call__(self, kind: GaugeKind, value: float, tags: Mapping[str, str]) -> None:
        """Set the value in Ray."""
        gauge = self._made.get(kind.name)
        if gauge is None:
            from ray.util.metrics import Gauge

            gauge = self._made[kind.name] = Gauge(kind.name, kind.meaning, kind.tags)
        gauge.set(value, tags=dict(tags))
