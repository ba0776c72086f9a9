"""How far ahead loader processes should ask for records, by how late the storage answers.

    python benchmarks/read_ahead.py --images SAMPLE.tar [--latency-ms 0 5 20 50] [--rounds 5] [--output F.json]

SAMPLE.tar: a flat tar of JPEGs, or a folder of them; --generate N makes N in its place. They are packed (``full``)
and read in a random order by --workers loader processes, in batches of 50, 224 pixels. Before each pass the shards are
dropped from the page cache. Arms, in turn in each round: ``task``, each process asks for its own next images alone
and then reads them; 16, 64, 256, so many images of each process are asked for ahead, 256 as the loader does. An arm
reads --passes passes, the last one is counted. ``whole`` is 256 with one request a record, however long; ``warm`` drops
nothing.
Latency 0 is the disk (a virtual disk's host may still hold what was dropped). Others are a file system (FUSE) that
passes reads on and answers each so much later, 512 at once at most; they need libfuse 2, the package fusepy and the
right to mount. Prints tables and, last, one JSON line.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))
sys.path.insert(0, str(ROOT / "benchmarks"))
PIECE = 1 << 17
ARMS = {
    "task": (0, PIECE), "16": (16, PIECE), "64": (64, PIECE), "256": (256, PIECE), "whole": (256, 1 << 30),
    "warm": (256, PIECE),
}  # fmt: skip
"""Images ahead; bytes that are asked for at once."""
AT_ONCE = 512
BATCH = 50


def one_arm(folder: Path, arm: str, seed: int, options: argparse.Namespace) -> float:
    """Images a second of the last pass."""
    import numpy as np
    from input_pipeline import drop

    from bigbatch.train_loop.config import DataConfig, LoaderConfig
    from bigbatch.train_loop.data import sampling
    from bigbatch.train_loop.data.catalogue import open_data
    from bigbatch.train_loop.data.loading import ring
    from bigbatch.train_loop.data.packed import schema
    from bigbatch.train_loop.data.source import Epoch

    ring.IMAGES_AHEAD, schema.READ_AHEAD_BYTES = ARMS[arm]
    source: Any = open_data(DataConfig(name=str(folder), image_size=224, loader=LoaderConfig(workers=options.workers)))
    for number in range(options.passes):
        if arm != "warm":
            drop(folder)
        order = sampling.train_order(source.info.train_size, seed, number)
        batches = np.array_split(order, max(len(order) // BATCH, 1))
        began = time.perf_counter()
        images = sum(len(pixels) for pixels, _ in source.read_train(batches, Epoch(seed, number)))
        rate = images / (time.perf_counter() - began)
    source.close()
    return rate


@contextlib.contextmanager
def storage(folder: Path, latency_ms: float) -> Iterator[Path]:
    """The folder, or a file system with its files that answers each read so much later."""
    if not latency_ms:
        yield folder
        return
    mounted = folder.parent / f"late-{latency_ms:g}"
    mounted.mkdir(exist_ok=True)
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(folder, mounted, latency_ms))
    server.start()
    while not os.path.ismount(mounted):
        if not server.is_alive():
            raise SystemExit("the file system could not be mounted: it needs libfuse 2, fusepy and /dev/fuse")
        time.sleep(0.05)
    try:
        yield mounted
    finally:
        subprocess.run(["umount", str(mounted)], check=True)
        server.join()


def serve(folder: Path, mounted: Path, latency_ms: float) -> None:
    import fuse

    class Late(fuse.Operations):  # type: ignore[misc]
        def getattr(self, path: str, fh: Any = None) -> dict[str, Any]:
            found = os.lstat(str(folder) + path)
            names = ("st_mode", "st_size", "st_nlink", "st_uid", "st_gid", "st_mtime", "st_atime", "st_ctime")
            return {name: getattr(found, name) for name in names}

        def readdir(self, path: str, fh: Any) -> list[str]:
            return [".", "..", *os.listdir(str(folder) + path)]

        def open(self, path: str, flags: int) -> int:
            return os.open(str(folder) + path, flags)

        def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
            time.sleep(latency_ms / 1000)
            return os.pread(fh, size, offset)

        def release(self, path: str, fh: int) -> None:
            os.close(fh)

    # kernel_cache: another process that opens a file leaves its pages in memory, as on other file systems.
    fuse.FUSE(
        Late(), str(mounted), foreground=True, ro=True, kernel_cache=True, max_background=AT_ONCE,
        congestion_threshold=AT_ONCE,
    )  # fmt: skip


def main() -> None:
    from input_pipeline import apart, write_tree

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=Path, default=Path("imagenet_sample_500.tar"))
    parser.add_argument("--generate", type=int, default=0)
    parser.add_argument("--latency-ms", type=float, nargs="+", default=[0, 5, 20, 50])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--passes", type=int, default=4)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        from bigbatch.train_loop.data.packing import command

        images = write_tree(options, Path(name) / "images")
        folder = Path(name) / "full"
        if command.main([str(Path(name) / "images"), str(folder)]):
            raise SystemExit("packing failed")
        raw: dict[str, dict[str, list[float]]] = {}
        for latency in options.latency_ms:
            raw[f"{latency:g}"] = {arm: [] for arm in ARMS}
            with storage(folder, latency) as place:
                for seed in range(options.rounds):
                    for arm, found in raw[f"{latency:g}"].items():
                        found.append(apart(one_arm, place, arm, seed, options))
    report(raw, images, options)


def report(raw: dict[str, Any], images: int, options: argparse.Namespace) -> None:
    from store import store_measured

    summary: dict[str, Any] = {}
    for latency, arms in raw.items():
        print(f"{'later by ' + latency + ' ms':16}{'images/s':>9}{'min':>7}{'max':>7}  × 256, by round")
        for arm, rates in arms.items():
            ratios = [mine / other for mine, other in zip(rates, arms["256"], strict=True)]
            values = {"median": statistics.median(rates), "ratio": statistics.median(ratios)}
            summary[f"{arm} {latency}"] = values
            cells = "  ".join(f"{ratio:.2f}" for ratio in ratios)
            print(f"{arm:16}{values['median']:9.0f}{min(rates):7.0f}{max(rates):7.0f}  {cells}")
    settings = {"images": images, "generated": bool(options.generate), "rounds": options.rounds}
    settings |= {"passes": options.passes, "workers": options.workers, "at_once": AT_ONCE}
    store_measured("read_ahead", settings, summary, raw, options.output)


if __name__ == "__main__":
    main()
