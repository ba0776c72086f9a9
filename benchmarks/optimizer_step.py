"""Time of an optimizer step on ResNet-50's 161 tensors: LARS and LAMB against torch's and timm's.

    python benchmarks/optimizer_step.py [--device cpu] [--rounds 21] [--threads 1] [--output FILE.json]

Every arm has its own copy of ResNet-50's parameters (25.6 million, float32) with fixed gradients, in the
two groups of ``parameter_groups``: weights decay, biases and BatchNorm parameters do not. The arms step
in turn, one step each a round; their order changes with each round. A ratio is taken within a round, so a machine
that is slow for a while slows both sides. On a GPU a round's step is the mean of 10, between two
events. Prints median, quartiles and ratios, and, last, one JSON line.

``sgd_fused`` and ``adamw_fused`` are torch's fastest, and what ``build_optimizer`` makes, except on CPUs with fp16.
``noise_scale`` is what each step's two norms of all gradients cost, where the gradient noise scale is measured.
Arms ``timm_*`` are timm's optimizers with its own choice of implementation, ``timm_*_foreach`` with
its multi-tensor one. timm's LAMB clips the global gradient norm, as does our arm ``lamb``; arms ``*_noclip`` do not.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from bigbatch.train_loop.optim import LAMB, LARS, parameter_groups  # noqa: E402
from bigbatch.train_loop.optim.noise_scale import GradientNorms  # noqa: E402

GPU_STEPS = 10
PAIRS = (
    ("sgd_fused", "sgd_foreach"),
    ("adamw_fused", "adamw_foreach"),
    ("lars", "sgd_fused"),
    ("lamb", "adamw_fused"),
    ("noise_scale", "sgd_fused"),
    ("lars", "sgd_foreach"),
    ("lars", "timm_lars"),
    ("lars", "timm_lars_foreach"),
    ("lamb", "adamw_foreach"),
    ("lamb", "timm_lamb"),
    ("lamb", "timm_lamb_foreach"),
)


class NoiseScale:
    """Not an optimizer: the norms that a step takes to measure the gradient noise scale."""

    def __init__(self, groups: list[dict[str, Any]]) -> None:
        self._params = [p for group in groups for p in group["params"]]
        self._norms = GradientNorms(self._params[0].device, accumulation_steps=2, workers=1)

    def step(self) -> None:
        self._norms.first_micro_batch(self._params)
        self._norms.step(self._params, 1.0)


Arm = torch.optim.Optimizer | NoiseScale
T = TypeVar("T")


def arms() -> dict[str, Callable[[list[dict[str, Any]]], Arm]]:
    """Each arm's optimizer of the two groups; timm's where it is installed."""
    found: dict[str, Callable[[list[dict[str, Any]]], Arm]] = {
        "sgd_fused": lambda g: torch.optim.SGD(g, lr=0.1, momentum=0.9, fused=True),
        "adamw_fused": lambda g: torch.optim.AdamW(g, lr=1e-3, fused=True),
        "noise_scale": NoiseScale,
        "sgd_foreach": lambda g: torch.optim.SGD(g, lr=0.1, momentum=0.9, foreach=True),
        "adamw_foreach": lambda g: torch.optim.AdamW(g, lr=1e-3, foreach=True),
        "lars": lambda g: LARS(with_ratio(g), lr=0.1, momentum=0.9),
        "lamb": lambda g: LAMB(with_ratio(g), lr=1e-3),
    }
    try:
        import timm.optim as timm
    except ModuleNotFoundError:
        print("timm is not installed: its arms are left out", file=sys.stderr)
        return found
    return found | {
        "timm_lars": lambda g: timm.Lars(g, lr=0.1, momentum=0.9),
        "timm_lars_foreach": lambda g: timm.Lars(g, lr=0.1, momentum=0.9, foreach=True),
        "timm_lamb": lambda g: timm.Lamb(g, lr=1e-3, max_grad_norm=None),
        "timm_lamb_foreach": lambda g: timm.Lamb(g, lr=1e-3, max_grad_norm=None, foreach=True),
    }


def with_ratio(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """No ratio where the decay is 0, as timm has it."""
    return [{**group, "trust_ratio": group["weight_decay"] > 0} for group in groups]


def build(make: Callable[[list[dict[str, Any]]], Arm], device: str, network: str) -> Arm:
    import torchvision

    torch.manual_seed(0)
    model = torchvision.models.get_model(network).to(device)
    for p in model.parameters():
        p.grad = 0.01 * torch.randn_like(p)
    groups = parameter_groups(model, 5e-5)
    assert network != "resnet50" or sum(len(group["params"]) for group in groups) == 161
    return make([{k: v for k, v in group.items() if k != "trust_ratio"} for group in groups])


def step_s(optimizer: Arm, device: str) -> float:
    if device == "cpu":
        start = time.perf_counter()
        optimizer.step()
        return time.perf_counter() - start
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    begin.record()
    for _ in range(GPU_STEPS):
        optimizer.step()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1e3 / GPU_STEPS


def measure(device: str, rounds: int, network: str) -> dict[str, list[float]]:
    optimizers = present({name: partial(build, make, device, network) for name, make in arms().items()})
    for _ in range(3):  # state, caches, the allocator
        for optimizer in optimizers.values():
            step_s(optimizer, device)
    raw: dict[str, list[float]] = {name: [] for name in optimizers}
    order, shuffle = list(optimizers), random.Random(0)
    for _ in range(rounds):
        shuffle.shuffle(order)
        for name in order:
            raw[name].append(step_s(optimizers[name], device))
    return raw


def spread(values: list[float]) -> dict[str, float]:
    low, middle, high = statistics.quantiles(values, n=4)
    return {"median": middle, "q1": low, "q3": high, "min": min(values), "max": max(values)}


def report(raw: dict[str, list[float]], options: argparse.Namespace) -> None:
    from store import store

    from bigbatch.tune.storage.description import provenance

    steps = {name: spread([1e3 * value for value in values]) for name, values in raw.items()}
    print(f"{'step, ms':24}{'median':>10}{'quartiles':>20}")
    for name, s in sorted(steps.items(), key=lambda item: item[1]["median"]):
        print(f"{name:24}{s['median']:10.2f}{s['q1']:12.2f} {s['q3']:7.2f}")
    ratios = {
        f"{ours} / {theirs}": spread([a / b for a, b in zip(raw[ours], raw[theirs], strict=True)])
        for ours, theirs in PAIRS
        if theirs in raw
    }
    print(f"\n{'ratio within a round':34}{'median':>10}{'quartiles':>20}")
    for name, s in ratios.items():
        print(f"{name:34}{s['median']:10.2f}{s['q1']:12.2f} {s['q3']:7.2f}")
    settings = {"device": options.device, "rounds": options.rounds, "threads": torch.get_num_threads()}
    settings["model"] = options.model
    machine = torch.cuda.get_device_name() if options.device == "cuda" else f"{os.cpu_count()} CPUs"
    result = {
        "benchmark": "optimizer_step", "settings": settings, "provenance": provenance(), "machine": machine,
        "timm": timm_version(), "step_ms": steps, "ratios": ratios, "raw_s": raw,
    }  # fmt: skip
    store(result, options.output)
    print(json.dumps({"step_ms": {name: s["median"] for name, s in steps.items()}, "ratios": ratios}))


def present(makers: Mapping[str, Callable[[], T]]) -> dict[str, T]:
    """What each arm's maker makes, without the arms of timm that the installed version does not have.

    1.0.22, the lowest version that is allowed, has no multi-tensor optimizers and no tasks.
    """
    found: dict[str, T] = {}
    for name, make in makers.items():
        try:
            found[name] = make()
        except (TypeError, ImportError) as error:
            if not name.startswith("timm"):
                raise
            print(f"{name} is left out: timm {timm_version()} does not have it ({error})", file=sys.stderr)
    return found


def timm_version() -> str | None:
    try:
        import timm
    except ModuleNotFoundError:
        return None
    return str(timm.__version__)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--threads", type=int, default=1, help="of the CPU")
    parser.add_argument("--model", default="resnet50", help="a torchvision network, whose tensors are stepped")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    report(measure(options.device, options.rounds, options.model), options)


if __name__ == "__main__":
    main()
