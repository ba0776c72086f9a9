#!/usr/bin/env python3
"""Makes the files in ``tests/older/data/6dde4d6``: what a user of that commit has on disk.

Run it in a clean checkout of commit 6dde4d6 into which this folder, ``tests/older``, was copied, as root on a machine
with Slurm's programs (docs/testing-slurm.md):

    python tests/older/make_files.py

It refuses to run at any other commit: files of today's code would test nothing. All files are written by the commands
that users run. Afterwards only names of the machine are replaced in text files: its host name, the interpreter, and
the folders of the checkout and of the virtual cluster. Tokens are left out.
"""

from __future__ import annotations

import json
import os
import platform
import random
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

COMMIT = "6dde4d6"
HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
DATA = HERE / "data" / COMMIT
PLACE = Path("/tmp/bigbatch-older")
"""Where the files are made; the absolute paths that some of them hold begin so."""
BIGBATCH = Path(sys.executable).with_name("bigbatch")
NETWORK = HERE / "tiny_network"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(NETWORK), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
TINY = ("--space", "smoke", "--data", "digits", "--model", "mnasnet_tiny", "--seed", "1", "--scheduler", "none")
DRIVER = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
print("RUNNING")
time.sleep(600)
"""
CLASSES = ("ant", "bee")
TEXT = (".json", ".log", ".journal", ".slurm", ".txt")


def start(*words: object, cwd: Path = PLACE, **env: str) -> subprocess.Popen[str]:
    """A Python script of the checkout, whose output can be followed."""
    return subprocess.Popen(
        [sys.executable, *map(str, words)],
        cwd=cwd,
        env={**ENVIRONMENT, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run(*words: object, cwd: Path = PLACE, **env: str) -> str:
    process = start(*words, cwd=cwd, **env)
    output = process.communicate(timeout=600)[0]
    print(output)
    assert process.returncode == 0, words
    return output


def follow_until(process: subprocess.Popen[str], pattern: str) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        print(line, end="")
        if re.search(pattern, line):
            return
    raise AssertionError(f"ended before {pattern!r}")


def studies() -> None:
    """One that is finished, with a trial that was stopped early; one that Ctrl-C ended while its third trial ran."""
    search = (ROOT / "tune" / "run.py", *TINY)
    run(*search, "--study", "finished", "--trials", 3, "--max-epochs", 3, "--scheduler", "asha")
    process = start(*search, "--study", "interrupted", "--trials", 3, "--max-epochs", 8)
    follow_until(process, r"trial 2 epoch 3/8")
    process.send_signal(signal.SIGINT)
    print(process.communicate(timeout=300)[0])
    assert process.returncode == 130
    shutil.copytree(PLACE / "runs", DATA / "runs")


def packed_set() -> None:
    """Two classes of eight training and four validation images."""
    import numpy as np
    from PIL import Image

    for part, count in (("train", 8), ("val", 4)):
        for label, name in enumerate(CLASSES):
            folder = PLACE / "images" / part / name
            folder.mkdir(parents=True)
            for number in range(count):
                ramp = np.linspace(0, 200, 48 * (40 + number)).reshape(40 + number, 48, 1)
                pixels = (ramp * [1, 0.5, 0.2] + 20 * label + number).astype(np.uint8)
                Image.fromarray(pixels).save(folder / f"{number}.jpg", quality=90)
    run(BIGBATCH, "pack", "images", "packed", "--workers", 1)
    shutil.copytree(PLACE / "packed", DATA / "packed")


RUNS = {
    "sgd-within-epoch": ({"optimizer": {"name": "sgd", "peak_lr": 0.05}}, True),
    "lars-average-within-epoch": ({"optimizer": {"name": "lars", "peak_lr": 1.0}, "ema_decay": 0.9}, True),
    "lamb-fp16-after-epoch": ({"optimizer": {"name": "lamb", "peak_lr": 0.01}, "precision": "fp16"}, False),
}
"""By name: what differs from the best configuration of the study, and whether its checkpoint is within an epoch."""


def checkpoints() -> None:
    """Full runs that were killed after their third epoch, and what each checkpoint holds, in numbers."""
    best = json.loads((PLACE / "runs" / "finished" / "best.json").read_text())
    for name, (changes, within) in RUNS.items():
        config = {**best, "epochs": 6, **changes}
        config["optimizer"] = {**best["optimizer"], **changes["optimizer"]}
        (PLACE / f"{name}.json").write_text(json.dumps(config))
        while not _killed_run(name, within):  # where in an epoch a kill comes is chance
            shutil.rmtree(PLACE / "full" / name)
    shutil.copytree(PLACE / "full", DATA / "full", ignore=shutil.ignore_patterns(".lease"))


def _killed_run(name: str, within: bool) -> bool:
    """Whether the checkpoint that is left is from within an epoch, or from an epoch's end, as wished."""
    import torch

    folder = PLACE / "full" / name
    ranks = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 1, ROOT / "train_loop" / "run.py")
    every_s = 0.001 if within else 0
    process = start(*ranks, "--config", f"{name}.json", "--output", folder, "--checkpoint-every-s", every_s)
    follow_until(process, r"epoch 3/6")
    time.sleep(random.uniform(0, 0.05))
    _kill_rank(name)
    process.communicate(timeout=300)
    content = torch.load(next(folder.rglob("latest.pt")), weights_only=True)
    sums = {key: [t.double().sum().item(), t.double().abs().sum().item()] for key, t in content["model"].items()}
    facts = {"progress": content["progress"], "config": content["config"], "sums": sums}
    (folder / "expected.json").write_text(json.dumps(facts, indent=1))
    print(name, content["progress"]["epoch"], content["progress"]["step"])
    return bool(content["progress"]["step"]) == within and 3 <= content["progress"]["epoch"] < 6


def _kill_rank(name: str) -> None:
    """Kill the training process itself, not the one that started it."""
    import psutil

    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if f"{name}.json" in words and "torch.distributed.run" not in words:
            process.kill()


def jobs() -> None:
    """Three jobs in a real Slurm: one that waits to go on with its search, one that has a successor, one that ended."""
    sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "slurm")]
    from virtual_cluster import VirtualCluster

    with VirtualCluster() as cluster:
        folder = cluster.folder("alice", "j")
        script = ROOT / "cluster" / "ray_head_workers.slurm"
        env = {"BIGBATCH_PYTHON": sys.executable, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(NETWORK)}

        def submit(*arguments: object, options: Sequence[str] = ()) -> str:
            words = ("-c2", "--time=10", *options, script, *arguments)
            return cluster.sbatch("alice", *words, cwd=folder, env=env)

        def log(job: str) -> str:
            path = folder / f"bigbatch-{job}.log"
            return path.read_text(errors="replace") if path.exists() else ""

        search = submit(*TINY, "--study", "s", "--trials", 3, "--max-epochs", 300)
        _wait(lambda: "epoch 2/300" in log(search))
        cluster.run("ctl", "scancel", "--batch", "-s", "USR1", search, user="alice")
        _wait(lambda: cluster.state(search) == "PENDING")
        chained = submit("--chain", "--", "python", "-u", "-c", DRIVER, options=("-N2",))
        _wait(lambda: "RUNNING" in log(chained))
        cluster.run("ctl", "scancel", "--batch", "-s", "USR1", chained, user="alice")
        _wait(lambda: cluster.state(chained) in ("COMPLETED", "FAILED", "CANCELLED"))
        ended = submit("--", "python", "-c", "print('SAID BY THE DRIVER')")
        cluster.wait_state(ended, "COMPLETED", 300)
        cluster.run("ctl", "scancel", "-u", "alice")
        home = cluster.home("alice")
        shutil.copytree(home / ".bigbatch", DATA / "home" / ".bigbatch", ignore=shutil.ignore_patterns("token", "tls"))
        shutil.copytree(folder, DATA / "home" / "j")
        _replace(DATA / "home", {str(folder): "/home/alice/j", str(home): "/home/alice"})


def _wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.1)


def scripts() -> None:
    """The batch scripts of the repository, and those that ``bigbatch cluster submit`` and ``attach`` write."""
    folder = DATA / "scripts"
    folder.mkdir()
    for name in ("ray_head_workers", "ray_attach"):
        shutil.copy(ROOT / "cluster" / f"{name}.slurm", folder / f"{name}.txt")
    (PLACE / "image.sif").touch()
    python = ("--python", sys.executable, "--cpus-per-node", 2, "--site", "generic")
    for name, words in {
        "submit-search": ("submit", "--dry-run", *python, "--space", "smoke", "--study", "first"),
        "submit-command": ("submit", "--dry-run", *python, "--", "python", "-c", "print('SAID BY THE DRIVER')"),
        "submit-container": ("submit", "--dry-run", *python, "--container", "image.sif", "--space", "smoke"),
    }.items():
        env = {"BIGBATCH_HOME": "/home/alice/.bigbatch"}
        command = [sys.executable, BIGBATCH, "cluster", *map(str, words)]
        done = subprocess.run(command, cwd=PLACE, env={**ENVIRONMENT, **env}, stdout=subprocess.PIPE, text=True)
        assert done.returncode == 0, words
        (folder / f"{name}.txt").write_text(done.stdout)


def _replace(folder: Path, names: dict[str, str]) -> None:
    for path in folder.rglob("*"):
        if path.is_file() and path.suffix in TEXT:
            text = path.read_text()
            for old, new in names.items():
                text = re.sub(rf"(?<!\w){re.escape(old)}(?!\w)", new, text)
            path.write_text(text)


def main() -> None:
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout
    if not head.startswith(COMMIT):
        sys.exit(f"make_files.py: these are files of commit {COMMIT}; this checkout is at {head[:7] or 'no commit'}.")
    for folder in (DATA, PLACE):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    for part in (scripts, packed_set, studies, checkpoints, jobs):
        print(part.__name__, time.strftime("%H:%M:%S"), flush=True)
        part()
    _replace(DATA, {sys.executable: "python3", str(ROOT): "/home/alice/bigbatch", platform.node(): "login1"})
    for name in ("runs", "full", "home"):
        pack(DATA / name)


def pack(folder: Path) -> None:
    """Put a folder into an archive beside it: a third of the size, and the files' modes are kept."""
    with tarfile.open(f"{folder}.tar.xz", "w:xz") as archive:
        archive.add(folder, folder.name, filter=_of_nobody)
    shutil.rmtree(folder)


def _of_nobody(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


if __name__ == "__main__":
    main()
