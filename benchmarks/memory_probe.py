"""The micro-batch that the memory probe finds, and whether real training steps of that size fit the device.

    python benchmarks/memory_probe.py [--models resnet18 resnet50 vit_b_16] [--precisions bf16 off] [--output F.json]

For each network and precision: the time that the probe takes, the micro-batch it finds, and then --steps steps of
the real loop at that size with its own loader, optimizer and accumulation: their peak of memory, and whether a
micro-batch half as large again fits too (the probe gave memory away) or not. A CPU has no memory to fill: there a
device is simulated that holds --limit images, which only tries the command. Prints a table and, last, a JSON line.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(Path(__file__).resolve().parent)]

from bigbatch.train_loop.config import ConfigError, TrainConfig  # noqa: E402
from bigbatch.train_loop.data.catalogue import describe_data_set  # noqa: E402
from bigbatch.train_loop.loop import memory_probe  # noqa: E402
from bigbatch.train_loop.loop.oom_retry import is_device_memory_full  # noqa: E402


def configuration(o: argparse.Namespace, model: str, precision: str) -> TrainConfig:
    return TrainConfig().replace_keys(
        {
            "model.name": model,
            "model.stem": "imagenet",
            "data.image_size": o.image_size,
            "batch.global_size": 2 * memory_probe.MAX_MICRO_BATCH,
            "batch.max_micro_size": 0,
            "precision": precision,
        }
    )


def found_size(o: argparse.Namespace, config: TrainConfig, precision: str) -> int:
    info = describe_data_set(config.data)
    if o.device == "cuda":
        return memory_probe.max_micro_size(config, info, torch.device("cuda", 0), precision)
    simulated = memory_probe.DeviceMemory("a simulated device", 1000, lambda images: 900.0 * images / o.limit)
    return memory_probe.probe_micro_batch(simulated, "simulated", None)


def train_steps(o: argparse.Namespace, config: TrainConfig, size: int) -> float | None:
    """Peak memory of real steps, in bytes (0 on a CPU); None where they do not fit."""
    from bigbatch.train_loop.loop.assembly import set_up
    from bigbatch.train_loop.loop.checkpoint import CheckpointFolder
    from bigbatch.train_loop.loop.train import take_step
    from bigbatch.train_loop.reporter import ListReporter

    few = min(size, 64)  # digits have 1,437 images; the steps below are given as many as the probe found
    batch = {"batch.global_size": few, "batch.micro_size": few, "batch.max_micro_size": few}
    _forget()
    try:
        run = set_up(config.replace_keys(batch), ListReporter(), CheckpointFolder(None, 0.0), torch.device(o.device))
        pixels = torch.zeros(size, run.source.info.channels, o.image_size, o.image_size)
        labels = torch.zeros(size, dtype=torch.int64)
        for _ in range(o.steps):
            take_step(run, [(pixels, labels)], 0.01)
            run.progress.step += 1
    except RuntimeError as error:
        if not is_device_memory_full(error, torch.device(o.device)):
            raise
        return None
    return float(torch.cuda.max_memory_reserved()) if o.device == "cuda" else 0.0


def _forget() -> None:
    """Free what a run before has left: its parts refer to each other."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def measure(o: argparse.Namespace, model: str, precision: str) -> dict[str, Any]:
    config = configuration(o, model, precision)
    with tempfile.TemporaryDirectory() as cache:
        os.environ["XDG_CACHE_HOME"] = cache  # so that it is measured and not remembered
        _forget()
        started = time.perf_counter()
        try:
            size = found_size(o, config, precision)
        except ConfigError as error:
            return {"model": model, "precision": precision, "error": str(error)}
        seconds = time.perf_counter() - started
    peak = train_steps(o, config, size)
    larger = train_steps(o, config, size + max(1, size // 2))
    return {
        "model": model,
        "precision": precision,
        "micro_batch": size,
        "probe_s": seconds,
        "steps_fit": peak is not None,
        "peak_bytes": peak,
        "half_as_large_again_fits": larger is not None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    add("--models", nargs="+", default=["resnet18", "resnet50", "vit_b_16"])
    add("--precisions", nargs="+", choices=("off", "bf16", "fp16"), default=["bf16", "off"])
    add("--image-size", type=int, default=224)
    add("--steps", type=int, default=3)
    add("--limit", type=int, default=16, help="images that the simulated device of a CPU holds")
    add("--output", type=Path)
    o = parser.parse_args()
    from store import store

    from bigbatch.tune.storage.description import provenance

    rows = [measure(o, model, precision) for model in o.models for precision in o.precisions]
    total = torch.cuda.get_device_properties(0).total_memory if o.device == "cuda" else 0
    print(f"{'model':16}{'precision':>10}{'micro-batch':>12}{'probe, s':>10}{'peak of memory':>16}  fits / × 1.5 fits")
    for row in rows:
        if "error" in row:
            print(f"{row['model']:16}{row['precision']:>10}  {row['error']}")
            continue
        share = f"{row['peak_bytes'] / total:.0%}" if total and row["peak_bytes"] else "–"
        fits = " / ".join("yes" if row[key] else "no" for key in ("steps_fit", "half_as_large_again_fits"))
        print(
            f"{row['model']:16}{row['precision']:>10}{row['micro_batch']:>12}{row['probe_s']:>10.1f}{share:>16}  {fits}"
        )
    machine = torch.cuda.get_device_name() if o.device == "cuda" else f"{os.cpu_count()} CPUs"
    settings = {key: value for key, value in vars(o).items() if key != "output"}
    result = {
        "benchmark": "memory_probe", "settings": settings, "provenance": provenance(), "machine": machine,
        "memory_bytes": total, "rows": rows,
    }  # fmt: skip
    store(result, o.output)
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
