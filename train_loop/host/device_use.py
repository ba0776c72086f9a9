"""Watch a worker's GPU and its machine's processors: energy, utilization, and a word if the GPU idles for long."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from bigbatch.train_loop.host.gpu_counters import GpuCounters
from bigbatch.train_loop.host.processor_energy import ProcessorEnergy

SAMPLE_S = 5.0
IDLE_WINDOW_S = 600.0
IDLE_BELOW = 0.2
"""A GPU that is busy less than this part of IDLE_WINDOW_S is called idle. Centres write to its user about then."""
SAY_AGAIN_S = 3600.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class DeviceUse:
    """What one worker has used in a time. Not a number: not measured."""

    gpu_energy_j: float
    cpu_energy_j: float
    """Of whole processors, whoever uses them. 0 if another worker of this machine counts them."""
    gpu_utilization: float
    """The part of the time in which the GPU computed anything, 0 to 1."""
    gpu_peak_power_w: float = math.nan
    """The most that the GPU drew at any look."""

    @property
    def for_maximum(self) -> list[float]:
        """Idle part and peak power, for their maximum over the workers: 2 and 0 where they were not measured."""
        idle = 2.0 if math.isnan(self.gpu_utilization) else 1.0 - self.gpu_utilization
        return [idle, 0.0 if math.isnan(self.gpu_peak_power_w) else self.gpu_peak_power_w]


class UseMeter:
    """Measures while it is entered. Without anything to measure it starts no thread.

    Args:
        gpu: this worker's; None: it cannot be measured.
        processors: this machine's; None: they cannot be measured.
        counts_processors: whether this worker counts them for its machine.
        gpu_part: the part of its GPU's energy that this worker counts: the trials that share a GPU count it once.
        where: the worker in words, for the log.

    ``sample_s``, which may be set before it is entered: the time between two looks.
    """

    sample_s = SAMPLE_S

    def __init__(
        self,
        gpu: GpuCounters | None = None,
        processors: ProcessorEnergy | None = None,
        *,
        counts_processors: bool = True,
        gpu_part: float = 1.0,
        where: str = "this worker",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._gpu, self._processors, self._counts, self._clock = gpu, processors, counts_processors, clock
        self._gpu_part = gpu_part
        self._idle = IdleWatch(where, clock)
        self._lock, self._stop = threading.Lock(), threading.Event()
        self._thread: threading.Thread | None = None
        self._gpu_j = self._cpu_j = self._taken_gpu_j = self._taken_cpu_j = 0.0
        self._before = (0.0, 0.0)
        self._utilizations: list[float] = []
        self._powers_w: list[float] = []

    def __enter__(self) -> UseMeter:
        if self._gpu or (self._processors and self._counts):
            self._thread = threading.Thread(target=self._run, daemon=True, name="device use")
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(SAMPLE_S)

    def used(self) -> DeviceUse:
        """What was used since the last ``take``."""
        # The thread looks only every few seconds.
        self.sample()
        with self._lock:
            seen = self._utilizations
            return DeviceUse(
                self._gpu_j - self._taken_gpu_j + self._before[0],
                self._cpu_j - self._taken_cpu_j + self._before[1],
                sum(seen) / len(seen) if seen else math.nan,
                max(self._powers_w, default=math.nan),
            )

    def take(self) -> DeviceUse:
        """``used``, which begins at 0 again."""
        use = self.used()
        with self._lock:
            self._taken_gpu_j, self._taken_cpu_j, self._before = self._gpu_j, self._cpu_j, (0.0, 0.0)
            self._utilizations, self._powers_w = [], []
        return use

    def resume(self, gpu_energy_j: float, cpu_energy_j: float) -> None:
        """Add what was used before the run was interrupted."""
        self._before = gpu_energy_j, cpu_energy_j

    def sample(self) -> None:
        """Read all counters."""
        with self._lock:
            self._gpu_j = self._gpu_part * self._gpu.joules() if self._gpu else math.nan
            if self._counts:
                self._cpu_j = self._processors.joules() if self._processors else math.nan
            utilization = self._gpu.utilization() if self._gpu else math.nan
            if not math.isnan(utilization):
                self._utilizations.append(utilization)
            power_w = self._gpu.power_w() if self._gpu else math.nan
            if not math.isnan(power_w):
                self._powers_w.append(power_w)
        if text := self._idle.add(utilization):
            _log.warning("%s", text)

    def _run(self) -> None:
        while not self._stop.wait(self.sample_s):
            self.sample()


class IdleWatch:
    """Says when a GPU has hardly computed for IDLE_WINDOW_S; again after SAY_AGAIN_S at the earliest."""

    def __init__(self, where: str, clock: Callable[[], float]) -> None:
        self._where, self._clock = where, clock
        self._seen: deque[tuple[float, float]] = deque()
        self._began = math.inf
        self._quiet_until = -math.inf

    def add(self, utilization: float) -> str:
        """Add a sample, 0 to 1; not a number: none. Returns what to log, empty if there is nothing to say."""
        now = self._clock()
        if math.isnan(utilization):
            return ""
        self._seen.append((now, utilization))
        self._began = min(self._began, now)
        while now - self._seen[0][0] > IDLE_WINDOW_S:
            self._seen.popleft()
        busy = sum(value for _, value in self._seen) / len(self._seen)
        if busy >= IDLE_BELOW or now - self._began < IDLE_WINDOW_S or now < self._quiet_until:
            return ""
        self._quiet_until = now + SAY_AGAIN_S
        return (
            f"the GPU of {self._where} computed in only {100 * busy:.0f} % of the last "
            f"{IDLE_WINDOW_S / 60:.0f} minutes. "
            "bigbatch train --profile-steps 50 says what it waits for"
        )
