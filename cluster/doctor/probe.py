"""The doctor's questions to each node: ``python -m bigbatch.cluster.doctor.probe facts FOLDER MARK|allreduce FOLDER``.

Each prints one line of JSON: subject → what was seen, and what is wrong with it ("": nothing). ``facts`` inspects the
node; ``allreduce`` connects the nodes with torch.
"""

from __future__ import annotations

import json
import os
import platform
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from bigbatch.base.atomic_files import PRIVATE, write_json
from bigbatch.cluster.host import slurm_commands
from bigbatch.cluster.host.network import interface_variables, own_address

PACKAGES = ("ray", "torch", "torchvision", "optuna", "numpy", "bigbatch")
NEEDED = ("ray", "torch", "optuna")
DEADLINE_S = 60.0
LONGEST_TMP = 12
"""Longest path of a temporary folder, in characters. The job's folder and Ray's sockets add up to 95, and the kernel
allows 107 (AF_UNIX)."""
LEAST_FREE_BYTES, LEAST_FREE_INODES = 2**28, 1000

Answer = dict[str, str | tuple[str, str]]


# Facts of one node


def facts(shared: Path, mark: str, env: Mapping[str, str] = os.environ) -> Answer:
    """The node's software, devices and folders.

    Args:
        shared: the folder in which the doctor left its ``mark``.
    """
    tmp = Path(env.get("BIGBATCH_NODE_TMP") or "/tmp")
    versions = {name: _version(name) for name in PACKAGES}
    missing = ", ".join(name for name in NEEDED if not versions[name])
    too_long = f"has {len(str(tmp))} characters; at most {LONGEST_TMP} fit" if len(str(tmp)) > LONGEST_TMP else ""
    found = shared / "mark"
    other = "" if found.is_file() and found.read_text() == mark else f"{shared.parent} is another folder"
    return {
        "host": socket.gethostname(),
        "python": (f"{platform.python_version()} ({sys.executable})", f"without {missing}" if missing else ""),
        "packages": (", ".join(f"{name} {version}" for name, version in versions.items() if version) or "none", ""),
        "GPUs": judge_gpus(env),
        "temp folder": (str(tmp), too_long or why_unusable(tmp)),
        "shared folder": (str(shared.parent), other or why_unusable(shared)),
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def judge_gpus(env: Mapping[str, str], dev: Path = Path("/dev")) -> tuple[str, str]:
    """How many GPUs a process would use, and what is wrong: they are not those of Slurm, or torch cannot use them."""
    granted = slurm_commands.granted_gpus_here(env)
    if granted is None and env.get("SLURM_JOB_ID"):
        granted = 0  # Slurm sets no variable in a job without GPUs
    files = len(list(dev.glob("nvidia[0-9]*")))
    visible = env.get("CUDA_VISIBLE_DEVICES")
    seen = files if visible is None else slurm_commands.count_listed_devices(visible)
    seen = min(seen, files) if files and "MIG-" not in (visible or "") else seen  # parts of a GPU share its file
    if granted not in (None, seen):
        return str(seen), f"{granted} granted, {seen} seen"
    return str(seen), _torch_refuses() if seen and find_spec("torch") else ""


def _torch_refuses() -> str:
    """Why torch can use no GPU here, e.g. because it was built for a newer driver, or for newer GPUs."""
    command = [sys.executable, "-c", "import torch; torch.zeros(1).cuda().add(1).item()"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    said = done.stderr.strip().splitlines() or [""]
    told = next((line for line in said if "Error: " in line), said[-1])  # CUDA's advice follows it
    return f"torch can use none: {told.partition('. ')[0]}" if done.returncode else ""


def why_unusable(folder: Path) -> str:
    """Why checkpoints and logs cannot be written in ``folder``."""
    try:
        # A quota shows only when data reaches the disk, so the file is written and synced.
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".bigbatch-") as file:
            file.write(b"x")
            file.flush()
            os.fsync(file.fileno())
        stat = os.statvfs(folder)
    except OSError as error:
        return f"cannot be used: {error.strerror or error}"
    free = stat.f_bavail * stat.f_frsize
    if free < LEAST_FREE_BYTES or (stat.f_files and stat.f_favail < LEAST_FREE_INODES):
        return f"{free / 2**30:.1f} GiB and {stat.f_favail:,} files are free"
    return ""


# Between the nodes


def allreduce(folder: Path, env: Mapping[str, str] = os.environ) -> Answer:
    """Sum a tensor over all nodes with gloo, and with NCCL if there are GPUs."""
    import torch

    os.environ.update(interface_variables(env))
    backends = ["gloo"] + ["nccl"] * torch.cuda.is_available()
    wrong = ""
    for backend in backends:
        try:
            _reduce(folder / f"{backend}.json", backend, env)
        except Exception as error:  # torch, gloo and NCCL raise many kinds
            wrong = f"{backend}: {str(error).strip().splitlines()[0]}"
            break
    return {"host": socket.gethostname(), "all-reduce": (" and ".join(backends), wrong)}


def _reduce(meeting: Path, backend: str, env: Mapping[str, str]) -> None:
    """Raises RuntimeError for a wrong sum."""
    import datetime

    import torch
    import torch.distributed as dist

    rank, size = int(env["SLURM_PROCID"]), int(env["SLURM_NTASKS"])
    if rank == 0:
        # The kernel finds a free port; the store listens there a moment later.
        with socket.socket() as probe:
            probe.bind((own_address(socket.gethostname(), env), 0))
            own = probe.getsockname()
        write_json(meeting, list(own), mode=PRIVATE)
    host, port = _await(meeting)
    timeout = datetime.timedelta(seconds=DEADLINE_S)
    dist.init_process_group(backend, init_method=f"tcp://{host}:{port}", rank=rank, world_size=size, timeout=timeout)
    try:
        tensor = torch.full((1,), float(rank + 1), device="cuda" if backend == "nccl" else "cpu")
        dist.all_reduce(tensor)
        total = float(tensor[0])
    finally:
        dist.destroy_process_group()
    if total != size * (size + 1) / 2:
        raise RuntimeError(f"the sum over the nodes is {total}, not {size * (size + 1) / 2}")


def _await(path: Path) -> list[object]:
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        try:
            return list(json.loads(path.read_text()))
        except (OSError, ValueError):
            time.sleep(0.1)
    raise TimeoutError(f"the first node's address did not appear within {DEADLINE_S:g} s")


if __name__ == "__main__":
    folder = Path(sys.argv[2])
    answer = facts(folder, sys.argv[3]) if sys.argv[1] == "facts" else allreduce(folder)
    # A mark at the start of the line: modules and MPI libraries may print other lines.
    print("\nBIGBATCH-PROBE " + json.dumps(answer), flush=True)
