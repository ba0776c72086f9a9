"""Does packing cost accuracy? The same training on an image folder, on ``full`` packed and on ``fast`` packed.

    python benchmarks/packing_accuracy.py [--images CIFAR.tar.xz] [--seeds 5] [--train 1000] [--val 1000] [--epochs 6]
                                          [--jobs 2] [--output FILE.json]

CIFAR.tar.xz: a tar of ``train/<class>/*.jpg`` and ``test/<class>/*.jpg``, without it scikit-learn's digits in place.
Images are enlarged to 160 × 160 pixels (Lanczos) and stored as JPEGs of quality 92, 4:2:0: large enough that ``full``
stores restart markers. They hold no more detail than 32 × 32 (or 8 × 8) pixels do, so this cannot show what
compression does to fine texture; the PSNR in benchmarks/input_pipeline.py says how much that is on photographs.

Arms, for each seed with the same initial weights, order and crops:
  folder  the JPEG files
  full    ``bigbatch pack --profile full``: lossless where jpegtran is there, else encoded once more
  fast    ``bigbatch pack --profile fast``, whose short side is 256/224 of the training size
ResNet-18, 64-pixel random resized crops, SGD. Prints validation top-1 by arm and the mean of the differences to
``folder`` within a seed, with Student's 95 % confidence interval; last, one JSON line.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))
ARMS = ("folder", "full", "fast")
STORED, SIZE = 160, 64
SHORT_SIDE = round(SIZE * 256 / 224)
"""Pixels a side: of the files, of what the network sees, and of ``fast``."""


def write_tree(options: argparse.Namespace, root: Path) -> dict[str, int]:
    """An image folder, as many images of each class as the next. Returns the images of each part."""
    counts = {"train": 0, "val": 0}
    for part, class_name, image in from_tar(options) if options.images else from_digits(options):
        folder = root / part / class_name
        folder.mkdir(parents=True, exist_ok=True)
        large = image.convert("RGB").resize((STORED, STORED), 1)  # 1: Lanczos
        large.save(folder / f"{counts[part]:05d}.jpg", quality=92)
        counts[part] += 1
    return counts


def from_tar(options: argparse.Namespace) -> Iterator[tuple[str, str, Any]]:
    from PIL import Image

    taken: dict[tuple[str, str], int] = {}
    limits = {"train": options.train // 10, "val": options.val // 10}
    with tarfile.open(options.images) as archive:
        for member in archive:
            *_, part, class_name, _ = ("", "", *member.name.split("/"))
            part = "val" if part in ("test", "val") else part
            if member.isfile() and taken.get((part, class_name), 0) < limits.get(part, 0):
                taken[part, class_name] = taken.get((part, class_name), 0) + 1
                yield part, class_name, Image.open(BytesIO(archive.extractfile(member).read()))


def from_digits(options: argparse.Namespace) -> Iterator[tuple[str, str, Any]]:
    import numpy as np
    from PIL import Image

    from bigbatch.train_loop.data.sets.digits import load_scans, split_rows

    pixels, labels = load_scans()
    for part, rows, limit in zip(("train", "val"), split_rows(labels), (options.train, options.val), strict=True):
        for row in rows[:limit]:
            yield part, str(labels[row]), Image.fromarray((255 * pixels[row, 0]).astype(np.uint8))


def pack_all(folder: Path) -> dict[str, Any]:
    from bigbatch.train_loop.data.packing import command as pack_command
    from bigbatch.train_loop.data.pixels.jpeg import jpegtran_path

    for profile in ("full", "fast"):
        options = ["--profile", profile, *(["--short-side", str(SHORT_SIDE)] if profile == "fast" else [])]
        if pack_command.main([str(folder / "folder"), str(folder / profile), *options]):
            raise SystemExit(f"packing {profile} failed")
    sizes = {arm: sum(file.stat().st_size for file in (folder / arm).rglob("*") if file.is_file()) for arm in ARMS}
    return {"bytes": sizes, "lossless": jpegtran_path() is not None}


def train_one(path: str, seed: int, epochs: int) -> None:
    """A run in a process of its own; prints its records as JSON."""
    import torch

    from bigbatch.train_loop.config import (
        BatchConfig,
        DataConfig,
        ModelConfig,
        OptimizerConfig,
        ScheduleConfig,
        TrainConfig,
    )
    from bigbatch.train_loop.loop.train import train
    from bigbatch.train_loop.reporter import ListReporter

    torch.set_num_threads(1)
    config = TrainConfig(
        epochs=epochs,
        seed=seed,
        model=ModelConfig(name="resnet18", stem="imagenet"),
        data=DataConfig(name=path, image_size=SIZE),
        batch=BatchConfig(global_size=64),
        optimizer=OptimizerConfig(name="sgd", peak_lr=0.1, weight_decay=5e-4),
        schedule=ScheduleConfig(name="cosine", warmup_epochs=min(1, epochs)),
    )
    reporter = ListReporter()
    train(config, reporter=reporter, device=torch.device("cpu"))
    print(json.dumps([[r.train_loss, r.val_loss, r.val_top1] for r in reporter.records]))


def run(folder: Path, arm: str, seed: int, epochs: int) -> list[list[float]]:
    command = [sys.executable, __file__, "--one", str(folder / arm), str(seed), "--epochs", str(epochs)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{arm}, seed {seed}: {done.stderr[-2000:]}")
    records: list[list[float]] = json.loads(done.stdout.splitlines()[-1])
    print(f"seed {seed} {arm:7} top-1 {records[-1][2]:.2%}", file=sys.stderr, flush=True)
    return records


def interval(values: list[float]) -> dict[str, float]:
    """Mean, and half the width of Student's 95 % confidence interval."""
    from scipy.stats import t

    half = float(t.ppf(0.975, len(values) - 1)) * statistics.stdev(values) / len(values) ** 0.5
    return {"mean": statistics.mean(values), "half_95": half}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--train", type=int, default=1000)
    parser.add_argument("--val", type=int, default=1000)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--one", nargs=2, metavar=("PATH", "SEED"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        train_one(options.one[0], int(options.one[1]), options.epochs)
        return
    if options.seeds < 2:
        parser.error("an interval needs at least 2 seeds")
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        images = write_tree(options, folder / "folder")
        sizes = pack_all(folder)
        plan = list(itertools.product(range(options.seeds), ARMS))
        with ThreadPoolExecutor(options.jobs) as pool:
            found = list(pool.map(lambda job: run(folder, job[1], job[0], options.epochs), plan))
    raw = {arm: [records for (_, a), records in zip(plan, found, strict=True) if a == arm] for arm in ARMS}
    report(raw, images, sizes, options, time.monotonic() - began)


def report(
    raw: dict[str, Any], images: dict[str, int], sizes: dict[str, Any], options: argparse.Namespace, elapsed_s: float
) -> None:
    from store import store_measured

    top1 = {arm: [100 * records[-1][2] for records in runs] for arm, runs in raw.items()}
    summary: dict[str, Any] = {}
    for arm in ARMS:
        summary[arm] = interval(top1[arm])
        line = f"{arm:7} top-1 {summary[arm]['mean']:6.2f} ± {summary[arm]['half_95']:.2f} %"
        if arm != "folder":
            differences = [mine - theirs for mine, theirs in zip(top1[arm], top1["folder"], strict=True)]
            summary[f"{arm} - folder"] = paired = interval(differences)
            line += f"   difference {paired['mean']:+.2f} ± {paired['half_95']:.2f} points   "
            line += " ".join(f"{d:+.2f}" for d in differences)
        print(line)
    settings = {
        "images": images, "source": options.images.name if options.images else "digits", "seeds": options.seeds,
        "epochs": options.epochs, "stored_px": STORED, "size_px": SIZE, "short_side_px": SHORT_SIDE, **sizes,
        "raw": "by seed and epoch: training loss, validation loss, validation top-1", "elapsed_s": round(elapsed_s),
    }  # fmt: skip
    store_measured("packing_accuracy", settings, summary, raw, options.output)


if __name__ == "__main__":
    main()
