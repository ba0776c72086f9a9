"""What a search of many trials leaves on the shared file system, counted while it runs, on a virtual Slurm.

    python benchmarks/files_of_a_search.py [--trials 300] [--output FILE.json]

One job of cluster/ray_head_workers.slurm on one node of two CPUs (tests/slurm) trains the cheapest real trials that
there are: ShuffleNet × 0.5, one epoch of a tenth of the digits, two trials at a time. Whenever another ten have
finished, and at the end, everything in the study's folder, in the job's folder and beside the job's log is counted:
files and folders, since quotas count both (inodes). Also noted is the most that any look has seen, for what comes and
goes meanwhile. From the growth between a third of the trials and all of them follows the count for 1,000. Needs root
and Slurm's programs, as those tests do. Prints a table and, last, one JSON line.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests" / "slurm")]

from bigbatch.cluster.record import study_progress  # noqa: E402
from virtual_cluster import VirtualCluster  # noqa: E402

ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT")
SEARCH = ("--space", "smoke", "--data", "digits", "--subset", "0.1", "--model", "shufflenet_v2_x0_5")
CHEAP = ("--max-epochs", "1", "--stopping", "none", "--strategy", "random", "--set", "image_size=16", "precise_bn=off")
EVERY = 10
TARGET_TRIALS, TARGET_FILES = 1000, 2000


def count(places: dict[str, list[Path]]) -> dict[str, int]:
    """Files and folders by place, and of the study's what is checkpoints, logs and Ray's."""
    found = {name: [path for top in tops for path in _all(top)] for name, tops in places.items()}
    counts = {name: len(paths) for name, paths in found.items()}
    for part in ("checkpoints", "logs", ".ray"):
        counts[f"study/{part}"] = sum(part in path.parts for path in found["study"])
    return {"all": sum(len(paths) for paths in found.values()), **counts}


def _all(top: Path) -> list[Path]:
    """``top`` and what is in it, without what is removed at this moment."""
    inside = [Path(folder, name) for folder, folders, files in os.walk(top) for name in (*folders, *files)]
    return [top, *inside] if top.exists() else []


def run(cluster: VirtualCluster, trials: int) -> dict[str, Any]:
    """One search. Raises SystemExit with its log if it does not end well."""
    folder = cluster.folder("alice", "files")
    env = {"BIGBATCH_PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}
    arguments = (*SEARCH, *CHEAP, "--trials", trials, "--output", folder / "runs", "--study", "s")
    script = ROOT / "cluster" / "ray_head_workers.slurm"
    job = cluster.sbatch("alice", "-c2", "--time=120", script, *arguments, cwd=folder, env=env)
    study, files = folder / "runs" / "s", cluster.home("alice") / ".bigbatch" / "jobs" / job
    places = {"study": [study], "job": [files], "log": [folder / f"bigbatch-{job}.log"]}
    began, looks, most, state = time.monotonic(), [], {}, ""
    while state not in ENDED:
        time.sleep(1.0)
        state = cluster.state(job)
        now, seen = study_progress.read_study_progress(study), count(places)
        most = {name: max(most.get(name, 0), number) for name, number in seen.items()}
        finished = now.finished if now else 0
        if state in ENDED or finished >= (looks[-1]["trials"] if looks else 0) + EVERY:
            looks.append({"trials": finished, "s": round(time.monotonic() - began, 1), **seen})
            print(json.dumps(looks[-1]), flush=True)
    if state != "COMPLETED" or looks[-1]["trials"] != trials:
        raise SystemExit(f"the search ended as {state}:\n{places['log'][0].read_text()[-3000:]}")
    return {"looks": looks, "most_at_any_look": most}


def figures(raw: dict[str, Any], trials: int) -> dict[str, float]:
    """What follows from the looks. Growth is between two looks while trials run: at the end Ray's files go."""
    looks, most = raw["looks"], raw["most_at_any_look"]
    early = next(look for look in looks if look["trials"] >= trials / 3)
    late = [look for look in looks if look["trials"] < trials][-1]
    grown = (late["all"] - early["all"]) / (late["trials"] - early["trials"])
    return {
        "trials": trials,
        "left": looks[-1]["all"],
        "passing": most["all"] - looks[-1]["all"],
        "growth_per_trial": grown,
        "left_of_1000_trials": looks[-1]["all"] + grown * (TARGET_TRIALS - trials),
        "most_of_1000_trials": most["all"] + grown * (TARGET_TRIALS - trials),
        "target": TARGET_FILES,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=300)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    if options.trials < 4 * EVERY:
        parser.error(f"--trials must be at least {4 * EVERY}, to see growth; got {options.trials}")
    from store import store

    from bigbatch.tune.storage.description import provenance

    if reason := VirtualCluster.available():
        raise SystemExit(reason)
    with VirtualCluster(nodes=1) as cluster:
        raw = run(cluster, options.trials)
    result = {
        "benchmark": "files_of_a_search",
        "settings": {"trials": options.trials, "search": [*SEARCH, *CHEAP]},
        "provenance": provenance(),
        **figures(raw, options.trials),
        **raw,
    }
    print("{trials} trials leave {left} files and folders, and {passing} more came and went".format_map(result))
    print(
        f"each adds {result['growth_per_trial']:.3f}; {TARGET_TRIALS} would leave {result['left_of_1000_trials']:.0f}"
    )
    store(result, options.output)
    print(json.dumps({key: value for key, value in result.items() if key != "looks"}))


if __name__ == "__main__":
    main()
