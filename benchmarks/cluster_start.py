"""From a job's start until all its nodes are in Ray: our job against Ray's documented ways, on a virtual Slurm.

    python benchmarks/cluster_start.py [--rounds 3] [--nodes 3] [--output FILE.json]

Arms, one job each a round, interleaved and each first in turn, on the same virtual cluster (tests/slurm):

- ``bigbatch``: cluster/ray_head_workers.slurm, with its token, private folders and probed ports.
- ``sample``: the sbatch script of Ray's documentation for Slurm ("slurm-basic.sh"), with its fixed waits of
  10 s after the head and 5 s after each worker, fixed port 6379 and no authentication of its own.
- ``symmetric``: ``ray symmetric-run`` in one srun, the newer way of the same page.

Time runs from the batch script's first line to the moment at which a driver sees all nodes alive; the second figure
is from there to the job's end: what taking the cluster down costs. Needs root and Slurm's programs, as those tests
do. Prints medians and ratios by round, and, last, one JSON line.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests" / "slurm")]

from virtual_cluster import VirtualCluster  # noqa: E402

ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT")
LIMIT_S = 300
READY = """
import os, sys, time, ray
ray.init(address=os.environ.get("RAY_ADDRESS", "auto"), log_to_driver=False, configure_logging=False)
while sum(node["Alive"] for node in ray.nodes()) < int(sys.argv[1]):
    time.sleep(0.1)
open(sys.argv[2], "w").write(repr(time.time()))
"""
HEAD = "#!/bin/bash\npython -c 'import time; print(repr(time.time()))' > began\n"
ARMS = {
    "bigbatch": HEAD + 'exec bash "$BIGBATCH_ROOT/cluster/ray_head_workers.slurm" -- python ready.py $1 ready\n',
    "sample": HEAD
    + """
nodes_array=($(scontrol show hostnames "$SLURM_JOB_NODELIST"))
head_node=${nodes_array[0]}
head_node_ip=$(srun --nodes=1 --ntasks=1 -w "$head_node" hostname --ip-address)
ip_head=$head_node_ip:6379
export ip_head RAY_ADDRESS=$ip_head
srun --nodes=1 --ntasks=1 -w "$head_node" ray start --head --node-ip-address="$head_node_ip" --port=6379 \\
    --num-cpus "$SLURM_CPUS_PER_TASK" --num-gpus 0 --block &
sleep 10
for ((i = 1; i < SLURM_JOB_NUM_NODES; i++)); do
    srun --nodes=1 --ntasks=1 -w "${nodes_array[$i]}" \\
        ray start --address "$ip_head" --num-cpus "$SLURM_CPUS_PER_TASK" --num-gpus 0 --block &
    sleep 5
done
python -u ready.py $1 ready
""",
    "symmetric": HEAD
    + """
nodes_array=($(scontrol show hostnames "$SLURM_JOB_NODELIST"))
export RAY_ADDRESS=$(srun --nodes=1 --ntasks=1 -w "${nodes_array[0]}" hostname --ip-address):6379
srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" ray symmetric-run --address "$RAY_ADDRESS" \\
    --min-nodes "$SLURM_JOB_NUM_NODES" --num-cpus="$SLURM_CPUS_PER_TASK" --num-gpus=0 -- python -u ready.py $1 ready
""",
}


def run_job(cluster: VirtualCluster, arm: str, nodes: int) -> dict[str, float]:
    """Seconds until all nodes are seen, and from there to the job's end. Raises SystemExit where it fails."""
    folder = cluster.folder("alice", arm)
    (folder / "ready.py").write_text(READY)
    (folder / "ready.py").chmod(0o644)
    path = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
    env = {"PATH": path, "BIGBATCH_ROOT": str(ROOT), "BIGBATCH_PYTHON": sys.executable, "SRUN_CPUS_PER_TASK": "2"}
    options = (f"-N{nodes}", "--ntasks-per-node=1", "-c2", "--time=10", "--output=log.txt", "--signal=B:USR1@120")
    job = cluster.sbatch("alice", *options, script=ARMS[arm].replace("$1", str(nodes)), cwd=folder, env=env)
    cluster.wait_state(job, ENDED, LIMIT_S)
    ended = time.time()
    if not (folder / "ready").exists():
        raise SystemExit(f"{arm} failed:\n{(folder / 'log.txt').read_text()[-3000:]}")
    began, ready = (float((folder / name).read_text()) for name in ("began", "ready"))
    # Our job says when it entered which state; the others say nothing of that kind.
    states = re.findall(r"\+([\d.]+)s → (\w+)", (folder / "log.txt").read_text())
    cluster.tidy()
    return {"start_s": ready - began, "end_s": ended - ready, **{f"{name}_at_s": float(at) for at, name in states}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    if reason := VirtualCluster.available():
        raise SystemExit(reason)
    raw: dict[str, list[dict[str, float]]] = {arm: [] for arm in ARMS}
    with VirtualCluster(nodes=options.nodes) as cluster:
        for number in range(options.rounds):
            shift = number % len(ARMS)  # who comes first finds the coldest caches
            for arm in [*ARMS, *ARMS][shift : shift + len(ARMS)]:
                raw[arm].append(run_job(cluster, arm, options.nodes))
                print(f"round {number + 1} {arm}: {raw[arm][-1]}", flush=True)
    report(raw, options)


def report(raw: dict[str, list[dict[str, float]]], options: argparse.Namespace) -> None:
    from store import store

    from bigbatch.tune.storage.description import provenance

    result: dict[str, Any] = {
        "benchmark": "cluster_start",
        "settings": {"rounds": options.rounds, "nodes": options.nodes},
        "provenance": provenance(),
        "cpus": os.cpu_count(),
        "median": {a: {k: statistics.median(r[k] for r in rows) for k in rows[0]} for a, rows in raw.items()},
        "start_ratio_by_round": {
            arm: [ours["start_s"] / theirs["start_s"] for ours, theirs in zip(raw["bigbatch"], rows, strict=True)]
            for arm, rows in raw.items()
            if arm != "bigbatch"
        },
        "raw": raw,
    }
    for arm, row in result["median"].items():
        print(f"{arm:10} all nodes after {row['start_s']:5.1f} s, job ended {row['end_s']:5.1f} s later (medians)")
    for arm, ratios in result["start_ratio_by_round"].items():
        print(f"bigbatch / {arm}, round by round: {', '.join(f'{r:.2f}' for r in ratios)}")
    store(result, options.output)
    print(json.dumps({key: result[key] for key in ("median", "start_ratio_by_round")}))


if __name__ == "__main__":
    main()
