"""What the start, an epoch and a resume cost each rank: counted with 1, 2 and 4 processes, so that formulas say more.

    python benchmarks/scaling_counts.py [--ranks 1 2 4] [--output FILE.json]

Each rank is ``bigbatch train`` as torchrun starts it, on an image folder and on the same images packed; the same
command again resumes. strace counts the files that a rank opens, lists and asks for, and the bytes that it reads of
them; torch's profiler counts collectives, those of DDP too; rank 0's store counts its keys. Both slow a rank down, so
nothing here is a time. All is the same on any machine but for the meetings of ranks, about one a second. Needs strace.
Prints a table and, last, one JSON line.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(Path(__file__).resolve().parent)]

MARK = "/no-such-folder/phase/"
"""A rank asks for a file here to tell strace where it is."""
CALLS = "openat,newfstatat,stat,lstat,statx,access,read,pread64"
CALL = re.compile(r"^(\d+) +(?:(\w+)\((.*)|<\.\.\. (\w+) resumed>(.*))$")
CONFIG = {"model.name": "shufflenet_v2_x0_5", "data.image_size": 16, "batch.global_size": 16, "batch.micro_size": 4,
          "data.loader.workers": 0, "epochs": 2, "precise_bn": "off"}  # fmt: skip
TRAIN_IMAGES, VAL_IMAGES, CLASSES = 64, 16, ("dark", "light")


# One rank


def as_rank(output: Path, words: Sequence[str]) -> None:
    """Train in this process, and write what torch counts."""
    from torch.profiler import ProfilerActivity, profile

    from bigbatch.train_loop import distributed
    from bigbatch.train_loop.launch.command import main as train
    from bigbatch.train_loop.loop import train as loop

    keys: list[str] = []
    join = distributed.Meeting.join

    def join_and_count(self: Any, *how: Any) -> None:
        join(self, *how)
        distributed.dist.barrier()
        keys.extend(self._store.underlying_store.list_keys())  # of the whole store, whatever the prefix
        distributed.dist.barrier()

    distributed.Meeting.join = join_and_count  # type: ignore[method-assign]
    loop.set_up = _phase("set_up", loop.set_up)
    loop._epoch = _phase("epoch", loop._epoch)
    loop.take_step = _phase("step", loop.take_step)
    distributed.RankMeetings.meet = _phase("meeting", distributed.RankMeetings.meet)  # type: ignore[method-assign]
    mark("before")
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        code = train(words)
    mark("end")
    if code:
        raise SystemExit(code)
    output.write_text(json.dumps({"collectives": _collectives(profiler.events()), "keys": sorted(keys)}))


def mark(phase: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.stat(MARK + phase)


def _phase(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    from torch.profiler import record_function

    def call(*arguments: Any, **more: Any) -> Any:
        if name in ("set_up", "epoch"):
            mark(name)
        with record_function(f"phase:{name}"):
            return function(*arguments, **more)

    return call


def _collectives(events: Any) -> dict[str, list[int]]:
    """How many each call of a phase made, in itself: not those of a phase within it."""
    spans = [(e.name[6:], e.time_range.start, e.time_range.end) for e in events if e.name.startswith("phase:")]
    counts = dict.fromkeys(sorted(spans, key=lambda span: span[1]), 0)
    for event in events:
        if event.name.startswith("c10d::"):
            around = [span for span in spans if span[1] <= event.time_range.start <= span[2]]
            if around:
                counts[max(around, key=lambda span: span[1])] += 1
    found: dict[str, list[int]] = {}
    for (name, _, _), count in counts.items():
        found.setdefault(name, []).append(count)
    return found


# The files of a rank, from strace


def files_of(trace: Path, places: dict[str, Path]) -> dict[str, dict[str, int]]:
    """By phase: ``PLACE opened``, ``listed``, ``asked`` and ``bytes``; a file of no place is one of ``the system``."""
    found: dict[str, Counter[str]] = {}
    phase, waiting = "before", dict[str, tuple[str, str]]()
    for line in trace.read_text(errors="replace").splitlines():
        if (match := CALL.match(line)) is None:
            continue
        thread, name, text, resumed, rest = match.groups()
        if resumed:
            name, text = waiting.pop(thread, ("", ""))
            text += rest
            if name not in ("read", "pread64"):
                continue  # counted where it began
        elif text.endswith("<unfinished ...>"):
            waiting[thread] = name, text
            if name in ("read", "pread64"):
                continue
        if MARK in text:
            phase = text.partition(MARK)[2].partition('"')[0]
            continue
        what, path, number = _meaning(name, text)
        if path is not None:
            place = next((known for known, top in places.items() if Path(path).is_relative_to(top)), "the system")
            found.setdefault(phase, Counter())[f"{place} {what}"] += number
    return {name: dict(sorted(counts.items())) for name, counts in found.items()}


def _meaning(name: str, text: str) -> tuple[str, str | None, int]:
    """What a call does, to which file, and how often or how many bytes."""
    if name in ("read", "pread64"):
        match = re.match(r"\d+<(/[^>]*)>.* = (\d+)$", text)
        return "bytes", match and match[1], int(match[2]) if match else 0
    match = re.search(r'"([^"]*)"', text)
    path = os.path.join("/", match[1]) if match and match[1] else None
    if name == "openat":
        return "listed" if "O_DIRECTORY" in text else "opened", path, 1
    return "asked", path, 1


# All ranks


def count(ranks: int, data: Path, folder: Path) -> list[dict[str, Any]]:
    """Train with so many ranks into ``folder``, and return what each of them did, sorted by rank."""
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "config.json"
    if not config.exists():
        from bigbatch.train_loop.config import TrainConfig

        config.write_text(TrainConfig().replace_keys({**CONFIG, "data.name": str(data)}).to_json())
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    words = ["--config", str(config), "--output", str(folder / "run"), "--no-check"]
    started = [_start_rank(rank, ranks, port, folder, words) for rank in range(ranks)]
    said = [process.communicate()[0] for process in started]
    if any(process.returncode for process in started):
        raise SystemExit("\n".join(said))
    places = {"data": data, "checkpoints": folder / "run" / "checkpoints", "run": folder}
    counted = []
    for rank in range(ranks):
        torch_counts = json.loads((folder / f"{rank}.json").read_text())
        counted.append({**torch_counts, "files": files_of(folder / f"{rank}.strace", places)})
    return counted


def _start_rank(rank: int, ranks: int, port: str, folder: Path, words: list[str]) -> subprocess.Popen[str]:
    env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks),
           "RANK": str(rank), "LOCAL_RANK": str(rank), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo",
           "PYTHONDONTWRITEBYTECODE": "1", "TMPDIR": str(folder)}  # fmt: skip
    spy = ["strace", "-f", "-qq", "--seccomp-bpf", "-y", "-s0", "-e", f"trace={CALLS}", "-e", "signal=none"]
    script = [sys.executable, str(Path(__file__).resolve()), "--as-rank", str(folder / f"{rank}.json"), *words]
    return subprocess.Popen(
        [*spy, "-o", str(folder / f"{rank}.strace"), *script], env={**os.environ, **env}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def write_images(root: Path) -> Path:
    """Coloured noise of 16 pixels."""
    import numpy as np
    from PIL import Image

    draws = np.random.default_rng(0)
    for part, images in (("train", TRAIN_IMAGES), ("val", VAL_IMAGES)):
        for label, name in enumerate(CLASSES):
            (root / part / name).mkdir(parents=True)
            for number in range(images // len(CLASSES)):
                pixels = draws.integers(0, 128, (16, 16, 3)) + 120 * label
                Image.fromarray(pixels.astype("uint8")).save(root / part / name / f"{number:03d}.png")
    return root


def pack(images: Path, target: Path) -> Path:
    from bigbatch.train_loop.data.packing import command
    from bigbatch.train_loop.data.packing.shards import PackProfile
    from bigbatch.train_loop.data.packing.sources import find_source

    assert command.pack(find_source(str(images)), target, PackProfile(), workers=1, shard_bytes=1 << 20) == 0
    return target


def summary_of(raw: dict[str, Any]) -> dict[str, Any]:
    """What a page says, by data and number of ranks: of rank 0, of the busiest other one, and of all together."""
    rows: dict[str, Any] = {}
    for kind, by_ranks in raw.items():
        for ranks, starts in by_ranks.items():
            counts = [counts_of(first, again) for first, again in zip(starts["first"], starts["resumed"], strict=True)]
            rows[f"{kind} {ranks}"] = {
                name: {
                    "rank 0": counts[0][name],
                    "others": max((one[name] for one in counts[1:]), default=0),
                    "all": sum(one[name] for one in counts),
                }
                for name in counts[0]
            }
    return rows


def counts_of(first: dict[str, Any], resumed: dict[str, Any]) -> dict[str, int]:
    """Of one rank, from its first start and from the one that resumed."""

    def files(start: dict[str, Any], what: str) -> int:
        return sum(start["files"][phase].get(what, 0) for phase in ("before", "set_up"))

    here, there = first["collectives"], resumed["collectives"]
    ours = sum("/bigbatch/" in key for key in first["keys"])
    return {
        "folders of data listed": files(first, "data listed"),
        "files of data opened": files(first, "data opened"),
        "files of data asked for": files(first, "data asked"),
        "files of libraries": sum(files(first, f"the system {what}") for what in ("opened", "asked", "listed")),
        "keys of ours": ours,
        "keys of torch": len(first["keys"]) - ours,
        "collectives of the start": sum(here["set_up"]),
        "collectives of a step": here["step"][-1],
        "collectives of an epoch": here["epoch"][-1],
        "collectives of a resume": sum(there["set_up"]) - sum(here["set_up"]),
        "bytes of the checkpoint": files(resumed, "checkpoints bytes"),
    }


def table_of(rows: dict[str, Any]) -> str:
    """A line for each count and kind of data."""
    kinds = list(dict.fromkeys(row.split()[0] for row in rows))
    lines = []
    for name in next(iter(rows.values())):
        for kind in kinds:
            of_kind = {row.split()[1]: counts[name] for row, counts in rows.items() if row.split()[0] == kind}
            cells = [f"{ranks}: {c['rank 0']:,} / {c['others']:,} / {c['all']:,}" for ranks, c in of_kind.items()]
            lines.append(f"{name:26} {kind:7} {'   '.join(cells)}")
    return "\n".join(["ranks: rank 0 / another rank / all ranks", *lines])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--data", nargs="+", choices=["folder", "packed"], default=["folder", "packed"])
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    from store import store_measured

    raw: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        places = {"folder": write_images(folder / "images")}
        if "packed" in options.data:
            places["packed"] = pack(places["folder"], folder / "packed")
        for kind in options.data:
            for ranks in options.ranks:
                for start in ("first", "resumed"):
                    found = count(ranks, places[kind], folder / f"{kind}-{ranks}")
                    raw.setdefault(kind, {}).setdefault(str(ranks), {})[start] = found
                print(f"{kind}, {ranks} ranks: done", file=sys.stderr, flush=True)
    summary = summary_of(raw)
    print(table_of(summary))
    settings = {"ranks": options.ranks, "images": TRAIN_IMAGES + VAL_IMAGES, "classes": len(CLASSES), **CONFIG}
    store_measured("scaling_counts", settings, summary, raw, options.output)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--as-rank"]:
        as_rank(Path(sys.argv[2]), sys.argv[3:])
    else:
        main()
