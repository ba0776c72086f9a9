"""The memory of workers that train one trial after another, over a search of many trials.

    python benchmarks/kept_workers.py [--trials 200] [--output FILE.json]

The search trains small networks of ``large_batch`` on the digits for an epoch each, two trials at a time, with another
batch, optimizer and rate each time. Twice a second the resident memory of each worker process is read. Of each
worker: the most early in its life, when all libraries are loaded and few trials have passed, and the most in the last
tenth of it; the difference is what piled up. Prints a line for each worker and, last, one JSON line.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

import psutil  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402
from store import store  # noqa: E402

from bigbatch.tune.storage.description import provenance  # noqa: E402

SEARCH = (
    "--space", "large_batch", "--data", "digits", "--model", "resnet18", "--set", "image_size=8", "precise_bn=off",
    "--subset", "0.2", "--max-epochs", "1", "--stopping", "none", "--strategy", "random", "--confirm", "none",
    "--no-check", "--seed", "0",
)  # fmt: skip
EVERY_S = 0.5
LOADED, LAST = (0.02, 0.1), (0.9, 1.0)
"""Parts of a worker's life: when its libraries are loaded and few trials have passed, and its end."""


def workers(search: int) -> dict[int, int]:
    """The resident bytes of each worker process of the search, by its number."""
    found = {}
    for process in psutil.Process(search).children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it has just ended
            if any("ray::RayTrainWorker" in word for word in process.cmdline()):
                found[process.pid] = process.memory_info().rss
    return found


def watch(search: subprocess.Popen[str]) -> dict[int, list[tuple[float, int]]]:
    """Seconds and resident bytes of each worker until the search ends."""
    began, looks = time.monotonic(), dict[int, list[tuple[float, int]]]()
    while search.poll() is None:
        for pid, size in workers(search.pid).items():
            looks.setdefault(pid, []).append((round(time.monotonic() - began, 1), size))
        time.sleep(EVERY_S)
    return looks


def most(looks: list[tuple[float, int]], part: tuple[float, float]) -> float:
    """The most MiB within a part of a worker's life."""
    first, last = looks[0][0], looks[-1][0]
    begin, end = (first + share * (last - first) for share in part)
    return round(max(size for at, size in looks if begin <= at <= end) / 2**20, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    facts = provenance()
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(ROOT / "tune" / "run.py"), *SEARCH, "--trials", str(options.trials)]
        began = time.monotonic()
        with open(Path(folder, "log"), "w") as log:
            search = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, text=True)
            looks = watch(search)
        took_s = time.monotonic() - began
        if search.returncode:
            raise SystemExit(Path(folder, "log").read_text()[-2000:])
        study = next(Path(folder, "runs").iterdir())
        states = pq.read_table(study / "trials.parquet", columns=["state"])["state"].to_pylist()
    rows: list[dict[str, Any]] = []
    for pid, seen in looks.items():
        row = {
            "lived_s": round(seen[-1][0] - seen[0][0], 1),
            "loaded_mib": most(seen, LOADED),
            "last_mib": most(seen, LAST),
        }
        rows.append(row)
        print(f"worker {pid}: {row}", flush=True)
    result = {
        "benchmark": "kept_workers",
        "settings": {"trials": options.trials, "search": SEARCH},
        "took_s": round(took_s, 1),
        "trials": dict(Counter(states)),
        "workers": rows,
        "provenance": facts,
        "looks": looks,
    }
    store(result, options.output)
    print(json.dumps({key: result[key] for key in ("took_s", "trials", "workers")}))


if __name__ == "__main__":
    main()
