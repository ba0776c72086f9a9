"""The board of gauges, with a clock and without Ray: what is set, kept, and let go."""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from bigbatch.train_loop.config import OptimizerConfig
from bigbatch.train_loop.host.gpu_counters import GpuCounters
from bigbatch.train_loop.launch import gauges, worker_gauges
from bigbatch.train_loop.launch.gauges import GAUGES, KEEP_ENDED_S, GaugeBoard, GaugeKind
from bigbatch.train_loop.launch.trial_task import TrialTask
from bigbatch.train_loop.loop.train import train
from bigbatch.train_loop.reporter import EpochRecord, ListReporter
from helpers import tiny_training
from helpers.waiting import wait_until

UNITS = ("seconds", "bytes", "ratio", "watts", "images", "hours", "per_second", "epochs", "trials")
WITHOUT_UNIT = {"bigbatch_objective", "bigbatch_best_objective", "bigbatch_train_loss", "bigbatch_learning_rate"}
TAGS = {"study": "s", "trial": "3"}


class Shown:
    """What a round hands to Ray; and the time."""

    def __init__(self) -> None:
        self.values: dict[tuple[str, str], float] = {}
        self.now = 0.0

    def __call__(self, kind: GaugeKind, value: float, tags: Mapping[str, str]) -> None:
        self.values[kind.name, ",".join(f"{k}={v}" for k, v in tags.items())] = value

    def round(self, board: GaugeBoard) -> dict[tuple[str, str], float]:
        self.values = {}
        board.refresh()
        return self.values


class Listener(ListReporter):
    """A reporter that hears of steps, as Ray's."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[tuple[int, int, int]] = []

    def steps_done(self, epoch: int, step: int, steps: int, images_per_step: int) -> None:
        self.steps.append((epoch, step, steps))

    def resumed(self, history: Sequence[EpochRecord]) -> None:
        self.records.extend(history)


@pytest.fixture
def shown() -> Shown:
    return Shown()


def test_names_follow_prometheus_conventions() -> None:
    """https://prometheus.io/docs/practices/naming: one prefix, snake case, base units as the last words."""
    names = [kind.name for kind in GAUGES]
    assert len(set(names)) == len(names)
    for kind in GAUGES:
        assert re.fullmatch(r"bigbatch_[a-z0-9]+(_[a-z0-9]+)*", kind.name)
        assert kind.name.endswith(UNITS) or kind.name in WITHOUT_UNIT, f"{kind.name} needs its unit"
        assert not kind.name.endswith("_total"), "that is a counter's"
        assert kind.tags[0] == "study" and all(re.fullmatch("[a-z]+", tag) for tag in kind.tags)
    defined = {value for value in vars(gauges).values() if isinstance(value, GaugeKind)}
    assert defined == set(GAUGES)


def test_each_round_sets_all_values_again(shown: Shown) -> None:
    board = GaugeBoard(sink=shown, clock=lambda: shown.now)
    board.set(gauges.TRAIN_LOSS, 0.5, **TAGS)
    board.set(gauges.TRAIN_LOSS, 0.25, **TAGS)
    expected = {("bigbatch_train_loss", "study=s,trial=3"): 0.25}
    assert shown.round(board) == expected
    shown.now = 1e6
    assert shown.round(board) == expected, "Ray forgets a value that it has exported"


@pytest.mark.parametrize("absent", [None, math.nan])
def test_what_is_not_measured_is_no_zero(shown: Shown, absent: float | None) -> None:
    board = GaugeBoard(sink=shown)
    board.set(gauges.GPU_MEMORY, absent, rank=0, **TAGS)
    assert shown.round(board) == {}
    board.set(gauges.NOISE_SCALE, 300.0, **TAGS)
    board.set(gauges.NOISE_SCALE, absent, **TAGS)
    assert shown.round(board) == {}, "an old value is not the present one"


def test_an_ended_trial_is_let_go_after_a_while(shown: Shown) -> None:
    board = GaugeBoard(sink=shown, clock=lambda: shown.now)
    for trial in ("3", "30"):
        board.set(gauges.TRAIN_LOSS, 1.0, study="s", trial=trial)
    board.set(gauges.TRIALS, 2, study="s", state="running")
    board.end(study="s", trial=3)
    assert len(shown.round(board)) == 3
    shown.now = KEEP_ENDED_S
    assert set(shown.round(board)) == {
        ("bigbatch_train_loss", "study=s,trial=30"),
        ("bigbatch_trials", "study=s,state=running"),
    }


def test_a_trial_that_goes_on_is_kept(shown: Shown) -> None:
    board = GaugeBoard(sink=shown, clock=lambda: shown.now)
    board.set(gauges.TRAIN_LOSS, 1.0, **TAGS)
    board.end(**TAGS)
    board.set(gauges.TRAIN_LOSS, 0.5, **TAGS)
    shown.now = 10 * KEEP_ENDED_S
    assert list(shown.round(board).values()) == [0.5]


def test_a_look_that_fails_ends_nothing(shown: Shown) -> None:
    looked = threading.Semaphore(0)

    def look(board: GaugeBoard) -> None:
        looked.release()
        if not shown.values:
            shown.values["first", ""] = 0.0
            raise RuntimeError("Ray does not answer")
        board.set(gauges.EPOCHS, 1.5, **TAGS)

    with GaugeBoard(look, shown):
        wait_until(lambda: ("bigbatch_epochs", "study=s,trial=3") in shown.values, "no round after the failure")
    assert looked.acquire(blocking=False)


class Nvml:
    """NVML's functions for one GPU; a GPU costs money."""

    class NVMLError(Exception):
        """As pynvml's."""

    def nvmlDeviceGetTotalEnergyConsumption(self, _: object) -> int:
        return 0

    def nvmlDeviceGetPowerUsage(self, _: object) -> int:
        return 250_000

    def nvmlDeviceGetUtilizationRates(self, _: object) -> SimpleNamespace:
        return SimpleNamespace(gpu=80)

    def nvmlDeviceGetMemoryInfo(self, _: object) -> SimpleNamespace:
        raise self.NVMLError


def a_task(tmp_path, **tags: str) -> TrialTask:
    folders = dict.fromkeys(("ray_storage", "checkpoint_dir", "log_file", "stop_file"), tmp_path)
    return TrialTask(
        name="trial-0003",
        config=tiny_training.CONFIG,
        workers=1,
        worker_resources={"CPU": 1.0},
        restarts=0,
        checkpoint_every_s=1.0,
        gauge_tags=tags,
        **folders,
    )


def test_a_task_keeps_its_tags_between_processes(tmp_path) -> None:
    task = a_task(tmp_path, **TAGS)
    assert TrialTask.from_dict(task.to_dict()) == task


def test_without_tags_nothing_stands_before_the_reporter(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(worker_gauges, "GaugeBoard", None)
    reporter = Listener()
    with worker_gauges.worker_gauges(a_task(tmp_path), reporter, torch.device("cpu"), 0) as gauged:
        assert gauged is reporter


def test_a_gpu_shows_what_nvml_tells_and_nothing_else(tmp_path, monkeypatch, shown: Shown) -> None:
    monkeypatch.setattr(worker_gauges, "_gpu_of", lambda _: GpuCounters(Nvml(), None))
    boards = []
    monkeypatch.setattr(worker_gauges, "GaugeBoard", lambda look: boards.append(GaugeBoard(look, shown)) or boards[0])
    with worker_gauges.worker_gauges(a_task(tmp_path, **TAGS), Listener(), torch.device("cpu"), 1):
        found = shown.round(boards[0])
    where = "study=s,trial=3,rank=1"
    assert found == {("bigbatch_gpu_utilization_ratio", where): 0.8, ("bigbatch_gpu_power_watts", where): 250.0}


@pytest.mark.parametrize(("name", "quantiles"), [("lars", 5), ("sgd", 0)])
def test_a_run_shows_its_epochs_and_trust_ratios(
    tmp_path, monkeypatch, shown: Shown, name: str, quantiles: int
) -> None:
    tiny_training.install(monkeypatch.setattr)
    config = replace(tiny_training.CONFIG, optimizer=OptimizerConfig(name=name, peak_lr=0.2))
    board, reporter = GaugeBoard(sink=shown), Listener()
    train(config, reporter=worker_gauges.GaugedReporter(reporter, board, TAGS), device=torch.device("cpu"))
    assert len(reporter.records) == config.epochs
    found = shown.round(board)
    assert found["bigbatch_epochs", "study=s,trial=3"] == config.epochs
    ratios = [value for (gauge, _), value in found.items() if gauge == "bigbatch_trust_ratio"]
    assert len(ratios) == quantiles and ratios == sorted(ratios)


def test_progress_within_an_epoch_is_a_fraction(shown: Shown) -> None:
    board, behind = GaugeBoard(sink=shown), Listener()
    reporter = worker_gauges.GaugedReporter(behind, board, TAGS)
    reporter.steps_done(3, 1, 4, 128)
    assert shown.round(board) == {("bigbatch_epochs", "study=s,trial=3"): 2.25}
    assert behind.steps == [(3, 1, 4)], "the display still hears of it"
