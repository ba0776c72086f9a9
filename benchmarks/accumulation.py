"""A step of many micro-batches: fetched as they are computed, or collected first; with few slots and with enough.

    python benchmarks/accumulation.py [--accumulation 1 4 16] [--rounds 5] [--steps 12] [--output FILE.json]

The loader is ours (``ring.py``), with processes that sleep as long as decoding would take; the device is a clock
that is busy ``--compute-ms`` for each micro-batch. The host hands over micro-batches and goes on; it waits where it
is ``--host-ahead`` of them ahead of the device. As ``Uploader`` it holds the last two that it copied. So nothing here
depends on how fast the machine computes, only on who waits for whom. After a step to warm up ``--steps`` are timed for
each arm, the arms in turn, in another order in each round; ratios are taken within a round. Prints images a second,
and the part of the batches that the loader copied out of its slots as too many were held. Last, one JSON line.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(Path(__file__).resolve().parent)]

from optimizer_step import spread  # noqa: E402

from bigbatch.train_loop.config import BatchSplit  # noqa: E402
from bigbatch.train_loop.data import sampling  # noqa: E402
from bigbatch.train_loop.data.info import DataInfo  # noqa: E402
from bigbatch.train_loop.data.loading import ring  # noqa: E402
from bigbatch.train_loop.data.loading.upload import COPIES_AHEAD  # noqa: E402
from bigbatch.train_loop.data.source import Batch, DataSource, Epoch  # noqa: E402

SIDE = 64
ARMS = {
    "collected, 4 slots": (True, 4),
    "collected, 8 slots": (True, 8),
    "as they come, 4 slots": (False, 4),
    "as they come, 8 slots": (False, 8),
}
BEFORE, NOW = "collected, 4 slots", "as they come, 8 slots"


class Decoding:
    """A loader process's work: time without computing, so that the machine's cores decide nothing."""

    def __init__(self, image_s: float) -> None:
        self._image_s = image_s

    def __call__(
        self, job: Any, indices: sampling.Indices, pixels: torch.Tensor, places: range, ahead: sampling.Indices
    ) -> None:
        time.sleep(len(places) * self._image_s)


class Source(DataSource):
    def __init__(self, o: argparse.Namespace, images: int, slots: int) -> None:
        super().__init__(DataInfo("simulated", None, images, 1, 2, SIDE, 3, ("a", "b"), "small"))
        ring.slot_count = lambda *_: slots
        self.ring = ring.Ring(Decoding(o.decode_ms / 1e3), o.loader_workers, o.micro, SIDE)

    def read_train(self, batches: Sequence[sampling.Indices], epoch: Epoch) -> Iterator[Batch]:
        for pixels, indices in zip(self.ring.read(None, batches, SIDE), batches, strict=True):
            yield pixels, torch.zeros(len(indices), dtype=torch.int64)

    def read_val(self, batches: Sequence[sampling.Indices]) -> Iterator[Batch]:
        return iter(())  # nothing is validated here

    def val_labels(self) -> sampling.Indices:
        return torch.zeros(1, dtype=torch.int64).numpy()


class Device:
    """Works through what it was given, one micro-batch after another; ``idle_at`` is a time of the wall clock."""

    def __init__(self, compute_s: float, host_ahead: int) -> None:
        self._compute_s, self._host_ahead = compute_s, host_ahead
        self.idle_at = 0.0
        self._held: deque[Batch] = deque(maxlen=COPIES_AHEAD)

    def take(self, batch: Batch) -> None:
        self._held.append(batch)
        self.idle_at = max(self.idle_at, time.perf_counter()) + self._compute_s
        self.wait(self._host_ahead)

    def wait(self, ahead: int = 0) -> None:
        """Until so many micro-batches are left."""
        time.sleep(max(self.idle_at - ahead * self._compute_s - time.perf_counter(), 0.0))


def train(device: Device, step: Iterable[Batch]) -> None:
    for batch in step:
        device.take(batch)
        del batch


def images_per_s(o: argparse.Namespace, accumulation: int, collected: bool, slots: int) -> tuple[float, float]:
    """Of one arm; and the part of its batches that were copied."""
    split = BatchSplit(1, accumulation, o.micro)
    source = Source(o, split.global_size * (o.steps + 1), slots)
    device = Device(o.compute_ms / 1e3, o.host_ahead)
    try:
        steps: Iterator[Iterable[Batch]]
        steps = source.train_batches(0, 0, split, 0) if collected else source.train_steps(0, 0, split, 0)
        train(device, next(steps))  # processes have started
        device.wait()
        began = time.perf_counter()
        for step in steps:
            train(device, step)
        device.wait()
        rate = o.steps * split.global_size / (time.perf_counter() - began)
        return rate, source.ring.copied / source.ring.given
    finally:
        source.ring.close()


def measure(o: argparse.Namespace) -> dict[str, Any]:
    result = {}
    shuffle = random.Random(0)
    for accumulation in o.accumulation:
        rates: dict[str, list[float]] = {name: [] for name in ARMS}
        copied: dict[str, list[float]] = {name: [] for name in ARMS}
        order = list(ARMS)
        for _ in range(o.rounds):
            shuffle.shuffle(order)
            for name in order:
                rate, part = images_per_s(o, accumulation, *ARMS[name])
                rates[name].append(rate)
                copied[name].append(part)
        ratios = spread([a / b for a, b in zip(rates[NOW], rates[BEFORE], strict=True)])
        result[str(accumulation)] = {
            "images_per_s": {name: spread(values) for name, values in rates.items()},
            "copied": {name: sum(values) / len(values) for name, values in copied.items()},
            "now_to_before": ratios,
            "raw_images_per_s": rates,
        }
        print(f"\n{accumulation} accumulation steps{'':6}{'images/s':>10}{'quartiles':>16}{'copied':>8}")
        for name in ARMS:
            s = result[str(accumulation)]["images_per_s"][name]
            print(f"{name:28}{s['median']:10.0f}{s['q1']:10.0f}{s['q3']:6.0f}"
                  f"{result[str(accumulation)]['copied'][name]:8.0%}")  # fmt: skip
        print(f"now to before, within a round: {ratios['median']:.2f} ({ratios['q1']:.2f} to {ratios['q3']:.2f})")
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--accumulation", type=int, nargs="+", default=[1, 4, 16])
    add("--micro", type=int, default=64, help="images of a micro-batch")
    add("--compute-ms", type=float, default=16.0, help="of a micro-batch on the device")
    add("--decode-ms", type=float, default=0.4, help="of an image in a loader process")
    add("--loader-workers", type=int, default=2)
    add("--host-ahead", type=int, default=0, help="micro-batches; 0: as training on a CPU")
    add("--rounds", type=int, default=5)
    add("--steps", type=int, default=12)
    add("--output", type=Path)
    o = parser.parse_args()
    from store import store

    from bigbatch.tune.storage.description import provenance

    measured = measure(o)
    settings = {key: value for key, value in vars(o).items() if key != "output"}
    store(
        {"benchmark": "accumulation", "settings": settings, "provenance": provenance(),
         "machine": f"{os.cpu_count()} CPUs", "by_accumulation_steps": measured},
        o.output,
    )  # fmt: skip
    print(json.dumps({key: value["now_to_before"]["median"] for key, value in measured.items()}))


if __name__ == "__main__":
    main()
