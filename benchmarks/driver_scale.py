"""What a search's driver costs for each trial, while the study grows to thousands: time and bytes, in windows.

    python benchmarks/driver_scale.py --trials 10000 --output benchmarks/results/driver_scale.json

The manager of ``bigbatch tune`` runs without Ray: trials of made-up accuracies end at once. Measured are all its
calls: choosing a trial, taking in its epochs, looking, telling; with a journal also the tables and the checkpoints'
folders. It is flat if the last window is as fast as the first. A trial of this measurement is a configuration: a paused
one and its continuation are one. ``auto`` is what ``bigbatch tune`` does by default. ``--frontier`` searches over four
batches too, as the default space does. With a journal the end also says, in CPU seconds, what ``bigbatch studies``,
``bigbatch show``, opening, the views of all trials, and the tables cost. ``--profile FILE`` writes where the time goes
(cProfile).
"""

from __future__ import annotations

import argparse
import contextlib
import cProfile
import itertools
import json
import math
import os
import random
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import optuna
from replay.search import MemoryKeeper
from replay.stand_ins import SimulatedClock
from store import store

from bigbatch.train_loop.config import TrainConfig
from bigbatch.train_loop.reporter import EpochRecord
from bigbatch.tune.models.protocol import Dimension, SearchFacts, TrialDecision
from bigbatch.tune.proposers.samplers import quiet_optuna
from bigbatch.tune.runs.objective import Objective
from bigbatch.tune.runs.objectives import Objectives
from bigbatch.tune.runs.run import EPOCH_ATTR
from bigbatch.tune.storage.description import provenance
from bigbatch.tune.storage.store import StudyStore
from bigbatch.tune.storage.summary import summarize
from bigbatch.tune.strategies import make_strategy
from bigbatch.tune.trials.live_trial import LiveTrial, Over, StudyKeeper
from bigbatch.tune.trials.trial_manager import TrialManager

TARGET_MS, TARGET_BYTES = 20.0, 100_000
DIMENSIONS = (
    Dimension("peak_lr", optuna.distributions.FloatDistribution(1e-3, 10.0, log=True)),
    Dimension("weight_decay", optuna.distributions.FloatDistribution(1e-6, 1e-2, log=True)),
    Dimension("momentum", optuna.distributions.FloatDistribution(0.8, 0.99)),
    Dimension("optimizer", optuna.distributions.CategoricalDistribution(("sgd", "lars", "lamb"))),
)


BATCHES = optuna.distributions.CategoricalDistribution((256, 1024, 4096, 16384))
BATCH = Dimension("global_batch_size", BATCHES)


class SampledConfigurations:
    """Configurations of some dimensions, as a space makes them."""

    name = "driver_scale"

    def __init__(self, epochs: int, dimensions: tuple[Dimension, ...]) -> None:
        self._epochs, self._dimensions = epochs, dimensions

    def new(self, trial: optuna.trial.Trial) -> TrainConfig:
        """Sample the trial's parameters."""
        keys: dict[str, object] = {"epochs": self._epochs, "schedule.warmup_epochs": 0}
        for dimension in self._dimensions:
            key = "optimizer.name" if dimension.name == "optimizer" else f"optimizer.{dimension.name}"
            key = BATCH.name if dimension is BATCH else key
            keys[key] = trial._suggest(dimension.name, dimension.distribution)
        return TrainConfig().replace_keys(keys)

    def again(self, stored: Mapping[str, object]) -> TrainConfig:
        """The stored configuration."""
        return TrainConfig.from_dict(dict(stored))


@dataclass
class Window:
    """The trials from one measurement to the next."""

    trials: int
    """Trials of the study at its end."""
    ms_per_trial: float
    """Wall time."""
    cpu_ms_per_trial: float
    """Of this process alone: nearly the same on an idle machine, and right on a busy one."""
    bytes_per_trial: float
    """Growth of the journal, or of this process's memory if the study is in memory."""


def accuracy(params: Mapping[str, object], epoch: int, epochs: int, noise: random.Random) -> float:
    """A power law to an end that falls with the distance from the best rate."""
    distance = abs(math.log10(float(str(params["peak_lr"]))) + 0.5)
    return max(0.1, 0.9 - 0.15 * distance - 0.4 * (epoch / epochs + 0.1) ** -0.5 * 0.3) + noise.gauss(0, 0.005)


def record_of(value: float, epoch: int, epochs: int) -> dict[str, object]:
    """A whole record, as long as a real one in the journal."""
    record = EpochRecord(
        epoch=epoch, epochs=epochs, train_loss=1.2345678901, train_top1=value, val_loss=1.1234567890, val_top1=value,
        learning_rate=0.12345678901, optimizer_steps=epoch * 100, skipped_steps=0, images_per_s=1234.5678901234,
        train_s=12.345678901, data_s=0.12345678901, step_s=12.222222, bn_s=0.333333333, val_s=1.111111111,
        checkpoint_s=0.2222222, noise_scale=1234.567890123,
    )  # fmt: skip
    return dict(record.to_dict())


def fill(study: optuna.Study, trials: int, epochs: int, frontier: bool) -> None:
    """Add finished trials, as many sessions before this one would have left them."""
    noise, made = random.Random(2), []
    space = {dimension.name: dimension.distribution for dimension in (*DIMENSIONS, *([BATCH] if frontier else []))}
    config = TrainConfig().replace_keys({"epochs": epochs, "schedule.warmup_epochs": 0}).to_dict()
    for _ in range(trials):
        params = {
            "peak_lr": 10 ** noise.uniform(-3, 1), "weight_decay": 10 ** noise.uniform(-6, -2),
            "momentum": noise.uniform(0.8, 0.99), "optimizer": noise.choice(("sgd", "lars", "lamb")),
            **({BATCH.name: noise.choice(BATCHES.choices)} if frontier else {}),
        }  # fmt: skip
        values = {e: accuracy(params, e, epochs, noise) for e in range(1, epochs + 1)}
        records = {f"{EPOCH_ATTR}{e:05d}": record_of(value, e, epochs) for e, value in values.items()}
        made.append(
            optuna.trial.create_trial(
                params=params, distributions=space, value=values[epochs], intermediate_values=values,
                user_attrs={"config": config, **records},
            )
        )  # fmt: skip
    study.add_trials(made)


class Search:
    """A search whose trials train in no time."""

    def __init__(
        self, keeper: StudyKeeper, case: tuple[str, str], trials: int, slots: int, epochs: int, frontier: bool
    ) -> None:
        dimensions = (*DIMENSIONS, BATCH) if frontier else DIMENSIONS
        facts = self.facts = SearchFacts(
            dimensions, trials, epochs, slots, seed=1, frontier=BATCH.name if frontier else None
        )
        self.manager = TrialManager(
            keeper,
            make_strategy(*case, facts),
            SampledConfigurations(epochs, dimensions),
            objectives=Objectives(),
            trials=trials,
            workers=1,
            observers=[],
        )
        self._slots, self._epochs, self._noise, self._started = slots, epochs, random.Random(1), 0
        self._live: dict[str, LiveTrial] = {}
        self._over = False

    def go_on(self) -> bool:
        """Fill the slots, then let each live trial finish an epoch. Returns whether the search goes on."""
        while len(self._live) < self._slots:
            name = f"t{self._started}"
            try:
                live = self.manager.next_trial(name)
            except Over:
                self._over = True
                break
            if live is None:
                break
            self._live[name] = live
            self._started += 1
        for name, live in list(self._live.items()):
            epoch = live.epochs + 1
            value = accuracy(live.params, epoch, self._epochs, self._noise)
            decision = self.manager.take_in(name, record_of(value, epoch, self._epochs))
            if decision == TrialDecision.PAUSE:
                self.manager.ended(name)
            if decision != TrialDecision.GO_ON:
                del self._live[name]
        return bool(self._live) or not self._over


def memory_bytes() -> int:
    """Resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def measure(
    case: tuple[str, str],
    storage: str,
    trials: int,
    slots: int,
    epochs: int,
    windows: int,
    limit_s: float,
    begin_at: int,
    frontier: bool = False,
) -> tuple[list[Window], dict[str, float]]:
    """The windows of one search, and what its study costs as a whole (journal only)."""
    with tempfile.TemporaryDirectory(prefix="bigbatch-scale-") as folder:
        home = Path(folder) / "study"
        journal = storage == "journal"
        keeper = StudyStore.create(home, "study", {}, None) if journal else _in_memory(Path(folder))
        fill(keeper.study, begin_at, epochs, frontier)
        search, found = Search(keeper, case, begin_at + trials, slots, epochs, frontier), list[Window]()
        search.manager.recover()
        began = time.perf_counter()
        at, used, before = (began, time.process_time()), _used(home, journal), begin_at
        goes_on = True
        while goes_on and time.perf_counter() - began < limit_s:
            goes_on = search.go_on()
            count = search.manager.finished
            if count >= begin_at + (len(found) + 1) * trials // windows:
                now, bytes_now = (time.perf_counter(), time.process_time()), _used(home, journal)
                wall_ms, cpu_ms = (1e3 * (b - a) / (count - before) for a, b in zip(at, now, strict=True))
                found.append(Window(count, wall_ms, cpu_ms, (bytes_now - used) / (count - before)))
                at, used, before = now, bytes_now, count
        opened = _open_again(keeper) if isinstance(keeper, StudyStore) else {}
    return found, opened


def _in_memory(folder: Path) -> StudyKeeper:
    return MemoryKeeper(folder, SimulatedClock(), Objective())


def _used(home: Path, journal: bool) -> int:
    return (home / "optuna.journal").stat().st_size if journal else memory_bytes()


def _open_again(keeper: StudyStore) -> dict[str, float]:
    """What the study costs as a whole, in seconds of this process: what each command with it needs."""
    keeper.close()
    folder, found = keeper.folder, dict[str, float]()
    with timed(found, "studies_s"):
        summarize(folder, details=False)
    with timed(found, "show_s"):
        summarize(folder)
    with timed(found, "open_s"):
        again = StudyStore.open(folder, None)
    found["trials"] = len(again.study.get_trials(deepcopy=False))
    with timed(found, "tables_s"):
        again.refresh(force=True)
    again.close()
    return found


@contextlib.contextmanager
def timed(found: dict[str, float], name: str) -> Iterator[None]:
    """Note the CPU time of the block."""
    began = time.process_time()
    yield
    found[name] = time.process_time() - began


def parse() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--begin-at", type=int, nargs="+", default=[0], help="trials that the study already has")
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--windows", type=int, default=10)
    parser.add_argument("--limit-s", type=float, default=math.inf, help="end a case after this time")
    parser.add_argument("--storage", nargs="+", default=["memory", "journal"], choices=["memory", "journal"])
    cases = ["auto+auto", "tpe+asha", "random+asha", "qmc+asha"]
    parser.add_argument("--cases", nargs="+", metavar="STRATEGY+STOPPING", default=cases)
    parser.add_argument("--frontier", action="store_true", help="also search over four batches, as a frontier")
    parser.add_argument("--profile", type=Path, help="of all cases together, for pstats")
    parser.add_argument("--output", type=Path)
    return parser.parse_args()


def main() -> None:
    """Measure each strategy on each storage; print the windows and store them."""
    o = parse()
    quiet_optuna()
    rows = []
    profile = cProfile.Profile() if o.profile else contextlib.nullcontext()
    for storage in o.storage:
        for text, begin_at in itertools.product(o.cases, o.begin_at):
            strategy, _, stopping = text.partition("+")
            with profile:
                windows, costs = measure(
                    (strategy, stopping),
                    storage,
                    o.trials,
                    o.slots,
                    o.epochs,
                    o.windows,
                    o.limit_s,
                    begin_at,
                    o.frontier,
                )
            row = {"case": text, "storage": storage, "begin_at": begin_at}
            rows.append({**row, "windows": [vars(one) for one in windows], "opened": costs})
            print(f"{storage:8} {text:14} " + summary(windows), costs or "", flush=True)
    result = {
        "benchmark": "driver_scale",
        "targets": {"ms_per_trial": TARGET_MS, "bytes_per_trial": TARGET_BYTES},
        "trials": o.trials, "slots": o.slots, "epochs": o.epochs, "frontier": o.frontier, "rows": rows,
        "provenance": provenance(),
    }  # fmt: skip
    if isinstance(profile, cProfile.Profile):
        profile.dump_stats(o.profile)
    store(json.loads(json.dumps(result, default=str)), o.output)


def summary(windows: list[Window]) -> str:
    """The first and the last window in words."""
    if not windows:
        return "ended before its first window"
    first, last = windows[0], windows[-1]
    cost = f"{first.cpu_ms_per_trial:7.1f} → {last.cpu_ms_per_trial:7.1f} ms CPU ({last.ms_per_trial:.1f} ms wall)"
    return f"{cost}, {last.bytes_per_trial / 1e3:7.1f} kB a trial (trials {first.trials} → {last.trials})"


if __name__ == "__main__":
    main()
