"""A search of many tiny trials on three nodes, in which a random process of a trial is killed every ten seconds.

    python benchmarks/soak.py [--trials 60] [--kill-every-s 10] [--loops trainable ours] [--output FILE.json]

A job of ``cluster/ray_head_workers.slurm`` on a virtual Slurm (tests/slurm) searches over a training function of a
user's (``trainable``), then one over our training loop (``ours``). Killed is what trains, what lets the workers of a
trial meet, or the process of a trial itself. Nothing may be lost and nothing doubled:

- the search has as many trials as were asked for, all run to their end, and the job ends as completed;
- each has each of its epochs once, in the study and in ``epochs.parquet``;
- each epoch has the value of an undisturbed training: by the function's formula, or by our loop in this process;
- no process, file or port of the job is left on a node.

Needs root and Slurm's programs, as those tests do. Prints a line for each loop and, last, one JSON line.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import re
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests"), str(ROOT / "tests" / "slurm")]

from ray_job import RayJob, trials_of  # noqa: E402
from virtual_cluster import VirtualCluster  # noqa: E402
from virtual_jobs import until  # noqa: E402

VICTIMS = ("RayTrainWorker", "SynchronizationActor", "ImplicitFunc", "run_trial")
"""Processes of a trial, as Ray names them: its workers, their meeting point, and its own process (Tune's actor)."""
EPOCHS = 4
CODE = f'''"""Tiny trainings: a function, and a network for our loop."""
import os, time
from torch import nn

def space(trial, workload):
    return {{"lr": trial.suggest_float("lr", 0.1, 1.0)}}

def train(config, report, resume):
    done = int((resume / "epoch").read_text()) if resume else 0
    for epoch in range(done + 1, config["epochs"] + 1):
        time.sleep(0.5)
        (report.checkpoint_folder / "epoch").write_text(str(epoch))
        report(epoch=epoch, value=config["lr"] * epoch / {EPOCHS})

class Slow(nn.Flatten):
    def forward(self, images):
        time.sleep(0.1 * ("SLURM_JOB_ID" in os.environ))  # so that there is an epoch in which a process can be killed
        return super().forward(images)

def net(workload):
    return nn.Sequential(Slow(), nn.Linear(workload.channels * workload.image_size**2, workload.num_classes))
'''
LOOPS = {
    "trainable": "--trainable {0}:train --space {0} --objective value:max",
    "ours": "--model {0}:net --data digits --set image_size=8 batch=256 --holdout 0",
}
FEW = "--stopping none --strategy random --confirm none --seed 0 --no-check"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=60)
    parser.add_argument("--kill-every-s", type=float, default=10.0)
    parser.add_argument("--loops", nargs="+", choices=sorted(LOOPS), default=list(LOOPS))
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--limit-s", type=float, default=900.0, help="of each loop's job")
    parser.add_argument("--seed", type=int, default=0, help="of which processes are killed")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    if reason := VirtualCluster.available():
        raise SystemExit(reason)
    raw = {}
    libraries = [path for path in sys.path if path.endswith("site-packages")]  # a folder's .pth may name another one
    with VirtualCluster(nodes=options.nodes, readable=libraries) as cluster:
        for loop in options.loops:
            raw[loop] = soak(cluster, loop, options)
            print(in_words(loop, raw[loop]), flush=True)
            keep(raw, options)
            cluster.tidy()
    print(json.dumps(raw))
    if any(one["wrong"] for one in raw.values()):
        raise SystemExit(1)


def soak(cluster: VirtualCluster, loop: str, options: argparse.Namespace) -> dict[str, Any]:
    """One search under fire, and what is wrong with what it leaves."""
    folder = cluster.folder("alice", "own")
    (folder / "own.py").write_text(CODE)
    for path, mode in ((folder, 0o755), (folder / "own.py", 0o644)):
        path.chmod(mode)
    words = f"{LOOPS[loop].format(folder / 'own.py')} {FEW} --trials {options.trials} --max-epochs {EPOCHS}"
    began = time.monotonic()
    job = RayJob(cluster, "alice", ("--time=30", f"-N{options.nodes}", "-c1", "--mem=2500"), tuple(words.split()))
    job.wait_log(r"trial \d+ epoch 1/")
    killed = fire(cluster, job, options)
    in_time = re.search(r"→ (ended|requeueing)", job.log) is not None
    if in_time:
        job.wait_end("COMPLETED")
    else:  # what has ended until now can be looked at all the same
        cluster.run("ctl", "scancel", job.id, user="alice")
        job.wait_end("CANCELLED")
    took_s = time.monotonic() - began
    found = trials_of(job)
    rows = epoch_rows(Path(job.record["study_folder"]))
    wrong = faults(loop, found, rows, options.trials if in_time else None)
    job.leftovers()
    attempts = [trial.user_attrs.get("attempts", 0) for trial in found]
    resumed = sum(any(row["trial"] == t.number and row["resumed_from_epoch"] for row in rows) for t in found)
    return {
        "took_s": round(took_s, 1), "in_time": in_time, "kills": len(killed), "killed": dict(Counter(killed)),
        "trials": len(found),
        "complete": sum(trial.state.name == "COMPLETE" for trial in found), "epochs": len(rows),
        "resumed_trials": resumed, "attempts_of_trials": dict(Counter(attempts)), "wrong": wrong,
    }  # fmt: skip


def fire(cluster: VirtualCluster, job: RayJob, options: argparse.Namespace) -> list[str]:
    """Kill a random process of a trial every so often, until the job's log says that the search is over.

    None while no trial trains yet: on a slow machine none would ever begin.
    """
    draws, killed = random.Random(options.seed), list[str]()
    end = time.monotonic() + options.limit_s

    def is_over() -> bool:
        return time.monotonic() > end or re.search(r"→ (ended|requeueing)", job.log) is not None

    while not until(is_over, options.kill_every_s, step_s=0.5):
        processes = [
            (node, pid, name)
            for node in cluster.nodes
            for pid, line in cluster.processes(node, "alice")
            if line.startswith("ray::") and (name := next((v for v in VICTIMS if v in line), None))
        ]
        if any(name == VICTIMS[0] for _, _, name in processes):
            node, pid, name = draws.choice(processes)
            if not cluster.run(node, "kill", "-9", pid, check=False).returncode:
                killed.append(name)
    return killed


def epoch_rows(study: Path) -> list[dict[str, Any]]:
    """The rows of ``epochs.parquet``."""
    import pyarrow.parquet as pq

    rows: list[dict[str, Any]] = pq.read_table(study / "epochs.parquet").to_pylist()
    return rows


def faults(loop: str, found: list[Any], rows: list[dict[str, Any]], asked: int | None) -> list[str]:
    """What was lost, doubled or is not as an undisturbed training has it; empty if nothing.

    ``asked``: trials that the search should have run to their end; None if it was cut short, so that some may wait.
    """
    wrong = [] if asked in (None, len(found)) else [f"{len(found)} trials of {asked}"]
    expected = list(range(1, EPOCHS + 1))
    for trial in found:
        if asked is None and trial.state.name in ("WAITING", "RUNNING"):
            continue
        if trial.state.name != "COMPLETE":
            wrong.append(f"trial {trial.number} is {trial.state.name}: {trial.user_attrs.get('ended_because')}")
            continue
        mine = [row for row in rows if row["trial"] == trial.number]
        for place, epochs in (
            ("the study", sorted(trial.intermediate_values)),
            ("the table", [r["epoch"] for r in mine]),
        ):
            if epochs != expected:
                wrong.append(f"trial {trial.number} has epochs {epochs} in {place}")
        values = undisturbed(loop, trial)
        got = [trial.intermediate_values.get(epoch, math.nan) for epoch in expected]
        if not all(math.isclose(a, b, rel_tol=1e-9) for a, b in zip(got, values, strict=True)):
            wrong.append(f"trial {trial.number} has values {got}, undisturbed {values}")
    return wrong


def undisturbed(loop: str, trial: Any) -> list[float]:
    """The objective of each epoch, of a training that nothing interrupts."""
    if loop == "trainable":
        return [trial.params["lr"] * epoch / EPOCHS for epoch in range(1, EPOCHS + 1)]
    import torch

    from bigbatch.train_loop.config import TrainConfig
    from bigbatch.train_loop.loop.train import train
    from bigbatch.train_loop.reporter import ListReporter

    reporter = ListReporter()
    train(TrainConfig.from_dict(trial.user_attrs["config"]), reporter=reporter, device=torch.device("cpu"))
    return [float(record.val_top1 or 0.0) for record in reporter.records]


def in_words(loop: str, result: dict[str, Any]) -> str:
    """A line for a person."""
    kinds = ", ".join(f"{count} {name}" for name, count in result["killed"].items())
    return (
        f"{loop:10} {result['complete']} of {result['trials']} trials complete, {result['epochs']} epochs, after "
        f"{result['kills']} kills ({kinds}) in {result['took_s']} s; {result['resumed_trials']} went on from a "
        f"checkpoint; wrong: {'; '.join(result['wrong']) or 'nothing'}{'' if result['in_time'] else ' (cut short)'}"
    )


def keep(raw: dict[str, Any], options: argparse.Namespace) -> None:
    """Store what there is."""
    from store import store

    from bigbatch.tune.storage.description import provenance

    settings = {
        "trials": options.trials, "nodes": options.nodes, "epochs": EPOCHS, "kill_every_s": options.kill_every_s,
        "seed": options.seed,
    }  # fmt: skip
    result = {"benchmark": "soak", "settings": settings, "provenance": provenance(), "cpus": os.cpu_count(), "raw": raw}
    store(result, options.output)


if __name__ == "__main__":
    main()
