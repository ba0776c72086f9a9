"""What monitoring costs: the same search with all of it and with none of it, by turns.

    python benchmarks/monitoring_overhead.py --rounds 5 --output benchmarks/results/monitoring_overhead_2cpu.json

Both arms are the main command, ``--space large_batch`` on digits, with every choice fixed: random proposals of one
seed, no early stops, no confirmations. So they train the same configurations for the same epochs, which is checked.

- **off**: output to a file, no W&B, no report at the end.
- **on**: the live table on a terminal, W&B offline, the report at the end.

Records, logs, the ledger and the journal are the search itself and in both arms. A round is one search of each arm, the
second round in the opposite order. Stored: wall times, seconds within epochs, processor seconds of the search and all
that it starts (as root, by control group: other work delays them less than the wall), those
of all processes but the workers (see below), ratios on/off by round with median and range, and the range of the off
arm alone, which is the noise. ``--dry-run`` prints the two commands.

**parts**: the same difference for each kind of process, as a share of the processor seconds of the search without:
workers, driver, W&B, Ray itself; **rest** lived too shortly to be seen, or is the last half second.

**beside**: what W&B's process, the driver, Ray's dashboard and the report take more with monitoring
than without, as a share of the processor seconds of the search without. The times of workers vary by several percent
from run to run, which hides a cost of one percent; those of the other processes vary less.

The target is that of all processor seconds, or of **beside** if those of the searches without vary by more than it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pty
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from processor_account import ProcessorAccount, open_account  # noqa: E402
from store import store  # noqa: E402

OFF, ON = "off", "on"
TARGET = 1.02
"""The ratio is to be below this: of processor seconds where they are measured, as wall times vary far more."""
STUDY = "bench"
WORKERS, DRIVER, WANDB, RAY, REST = "workers", "driver", "W&B", "Ray itself", "rest"
RAYS_AGENTS = ("ray::DashboardAgent", "ray::RuntimeEnvAgent")
FIXED = ("--space", "large_batch", "--strategy", "random", "--stopping", "none", "--confirm", "none", "--seed", "0")
SAMPLE_S = 0.5
MEANINGS = {"wall": "the whole command", "epochs": "seconds within epochs", "processor": "processor seconds"}
EPOCH_PARTS = ("train_s", "bn_s", "val_s", "checkpoint_s")


@dataclass(frozen=True)
class MeasuredSearch:
    """One search."""

    arm: str
    wall_s: float
    epochs_s: float
    """Of all workers, within epochs."""
    trained: tuple[str, ...]
    """Each trial's configuration with the number of its epochs."""
    drawn_bytes: int = 0
    """What the live table wrote to the terminal."""
    processor_s: float | None = None
    """Of the search and all that it starts. None: not measured."""
    parts_s: dict[str, float] = field(default_factory=dict)
    """Them by kind of process; empty: not measured."""


def search_command(arm: str, output: Path, more: Sequence[str]) -> list[str]:
    """The command line of a search."""
    words = [sys.executable, __file__, "--search", arm, "--", *FIXED, "--study", STUDY, "--output", str(output), *more]
    return words + (["--wandb", "offline"] if arm == ON else [])


def search_in_this_process(arm: str, words: Sequence[str]) -> int:
    """The search itself; in the arm ``off`` without what has no switch."""
    from bigbatch.tune.commands.tune import tune_main
    from bigbatch.tune.search import driver

    if arm == OFF:
        assert hasattr(driver, "_say_report")
        driver._say_report = lambda *_: None
    return tune_main(words)


def part_of(line: str) -> str:
    """The kind of the process with this command line."""
    if line.startswith("ray::") and not line.startswith(RAYS_AGENTS):
        return WORKERS
    if "wandb-core" in line:
        return WANDB
    return DRIVER if f"{Path(__file__).name} --search " in line else RAY


class SecondsByPart:
    """Adds up the processor seconds of each kind of process while they live, at most ``SAMPLE_S`` before their end."""

    def __init__(self, account: ProcessorAccount) -> None:
        self._account, self._over = account, threading.Event()
        self._seen = dict[tuple[int, int], tuple[str, float]]()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def _sample(self) -> None:
        while not self._over.wait(SAMPLE_S):
            for process, (line, seconds) in self._account.of_processes().items():
                known, _ = self._seen.get(process, ("", 0.0))
                self._seen[process] = (line or known, seconds)  # a process that is about to end has no command line

    def seconds(self) -> dict[str, float]:
        """The sums until now."""
        sums: dict[str, float] = {}
        for line, seconds in list(self._seen.values()):
            sums[part_of(line)] = sums.get(part_of(line), 0.0) + seconds
        return sums

    def end(self) -> dict[str, float]:
        """Stop counting. Returns the sums."""
        self._over.set()
        self._thread.join()
        return self.seconds()


# Measuring


def measure(arm: str, more: Sequence[str]) -> MeasuredSearch:
    """Run one search. Raises SystemExit if it fails, or was not monitored as its arm says."""
    with tempfile.TemporaryDirectory(prefix="bigbatch-monitoring-") as home:
        output, log = Path(home, "runs"), Path(home, "log.txt")
        account = open_account()
        words = search_command(arm, output, more)
        words = account.counted(words) if account else words
        parts = SecondsByPart(account) if account else None
        began = time.monotonic()
        with log.open("w+b") as lines:
            code, drawn = on_terminal(words, lines.fileno()) if arm == ON else quietly(words, lines.fileno())
        wall_s, processor_s = time.monotonic() - began, account.seconds() if account else None
        parts_s = parts.end() if parts else {}
        if account:
            parts_s[REST] = (processor_s or 0.0) - sum(parts_s.values())
            account.close()
        if code:
            raise SystemExit(f"the search failed with {code}:\n{log.read_text(errors='replace')[-3000:]}")
        found = read_search(arm, output / STUDY, wall_s, drawn)
        found = replace(found, processor_s=processor_s, parts_s=parts_s)
        if problem := wrongly_monitored(found, output / STUDY):
            raise SystemExit(f"arm {arm}: {problem}")
        return found


def quietly(words: Sequence[str], log: int) -> tuple[int, int]:
    """Run the search with its output in a file. Returns its exit code, and 0: it has drawn nothing."""
    return subprocess.run(words, stdout=log, stderr=log).returncode, 0


def on_terminal(words: Sequence[str], log: int) -> tuple[int, int]:
    """Run the search on a terminal, with its errors in a file. Returns its exit code, and the bytes that it drew."""
    drawn = 0
    reader, terminal = pty.openpty()
    with subprocess.Popen(words, stdout=terminal, stderr=log, env={**os.environ, "TERM": "xterm-256color"}) as search:
        os.close(terminal)
        with contextlib.suppress(OSError):  # the other end is closed
            while content := os.read(reader, 65536):
                drawn += len(content)
    os.close(reader)
    return search.returncode, drawn


def read_search(arm: str, study: Path, wall_s: float, drawn_bytes: int) -> MeasuredSearch:
    """What a search has trained, and how long that took."""
    from bigbatch import open_study

    opened = open_study(study)
    columns = sorted(name for name in opened.trials.columns if name.startswith("config."))
    trained = [json.dumps([row[name] for name in (*columns, "epochs")], default=str) for row in rows_of(opened.trials)]
    epochs_s = sum(row[part] for row in rows_of(opened.epochs) for part in EPOCH_PARTS)
    return MeasuredSearch(arm, wall_s, epochs_s, tuple(sorted(trained)), drawn_bytes)


def rows_of(frame: Any) -> list[dict[str, Any]]:
    """A frame of pandas as rows."""
    found: list[dict[str, Any]] = frame.to_dict("records")
    return found


def wrongly_monitored(found: MeasuredSearch, study: Path) -> str:
    """Why a search was not monitored as its arm says; empty if it was."""
    runs = len(list(study.glob("wandb/offline-run-*/run-*.wandb")))
    if found.arm == OFF:
        there = [name for name in ("wandb", "report.html") if (study / name).exists()]
        return f"it wrote {' and '.join(there)}" if there else ""
    if runs < len(found.trained) or not (study / "report.html").exists():
        return f"it wrote {runs} W&B runs for {len(found.trained)} trials, or no report"
    return "" if found.drawn_bytes else "it drew nothing on its terminal"


def order_of(number: int) -> tuple[str, str]:
    """The arms of a round, in turn: what changes slowly on the machine then favours neither."""
    return (OFF, ON) if number % 2 == 0 else (ON, OFF)


def compared(searches: Sequence[MeasuredSearch]) -> dict[str, object]:
    """Ratios on/off of each round, with median and range. Raises SystemExit if the arms trained different things."""
    rounds = [{s.arm: s for s in searches[i : i + 2]} for i in range(0, len(searches), 2)]
    if len({s.trained for s in searches}) > 1:
        raise SystemExit("the searches trained different configurations or epochs: they do not compare")
    result: dict[str, object] = {}
    values: list[tuple[str, Callable[[MeasuredSearch], float]]] = [
        ("wall", lambda s: s.wall_s),
        ("epochs", lambda s: s.epochs_s),
    ]
    if all(s.processor_s for s in searches):
        values.append(("processor", lambda s: s.processor_s or 0.0))
    if all(s.parts_s and s.processor_s for s in searches):
        result["beside"] = more_of(rounds, beside_s)
        names = sorted({name for s in searches for name in s.parts_s})
        result["parts"] = {name: more_of(rounds, lambda s, name=name: s.parts_s.get(name, 0.0)) for name in names}
    for name, value in values:
        ratios = [value(one[ON]) / value(one[OFF]) for one in rounds]
        off = [value(one[OFF]) for one in rounds]
        result[name] = {
            "ratios": ratios,
            "median": statistics.median(ratios),
            "range": [min(ratios), max(ratios)],
            "off_s": statistics.median(off),
            "noise": (max(off) - min(off)) / statistics.median(off),
        }
    return result


def more_of(rounds: Sequence[dict[str, MeasuredSearch]], seconds: Callable[..., float]) -> dict[str, object]:
    """What monitoring adds to these processor seconds, as shares of all of the search without it."""
    shares = [(seconds(one[ON]) - seconds(one[OFF])) / (one[OFF].processor_s or 1.0) for one in rounds]
    return {
        "shares": shares,
        "median": statistics.median(shares),
        "range": [min(shares), max(shares)],
        "off_s": statistics.median(seconds(one[OFF]) for one in rounds),
    }


def beside_s(search: MeasuredSearch) -> float:
    """Processor seconds of all processes but the workers."""
    return (search.processor_s or 0.0) - search.parts_s.get(WORKERS, 0.0)


def in_words(result: dict[str, Any]) -> Iterator[str]:
    """The lines for a reader."""
    for name, meaning in MEANINGS.items():
        if name not in result:
            continue
        one = result[name]
        low, high = one["range"]
        yield (
            f"{meaning}: {one['median'] - 1:+.1%} with monitoring ({low - 1:+.1%} to {high - 1:+.1%} by round; "
            f"{one['off_s']:.0f} s without, which vary by {one['noise']:.1%})"
        )
    if "beside" in result:
        low, high = result["beside"]["range"]
        yield (
            f"processes beside the workers: {result['beside']['median']:+.1%} of all processor seconds "
            f"({low:+.1%} to {high:+.1%} by round)"
        )
        parts = sorted(result["parts"].items(), key=lambda part: -part[1]["median"])
        yield "of them by kind of process: " + ", ".join(f"{name} {one['median']:+.1%}" for name, one in parts)
    few = "" if len(result["wall"]["ratios"]) > 1 else "; one round shows no noise"
    judged, ratio = judgement(result)
    yield f"target: {judged} below {TARGET - 1:+.0%}, {'reached' if ratio < TARGET else 'missed'}{few}"


def judgement(result: dict[str, Any]) -> tuple[str, float]:
    """What the target is that of, and its ratio on/off."""
    if "beside" in result and result["processor"]["noise"] > TARGET - 1:
        return "processes beside the workers", 1 + result["beside"]["median"]
    name = "processor" if "processor" in result else "wall"
    return MEANINGS[name], result[name]["median"]


def main() -> int:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--trials", type=int, default=12, help="trials of each search (default: 12, as on digits)")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--dry-run", action="store_true", help="print both commands and stop")
    parser.add_argument("--search", choices=(OFF, ON), help=argparse.SUPPRESS)
    parser.add_argument("more", nargs="*", help="options for bigbatch tune, after --")
    options = parser.parse_args()
    if options.search:
        return search_in_this_process(options.search, options.more)
    more = ["--trials", str(options.trials), *options.more]
    if options.dry_run:
        for arm in (OFF, ON):
            print(" ".join(search_command(arm, Path("runs"), more)))
        return 0
    from bigbatch.tune.storage.description import provenance

    facts, load, searches = provenance(), os.getloadavg()[0], []
    for number in range(options.rounds):
        for arm in order_of(number):
            searches.append(measure(arm, more))
            print(f"round {number + 1} {arm:>3}: {searches[-1].wall_s:.1f} s", flush=True)
    result = compared(searches)
    raw = [{k: v for k, v in asdict(one).items() if k != "trained"} for one in searches]
    stored = {
        "benchmark": "monitoring_overhead", "target": TARGET, "trials": options.trials, "options": options.more,
        "cpus": os.cpu_count(), "load": load, "searches": raw, **result, "provenance": facts,
    }  # fmt: skip
    store(stored, options.output)
    print(*in_words(result), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
