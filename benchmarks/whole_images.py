"""Images a second of a data set of small images: decoded whole once and cut by tensor operations, or in each epoch.

    python benchmarks/whole_images.py --images FOLDER [--rounds 5] [--batch 512] [--count 20000] [--output F.json]

FOLDER: an image folder of 32 × 32 pixels, such as CIFAR-10's JPEGs, which is packed. Arms, in turn in each round, each
in a process of its own with one thread, files warm in the page cache: ``ring`` and ``device`` (shift and flip), in the
training process, on its CPU. A figure is the images of --count by CPU time, normalised to float32 as the model takes
them, after a first pass over --batch. ``decoding``: the CPU time that a ``device`` process spends before, once a node.
Prints a table and, last, one JSON line.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(Path(__file__).resolve().parent)]
PLACES, LOADERS = ("packed",), ("ring", "device")


def one_arm(path: Path, loader: str, temporary: Path, epoch: int, options: argparse.Namespace) -> dict[str, float]:
    """Images a second of CPU time, and the CPU seconds before the first batch."""
    import numpy as np
    import torch

    from bigbatch.train_loop.config import DataConfig, LoaderConfig
    from bigbatch.train_loop.data import sampling
    from bigbatch.train_loop.data.catalogue import open_data
    from bigbatch.train_loop.data.source import Epoch

    os.environ["TMPDIR"] = str(temporary)
    torch.set_num_threads(1)
    config = DataConfig(name=str(path), image_size=32, loader=LoaderConfig(workers=0))
    began = time.process_time()
    source = open_data(config, device=torch.device("cpu") if loader == "device" else None)
    opened_s = time.process_time() - began
    order = sampling.train_order(source.info.train_size, 0, epoch)[: options.batch + options.count]
    read = source.read_train(np.array_split(order, max(len(order) // options.batch, 1)), Epoch(0, epoch))
    source.finish(next(read)[0])
    began, images = time.process_time(), 0
    for pixels, labels in read:
        images += len(labels)
        source.finish(pixels)
    return {"rate": images / (time.process_time() - began), "opened_s": opened_s}


def main() -> None:
    from input_pipeline import apart

    from bigbatch.train_loop.data.packing import command

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        if command.main([str(options.images), f"{name}/packed"]):
            raise SystemExit("packing failed")
        raw: dict[str, list[dict[str, float]]] = {f"{place} {way}": [] for place in PLACES for way in LOADERS}
        for epoch in range(options.rounds):
            for place in PLACES:
                for loader in LOADERS:
                    found = apart(one_arm, Path(name, place), loader, Path(name), epoch, options)
                    raw[f"{place} {loader}"].append(found)
    report(raw, options)


def report(raw: dict[str, list[dict[str, float]]], options: argparse.Namespace) -> None:
    from store import store_measured

    summary: dict[str, Any] = {}
    print(f"{'images a second of one core':30}{'median':>9}{'min':>9}{'max':>9}  × ring, by round")
    for place in PLACES:
        rates = {loader: [found["rate"] for found in raw[f"{place} {loader}"]] for loader in LOADERS}
        for loader, mine in rates.items():
            ratios = [rate / other for rate, other in zip(mine, rates["ring"], strict=True)]
            values = {"median": statistics.median(mine), "ratio": statistics.median(ratios)}
            values |= {"least_ratio": min(ratios), "largest_ratio": max(ratios)}
            summary[f"{place} {loader}"] = values
            cells = "  ".join(f"{ratio:.2f}" for ratio in ratios)
            print(f"{place + ' ' + loader:30}{values['median']:9.0f}{min(mine):9.0f}{max(mine):9.0f}  {cells}")
        opened = {loader: [found["opened_s"] for found in raw[f"{place} {loader}"]] for loader in LOADERS}
        summary[f"{place} decoding"] = {
            "median": statistics.median(opened["device"]) - statistics.median(opened["ring"])
        }
        print(f"{place} decoding, CPU seconds: {summary[f'{place} decoding']['median']:.1f}")
    settings = {"rounds": options.rounds, "batch": options.batch, "count": options.count, "image_size": 32}
    store_measured("whole_images", settings, summary, raw, options.output)


if __name__ == "__main__":
    main()
