"""What ``--profile-steps`` costs a step, and whether its phases are the step: with and without it in turn.

    python benchmarks/profile_cost.py [--model resnet50] [--size 64] [--batch 16] [--rounds 7] [--output FILE.json]
    python benchmarks/profile_cost.py --size 224 --batch 256 --precision bf16 --steps 20 --loader-workers 12  # on a GPU

Both arms take the same steps of the same run on images that are generated, in one process; they take their turn in each
round, in another order each time, and ratios are taken within a round.

  plain    the loop's step, whose phases do nothing
  timed    the same with a profile's timer: on a GPU two events for each phase

``phases`` is then a whole profile, with the loader. ``accounted`` is the time that the timed arm's steps say that they
took, over the wall time of the arm, until the device has done them: 1 if nothing is missing or counted twice.
Prints a table and, last, a JSON line.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(Path(__file__).resolve().parent)]

from optimizer_step import spread  # noqa: E402
from train_throughput import configuration, image_folder  # noqa: E402

from bigbatch.train_loop.launch.profile import profile_lines  # noqa: E402
from bigbatch.train_loop.loop.assembly import Run, set_up  # noqa: E402
from bigbatch.train_loop.loop.checkpoint import CheckpointFolder  # noqa: E402
from bigbatch.train_loop.loop.chronometer import Chronometer, StepTimer  # noqa: E402
from bigbatch.train_loop.loop.step_profile import measure_steps  # noqa: E402
from bigbatch.train_loop.loop.train import take_step  # noqa: E402
from bigbatch.train_loop.reporter import ListReporter  # noqa: E402


class Arms:
    """The same steps with each clock. ``run``: its batch has been read."""

    def __init__(self, run: Run, batch: list[Any], steps: int) -> None:
        self._run, self._batch, self._steps = run, batch, steps
        device = run.world.device
        self.clocks: dict[str, Chronometer] = {"plain": Chronometer(device), "timed": StepTimer(device)}
        self.images_per_s: dict[str, list[float]] = {name: [] for name in self.clocks}
        self.accounted: list[float] = []

    def turn(self, name: str) -> None:
        run, clock = self._run, self.clocks[name]
        run.clock, run.step = clock, dataclasses.replace(run.step, phase=clock.phase)
        began = wait(run.world.device)
        for _ in range(self._steps):
            with clock.step() if isinstance(clock, StepTimer) else contextlib.nullcontext():
                take_step(run, self._batch, 0.0)
        took = wait(run.world.device) - began
        self.images_per_s[name].append(self._steps * run.split.global_size / took)
        if isinstance(clock, StepTimer):
            self.accounted.append(sum(times["step"] for times in clock.take()) / took)

    def rounds(self, count: int) -> None:
        for name in self.clocks:
            self.turn(name)  # caches, state, compiling
        for values in (*self.images_per_s.values(), self.accounted):
            values.clear()
        order, shuffle = list(self.clocks), random.Random(0)
        for _ in range(count):
            shuffle.shuffle(order)
            for name in order:
                self.turn(name)


def measure(o: argparse.Namespace, folder: Path) -> dict[str, Any]:
    config = configuration(o, folder, "off")
    run = set_up(config, ListReporter(), CheckpointFolder(None, 0.0), torch.device(o.device))
    try:
        batch = next(iter(run.source.train_batches(0, 0, run.split, 0)))
        run.source.close()  # its processes would decode beside the steps
        arms = Arms(run, batch, o.steps)
        arms.rounds(o.rounds)
        profile = measure_steps(run, o.steps * o.rounds)
    finally:
        run.source.close()
    print("\n".join(profile_lines(profile)))
    raw = arms.images_per_s
    return {
        "images_per_s": {name: spread(values) for name, values in raw.items()},
        "timed / plain": spread([a / b for a, b in zip(raw["timed"], raw["plain"], strict=True)]),
        "accounted": spread(arms.accounted),
        "phases": dataclasses.asdict(profile),
        "raw_images_per_s": raw,
    }


def wait(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def main() -> None:
    from store import store

    from bigbatch.tune.storage.description import provenance

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add, switch = parser.add_argument, argparse.BooleanOptionalAction
    add("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    add("--model", default="resnet50")
    add("--size", type=int, default=64, help="pixels a side")
    add("--batch", type=int, default=16)
    add("--precision", choices=("off", "bf16"), default="off")
    add("--channels-last", action=switch, default=True)
    add("--loader-workers", type=int, default=1)
    add("--images", help="an image folder (default: generated)")
    add("--generate", type=int, default=64, help="images to generate for each part")
    add("--steps", type=int, default=5, help="in each turn")
    add("--rounds", type=int, default=7)
    add("--output", type=Path)
    o = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = measure(o, image_folder(o, Path(folder)))
    for name in ("timed / plain", "accounted"):
        s = result[name]
        print(f"{name:16}{s['median']:8.3f}   quartiles {s['q1']:.3f} {s['q3']:.3f}")
    settings = {name: value for name, value in vars(o).items() if name != "output"}
    machine = torch.cuda.get_device_name() if o.device == "cuda" else f"{os.cpu_count()} CPUs"
    store(
        {"benchmark": "profile_cost", "settings": settings, "provenance": provenance(), "machine": machine, **result},
        o.output,
    )
    print(json.dumps({name: result[name]["median"] for name in ("timed / plain", "accounted")}))


if __name__ == "__main__":
    main()
