"""Images a second of a packed data set against torchvision's ImageFolder: decode, random crop, resize to 224.

    python benchmarks/data_loading.py --images SAMPLE.tar [--rounds 5] [--batch 50] [--workers 0 2] [--output FILE.json]

SAMPLE.tar: a flat tar of JPEGs, or a folder of them; --generate N makes N in its place. Arms, in turn in each
round, each with its files warm in the page cache and one thread a process:
  torchvision  ImageFolder, RandomResizedCrop(224), flip, ToTensor, Normalize: float32 batches
  folder       this project's reading of the same folder: float32 batches
  full         ``bigbatch pack --profile full``: uint8 batches, normalised later on the device
  fast         ``bigbatch pack --profile fast``, short side 256: uint8 batches
With 0 workers the figure is images a second of CPU time, so that other load on the machine matters little; with
workers it is wall time from the first batch to the last, processes already started. Prints a table and, last, one
JSON line.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
ARMS = ("torchvision", "folder", "full", "fast")


def write_tree(options: argparse.Namespace, root: Path) -> int:
    """An image folder of 10 classes; every 5th image also for validation. Returns the number of images."""
    count = 0
    for number, data in enumerate(sample(options)):
        for part in ("train", "val") if number % 5 == 0 else ("train",):
            folder = root / part / f"class{number // 5 % 10}"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{number:05d}.jpg").write_bytes(data)
        count += 1
    return count


def sample(options: argparse.Namespace) -> Iterator[bytes]:
    if options.generate:
        yield from generated(options.generate)
    elif options.images.is_dir():
        yield from (path.read_bytes() for path in sorted(options.images.rglob("*")) if path.is_file())
    else:
        with tarfile.open(options.images) as archive:
            yield from (archive.extractfile(member).read() for member in archive if member.isfile())


def generated(count: int) -> Iterator[bytes]:
    """Noise of several sizes, 500 × 375, about as many bytes as a photograph."""
    import io

    import numpy as np
    from PIL import Image

    for seed in range(count):
        draws = np.random.default_rng(seed)
        total = np.zeros((375, 500, 3))
        for cells in (4, 20, 100, 250):
            small = Image.fromarray(draws.integers(0, 256, (cells, cells, 3), dtype=np.uint8))
            total += np.asarray(small.resize((500, 375), Image.Resampling.BICUBIC)) / 4
        buffer = io.BytesIO()
        Image.fromarray(total.astype(np.uint8)).save(buffer, "JPEG", quality=95)
        yield buffer.getvalue()


def build_arms(folder: Path, options: argparse.Namespace) -> dict[str, Callable[[int, int], Iterator[Any]]]:
    """Each: an epoch's batches, given the epoch and the number of loader workers."""
    import numpy as np
    import torch
    from torchvision import datasets, transforms

    from train_loop.config import DataConfig
    from train_loop.data import open_data, sampling
    from train_loop.data.source import Epoch

    torch.set_num_threads(1)
    normalise = transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    crop = [transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip()]
    reference = datasets.ImageFolder(
        str(folder / "images" / "train"), transforms.Compose([*crop, transforms.ToTensor(), normalise])
    )

    def torchvision_arm(epoch: int, workers: int) -> Iterator[Any]:
        torch.manual_seed(epoch)
        return iter(torch.utils.data.DataLoader(reference, options.batch, shuffle=True, num_workers=workers))

    def ours(path: Path) -> Callable[[int, int], Iterator[Any]]:
        def batches(epoch: int, workers: int) -> Iterator[Any]:
            source = open_data(DataConfig(name=str(path), image_size=224, loader_workers=workers))
            order = sampling.train_order(source.info.train_size, 0, epoch)
            whole = len(order) // options.batch
            return source.read_train(np.array_split(order[: whole * options.batch], whole), Epoch(0, epoch))

        return batches

    paths = {"folder": folder / "images", "full": folder / "full", "fast": folder / "fast"}
    return {"torchvision": torchvision_arm} | {name: ours(path) for name, path in paths.items()}


def measure(batches: Iterator[Any], workers: int) -> float:
    """Images a second; the first batch, with the starting of processes, is not counted."""
    clock = time.perf_counter if workers else time.process_time
    next(batches)
    began, images = clock(), 0
    for pixels, _ in batches:
        images += len(pixels)
    return images / (clock() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=Path, default=Path("imagenet_sample_500.tar"))
    parser.add_argument("--generate", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch", type=int, default=50)
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 2])
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        images = write_tree(options, folder / "images")
        sizes = pack_all(folder) | {"psnr_db": quality(folder)}
        arms = build_arms(folder, options)
        raw: dict[str, dict[str, list[float]]] = {str(w): {arm: [] for arm in ARMS} for w in options.workers}
        for epoch in range(options.rounds):
            for workers in options.workers:
                for arm in ARMS:
                    raw[str(workers)][arm].append(measure(arms[arm](epoch, workers), workers))
    report(raw, images, sizes, options)


def pack_all(folder: Path) -> dict[str, Any]:
    from train_loop.data import pack
    from train_loop.data.jpeg import jpegtran_path

    for profile in ("full", "fast"):
        if pack.main([str(folder / "images"), str(folder / profile), "--profile", profile]):
            raise SystemExit(f"packing {profile} failed")
    bytes_of = {
        name: sum(file.stat().st_size for file in (folder / name).rglob("train*")if file.is_file())
        for name in ("full", "fast")
    }  # fmt: skip
    source = sum(file.stat().st_size for file in (folder / "images" / "train").rglob("*.jpg"))
    return {"train_bytes": {"images": source} | bytes_of, "lossless": jpegtran_path() is not None}


def quality(folder: Path) -> dict[str, float]:
    """PSNR, dB, of JPEGs that are encoded again with their own tables: what ``full`` does without jpegtran."""
    import io

    import numpy as np
    from PIL import Image

    from train_loop.data import jpeg

    found = []
    for path in sorted((folder / "images" / "val").rglob("*.jpg")):
        with Image.open(path) as image:
            if image.mode in ("RGB", "L"):
                again = np.asarray(Image.open(io.BytesIO(jpeg.encode(image, None))), float)
                error = np.square(np.asarray(image, float) - again).mean()
                found.append(10 * float(np.log10(255**2 / max(error, 1e-9))))
    return {"median": statistics.median(found), "min": min(found), "images": len(found)}


def report(raw: dict[str, Any], images: int, sizes: dict[str, Any], options: argparse.Namespace) -> None:
    from tune.provenance import provenance

    summary: dict[str, Any] = {}
    print(f"PSNR of encoding again, dB: median {sizes['psnr_db']['median']:.1f}, least {sizes['psnr_db']['min']:.1f}")
    for workers, arms in raw.items():
        unit = "images a second of one core" if workers == "0" else f"images a second, {workers} workers"
        print(f"{unit:32}{'median':>9}{'min':>9}{'max':>9}{'× torchvision, by round':>40}")
        for arm, rates in arms.items():
            ratios = [mine / theirs for mine, theirs in zip(rates, arms["torchvision"], strict=True)]
            summary[f"{arm} {workers}"] = {"median": statistics.median(rates), "ratio": statistics.median(ratios)}
            cells = "  ".join(f"{ratio:.2f}" for ratio in ratios)
            print(f"{arm:32}{statistics.median(rates):9.0f}{min(rates):9.0f}{max(rates):9.0f}{cells:>40}")
    settings = {
        "images": images, "generated": bool(options.generate), "rounds": options.rounds, "batch": options.batch, **sizes
    }  # fmt: skip
    result = {
        "benchmark": "data_loading", "settings": settings, "provenance": provenance(), "cpus": os.cpu_count(),
        "summary": summary, "raw": raw,
    }  # fmt: skip
    if options.output:
        options.output.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
