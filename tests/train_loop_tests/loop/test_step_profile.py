"""What a profile measures, against a clock that only the parts of a step move, and against the real one."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterator, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from bigbatch.train_loop.config import TrainConfig
from bigbatch.train_loop.data.source import Batch
from bigbatch.train_loop.loop import chronometer, step_profile, validation
from bigbatch.train_loop.loop.assembly import Run, set_up
from bigbatch.train_loop.loop.checkpoint import CheckpointFolder
from bigbatch.train_loop.loop.chronometer import OTHER, PHASES, STEP
from bigbatch.train_loop.loop.step_profile import measure_steps, trace_steps
from bigbatch.train_loop.reporter import ListReporter
from helpers.tiny_training import CLASSES, CONFIG, SIDE, TRAIN_SIZE, VAL_SIZE, TinySource, changed, install

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
READ_S, FORWARD_S, BACKWARD_S, OPTIMIZER_S, SUM_S = 0.5, 0.25, 0.125, 0.0625, 4.0
"""Powers of two: their sums are exact."""


class Clock:
    """Seconds that pass when a part of a step says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


class SlowSource(TinySource):
    """Each batch takes READ_S."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def _slowly(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        for batch in batches:
            self._clock.now += READ_S
            yield batch

    def read_train(self, batches: Sequence[Any], epoch: object) -> Iterator[Batch]:
        return self._slowly(super().read_train(batches, epoch))

    def read_val(self, batches: Sequence[Any]) -> Iterator[Batch]:
        return self._slowly(super().read_val(batches))


class SlowModel(nn.Module):
    """A linear model whose passes take FORWARD_S and BACKWARD_S."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.linear = nn.Linear(3 * SIDE * SIDE, CLASSES)
        self._clock = clock

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self._clock.now += FORWARD_S
        logits: torch.Tensor = self.linear(images.flatten(1))
        if logits.requires_grad:
            logits.register_hook(self._backward)
        return logits

    def _backward(self, _: torch.Tensor) -> None:
        self._clock.now += BACKWARD_S


def tiny_run(config: TrainConfig = CONFIG, device: str = "cpu") -> Run:
    return set_up(config, ListReporter(), CheckpointFolder(None, 0.0), torch.device(device))


@pytest.fixture
def slow_run(monkeypatch: pytest.MonkeyPatch) -> tuple[Run, Clock]:
    """Two micro-batches a step; each part of it takes a known time."""
    clock = Clock()
    install(monkeypatch.setattr, build=partial(SlowModel, clock), source=SlowSource(clock))
    monkeypatch.setattr(chronometer, "time", SimpleNamespace(perf_counter=clock.perf_counter))
    run = tiny_run(changed(CONFIG, precise_bn="off"))

    def optimizer_takes_time(*_: object) -> None:
        clock.now += OPTIMIZER_S

    run.optimizer.register_step_pre_hook(optimizer_takes_time)
    return run, clock


def test_each_phase_gets_the_time_that_it_took_and_estimates_are_those_of_a_run(slow_run: tuple[Run, Clock]) -> None:
    """70 images make 4 steps of 16; 23 validation images make 2 batches of at most 16."""
    profile = measure_steps(slow_run[0], 7)
    expected = {"data": 2 * READ_S, "transfer": 0, "forward": 2 * FORWARD_S, "backward": 2 * BACKWARD_S}
    expected |= {"optimizer": OPTIMIZER_S, OTHER: 0}
    step_s, val_s = sum(expected.values()), 2 * (READ_S + FORWARD_S)
    assert profile.phases == {**expected, STEP: step_s, "communication": 0}
    assert (TRAIN_SIZE, VAL_SIZE) == (70, 23)
    assert (profile.images_per_s, profile.train_s, profile.val_s) == (16 / step_s, 4 * step_s, val_s)
    assert profile.run_s == 3 * (4 * step_s + val_s)


def test_a_validation_of_a_few_batches_counts_the_wait_for_the_first(slow_run, monkeypatch) -> None:
    run, clock = slow_run
    val_batches = run.source.val_batches

    def slow_to_begin(*words: int) -> Iterator[Any]:
        clock.now += 30
        yield from val_batches(*words)

    monkeypatch.setattr(run.source, "val_batches", slow_to_begin)
    assert measure_steps(run, 7).val_s == 30 + 2 * (READ_S + FORWARD_S)


def test_on_a_gpu_no_validation_but_the_first_chooses_kernels(slow_run, monkeypatch) -> None:
    """cuDNN tries its algorithms with each new shape. In a run a smaller last batch is filled up: it has one shape."""
    run, clock = slow_run
    shapes: set[torch.Size] = set()

    def chooses(model: nn.Module, inputs: tuple[torch.Tensor]) -> None:
        if not model.training and inputs[0].shape not in shapes:
            shapes.add(inputs[0].shape)
            clock.now += 30

    run.model.register_forward_pre_hook(chooses)
    for place in (step_profile, validation):
        monkeypatch.setattr(place, "tunes_shapes", lambda device: True)
    assert measure_steps(run, 7).val_s == 2 * (READ_S + FORWARD_S) and len(shapes) == 1


def test_communication_is_what_sums_over_workers_add(slow_run, tmp_path, monkeypatch):
    """A real DDP of one process, whose sums take SUM_S."""
    run, clock = slow_run
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    try:
        parallel = DistributedDataParallel(run.model)

        def slow_sum(_: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
            clock.now += SUM_S
            future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
            future.set_result(bucket.buffer())
            return future

        slow_sum.__annotations__.clear()
        parallel.register_comm_hook(None, slow_sum)
        run.step = dataclasses.replace(run.step, parallel=parallel)
        phases = measure_steps(run, 5).phases
    finally:
        dist.destroy_process_group()
    assert (phases["communication"], phases["backward"]) == (SUM_S, SUM_S + 2 * BACKWARD_S), "a part of it"


@pytest.mark.parametrize("device", DEVICES)
def test_real_steps_take_the_time_of_their_parts_and_leave_the_weights_as_they_were(device, built):
    run = tiny_run(changed(CONFIG, optimizer__name="lars"), device)
    before = [parameter.clone() for parameter in built.model.parameters()]
    began = time.perf_counter()
    profile = measure_steps(run, 20)
    took = time.perf_counter() - began
    assert all(torch.equal(a, b) for a, b in zip(before, built.model.parameters(), strict=True))
    parts = [profile.phases[name] for name in (*PHASES, OTHER)]
    assert min(parts) >= 0 and sum(parts) == pytest.approx(profile.phases[STEP], rel=1e-9)
    assert 0 < 20 * profile.phases[STEP] <= took and profile.memory_bytes > 0


@pytest.mark.parametrize("device", DEVICES)
def test_a_trace_names_each_phase_of_each_step(device, tmp_path, built):
    """Two micro-batches a step: their phases come twice, and data also for the step itself."""
    trace_steps(tiny_run(device=device), 4, str(tmp_path / "trace"))
    (path,) = (tmp_path / "trace").glob("rank0.*.pt.trace.json")
    events = [event for event in json.loads(path.read_text())["traceEvents"] if event.get("cat") == "user_annotation"]
    counts = {name: sum(event["name"] == name for event in events) for name in (*PHASES, "step")}
    assert counts == {"data": 12, "transfer": 8, "forward": 8, "backward": 8, "optimizer": 4, "step": 4}
    steps = [event for event in events if event["name"] == "step"]
    inside = [event for event in events if event["name"] in PHASES]
    assert all(any(s["ts"] <= e["ts"] and e["ts"] + e["dur"] <= s["ts"] + s["dur"] for s in steps) for e in inside)
