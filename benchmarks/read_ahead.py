"""How many records a loader process should ask for at once when they are not in memory.

    python benchmarks/read_ahead.py --images SAMPLE.tar [--rounds 5] [--output F.json]

SAMPLE.tar: a flat tar of JPEGs, or a folder of them; --generate N makes N in its place. They are packed (``full``),
dropped from the page cache, and read in a random order in one process: ask for the next n records, then read, decode
and crop them to 224 one after another, as a task of the ring does (n is 16 there). One arm for each n, 0 asks for none,
in turn in each round; ``warm`` drops nothing and asks for 16. Then: the time of one cold read and of one decoding,
whose ratio is how many reads must be under way for the decoder not to wait (Little's law). A virtual disk's host may
hold what was dropped here. Prints tables and, last, one JSON line.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
sys.path.insert(0, str(ROOT / "benchmarks"))
DEPTHS = (0, 1, 2, 4, 8, 16, 32, 64)


def drop(folder: Path) -> None:
    """From the page cache."""
    for path in folder.iterdir():
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def one_pass(folder: Path, depth: int, seed: int, decode: bool = True) -> tuple[float, list[float], list[float]]:
    """Images a second; milliseconds of each read and of each decoding."""
    import numpy as np
    import torch

    from train_loop.data.decode import decode_crop
    from train_loop.data.folder import random_box
    from train_loop.data.packed_files import PackedFiles

    files, draws, out = PackedFiles(str(folder)), random.Random(seed), torch.empty((224, 224, 3), dtype=torch.uint8)
    order = np.random.default_rng(seed).permutation(files.info.train_size)
    files.label(0)  # opens the index
    reads, decodings = [], []
    began = time.perf_counter()
    for start in range(0, len(order), max(depth, 1)):
        window = order[start : start + max(depth, 1)]
        if depth:
            files.read_ahead(window)
        for record in window.tolist():
            at = time.perf_counter()
            data = files.read(record)
            there = time.perf_counter()
            reads.append(1000 * (there - at))
            if decode:
                decode_crop(data, random_box(*files.size(record), draws), out)
                decodings.append(1000 * (time.perf_counter() - there))
    return len(order) / (time.perf_counter() - began), reads, decodings


def main() -> None:
    from input_pipeline import write_tree

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=Path, default=Path("imagenet_sample_500.tar"))
    parser.add_argument("--generate", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        import torch

        from train_loop.data import pack

        torch.set_num_threads(1)
        images = write_tree(options, Path(name) / "images")
        folder = Path(name) / "full"
        if pack.main([str(Path(name) / "images"), str(folder)]):
            raise SystemExit("packing failed")
        raw: dict[str, Any] = {str(depth): [] for depth in DEPTHS} | {"warm": []}
        reads: list[float] = []
        decodings: list[float] = []
        one_pass(folder, 16, 0)  # imports, and the first decoding
        for seed in range(options.rounds):
            for depth in DEPTHS:
                drop(folder)
                raw[str(depth)].append(one_pass(folder, depth, seed)[0])
            raw["warm"].append(one_pass(folder, 16, seed)[0])
            decodings += one_pass(folder, 16, seed)[2]
            drop(folder)
            reads += one_pass(folder, 0, seed, decode=False)[1]
    report(raw, reads, decodings, images, options)


def report(
    raw: dict[str, Any], reads: list[float], decodings: list[float], images: int, options: argparse.Namespace
) -> None:
    from store import store

    from tune.provenance import provenance

    print(f"{'asked for at once':20}{'images/s':>9}{'min':>9}{'max':>9}  × 16, by round")
    summary: dict[str, Any] = {}
    for arm, rates in raw.items():
        ratios = [mine / other for mine, other in zip(rates, raw["16"], strict=True)]
        summary[arm] = {"median": statistics.median(rates), "ratio": statistics.median(ratios)}
        cells = "  ".join(f"{ratio:.2f}" for ratio in ratios)
        print(f"{arm:20}{statistics.median(rates):9.0f}{min(rates):9.0f}{max(rates):9.0f}  {cells}")
    for name, values in (("read", reads), ("decoding", decodings)):
        tenths = statistics.quantiles(values, n=10)
        summary[f"{name}_ms"] = {"median": statistics.median(values), "p90": tenths[-1]}
        print(f"{name}, ms: median {summary[f'{name}_ms']['median']:.2f}, 90 % within {tenths[-1]:.2f}")
    result = {
        "benchmark": "read_ahead", "settings": {"images": images, "generated": bool(options.generate)},
        "provenance": provenance(), "cpus": os.cpu_count(), "summary": summary, "raw": raw,
    }  # fmt: skip
    store(result, options.output)
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
