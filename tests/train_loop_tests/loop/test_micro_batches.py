"""A step's micro-batches come one by one: what is computed with one does not wait for the others."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from bigbatch.train_loop.config import BatchSplit
from bigbatch.train_loop.data import sampling
from bigbatch.train_loop.data.source import Batch
from bigbatch.train_loop.loop import chronometer
from bigbatch.train_loop.loop.chronometer import Chronometer
from bigbatch.train_loop.reporter import EpochRecord
from helpers.loop_references import run
from helpers.tiny_training import CONFIG, TRAIN_SIZE, TinySource, bn_model, changed, install

FOUR = changed(CONFIG, epochs=2, global_size=32, micro_size=8, precise_bn="off")
"""Two steps an epoch of four micro-batches; 6 of 70 images are left."""


class Watched(TinySource):
    """Says when a micro-batch is fetched, and of which images."""

    def __init__(self, events: list[str]) -> None:
        super().__init__()
        self.events = events
        self.rows: list[int] = []

    def read_train(self, batches: Sequence[Any], epoch: object) -> Iterator[Batch]:
        for rows, batch in zip(batches, super().read_train(batches, epoch), strict=True):
            self.events.append("fetched")
            self.rows += rows.tolist()
            yield batch
        self.events.append("end")


def watched_training(monkeypatch: pytest.MonkeyPatch, **changes: object) -> tuple[Watched, EpochRecord]:
    source = Watched([])

    def build() -> nn.Module:
        model = bn_model()
        model.register_forward_pre_hook(lambda m, _: source.events.append("computed") if m.training else None)
        return model

    install(monkeypatch.setattr, build, source)
    return source, run(changed(FOUR, **changes))[-1]


def test_each_micro_batch_is_computed_before_the_next_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    source, _ = watched_training(monkeypatch)
    assert source.events == [*["fetched", "computed"] * 8, "end"] * 2


@pytest.mark.parametrize("drop_last", [True, False])
def test_every_image_of_an_epoch_is_trained_on_once(monkeypatch: pytest.MonkeyPatch, drop_last: bool) -> None:
    source, last = watched_training(monkeypatch, drop_last=drop_last, global_size=48, micro_size=12)
    steps = [48] if drop_last else [48, 20]  # of the 22 that are left 4 micro-batches of 5
    for epoch, rows in enumerate(np.split(np.array(source.rows), 2)):
        assert rows.tolist() == sampling.train_order(TRAIN_SIZE, 0, epoch)[: sum(steps)].tolist()
    assert last.optimizer_steps == 2 * len(steps)


@pytest.mark.parametrize("taken", [0, 1, 4])
def test_a_step_that_is_not_gone_through_leaves_nothing_to_the_next(taken: int) -> None:
    split, source = BatchSplit(1, 4, 8), TinySource()
    steps = source.train_steps(3, 1, split, 0)
    first = iter(next(steps))
    for _ in range(taken):
        next(first)
    second = list(next(steps))
    want = list(source.train_steps(3, 1, split, 0, start_step=1))
    assert len(want) == 1 and len(second) == 4 == len(want[0])
    rows = sampling.train_order(TRAIN_SIZE, 3, 1)[32:64].reshape(4, 8)
    for (images, labels), indices in zip(second, rows, strict=True):
        assert torch.equal(images, source.train[0][indices]) and torch.equal(labels, source.train[1][indices])
    assert next(steps, None) is None


def test_waiting_within_a_step_counts_as_waiting_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(chronometer.time, "perf_counter", lambda: now[0])
    clock = Chronometer(torch.device("cpu"))

    def items() -> Iterator[int]:
        for number in range(3):
            now[0] += 10.0
            yield number
        now[0] += 5.0

    with clock.part("checkpoint_s"):
        with clock.part("step_s"):
            for _ in clock.waiting(items(), "data_s"):
                now[0] += 1.0
        now[0] += 100.0
    seconds = {name: value for name, value in clock.seconds.items() if value}
    assert seconds == {"data_s": 35.0, "step_s": 3.0, "checkpoint_s": 100.0}
