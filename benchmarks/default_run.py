"""The main command, timed: ``python tune/run.py --space large_batch`` as a newcomer runs it.

    python benchmarks/default_run.py [--runs 1] [--picture] [--output FILE.json] [-- more options of tune/run.py]

Each run uses another seed, in a fresh process and a terminal of its own, of which ``--picture`` takes the README's
picture in the first run (terminal_picture.py). Stored: wall time, how long Ray took to start and from then the first
trial to its first step, the best trial's validation top-1 and configuration, how many trials ran to their end and how
many were stopped, and where the workers' time went. ``beyond_epochs_s`` is the seconds of a trial, from its start to
its end, that were in none of its epochs; ``first_epoch_more_s`` is how much longer its first epoch took than the
median of its others. Both have a median, quartiles and the trials' values; a trial that goes on with another one, or
was tried again, is none of them. ``warnings`` are those of the trials' logs, each with how often it stands there; one
says why a trial's steps were not replayed. Prints a table and, last, one JSON line.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from optimizer_step import spread
from store import store
from terminal_picture import COMMAND, record, take

ROOT = Path(__file__).resolve().parent.parent
LOG_LINES = 30
sys.path.insert(0, str(ROOT / "src"))

from bigbatch.tune.runs.metrics import EPOCH_PARTS  # noqa: E402


def one_run(seed: int, more: list[str]) -> tuple[dict[str, Any], str]:
    """One search, and what its terminal showed. If it fails or is cut: prints the ends of its trials' logs, and raises
    SystemExit with the end of its output."""
    import pyarrow.parquet as pq

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:  # one that was cut may still write there
        started, study = time.monotonic(), Path(folder, "first")
        try:
            shown = record([sys.executable, *COMMAND[1:-1], folder, "--seed", str(seed), *more]).replace(folder, "runs")
        except SystemExit:
            for path in sorted(study.glob("**/trial-*.log")):
                print(path.name, *path.read_text(errors="replace").splitlines()[-LOG_LINES:], sep="\n", flush=True)
            raise
        wall_s = time.monotonic() - started
        every = pq.read_table(study / "trials.parquet").to_pylist()
        continued = {t["continues"] for t in every}
        trials = [t for t in every if t["confirms"] is None and t["trial"] not in continued]
        epochs = pq.read_table(study / "epochs.parquet").to_pylist()
        best = max((t for t in trials if t["state"] == "COMPLETE"), key=lambda t: t["value"])
        ledger = json.loads((study / "ledger" / "0001.json").read_text())
        parts = {name: sum(e[name] for e in epochs) for name in ("data_s", "step_s", "bn_s", "val_s", "checkpoint_s")}
        figures = {
            "seed": seed,
            "wall_s": wall_s,
            **{name: ledger[name] for name in ("ray_start_s", "trial_start_s")},
            "best_val_top1": best["value"],
            "best_config": json.loads((study / "best.json").read_text()),
            "trials": len(trials),
            "confirmations": sum(t["confirms"] is not None for t in every),
            "trials_by_batch": dict(Counter(t["config.batch.global_size"] for t in trials)),
            "frontier": json.loads((study / "frontier.json").read_text()),
            "complete": sum(t["state"] == "COMPLETE" for t in trials),
            "stopped_early": sum(t["state"] == "PRUNED" for t in trials),
            "epochs": len(epochs),
            "worker_s": 3600 * sum(t["gpu_hours"] or 0.0 for t in trials),
            "worker_s_in_epochs": parts,
            "warnings": warnings(study),
            **beyond(every, epochs),
        }
        return figures, shown


def warnings(study: Path) -> dict[str, int]:
    """What the workers of the study's trials have warned of, and how often."""
    texts = (path.read_text(errors="replace") for path in study.glob("**/trial-*.log"))
    return dict(
        Counter(line.partition(" WARNING ")[2] for text in texts for line in text.splitlines() if " WARNING " in line)
    )


def beyond(trials: list[dict[str, Any]], epochs: list[dict[str, Any]]) -> dict[str, Any]:
    """What trials took beside their epochs, and their first epoch beyond the others, from the rows of the tables."""
    took_s: dict[int, list[float]] = defaultdict(list)
    for e in sorted(epochs, key=lambda e: e["epoch"]):
        took_s[e["trial"]].append(sum(e[name] for name in EPOCH_PARTS))
    whole = [
        t for t in trials if t["ended_at"] and t["attempts"] == 1 and t["continues"] is None and took_s[t["trial"]]
    ]
    rest = [(t["ended_at"] - t["started_at"]).total_seconds() - sum(took_s[t["trial"]]) for t in whole]
    several = [took_s[t["trial"]] for t in whole if len(took_s[t["trial"]]) > 1]
    first = [one[0] - statistics.median(one[1:]) for one in several]
    found = {"beyond_epochs_s": rest, "first_epoch_more_s": first}
    return {name: {**spread(values), "values": values} if len(values) > 1 else None for name, values in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--picture", action="store_true", help="take the README's picture in the first run")
    parser.add_argument("--output", type=Path)
    parser.add_argument("more", nargs="*", help="options for tune/run.py, after --")
    options = parser.parse_args()
    from bigbatch.tune.storage.description import provenance

    facts = provenance()
    print(f"{'seed':>4} {'wall':>8} {'best top-1':>10} {'trials':>7} {'complete':>9} {'stopped':>8} {'epochs':>7}")
    runs, shown = [], ""
    for seed in range(options.runs):
        run, text = one_run(seed, options.more)
        runs.append(run)
        shown = shown or text
        print(
            f"{seed:>4} {run['wall_s']:>6.0f} s {run['best_val_top1']:>10.2%} {run['trials']:>7} {run['complete']:>9} "
            f"{run['stopped_early']:>8} {run['epochs']:>7}",
            flush=True,
        )
    result = {
        "benchmark": "default_run", "options": options.more, "provenance": facts, "cpus": os.cpu_count(), "runs": runs
    }  # fmt: skip
    store(result, options.output)
    if options.picture:
        take(shown, facts)
    print(
        json.dumps({"benchmark": "default_run", "runs": [{k: r[k] for k in ("wall_s", "best_val_top1")} for r in runs]})
    )


if __name__ == "__main__":
    main()
