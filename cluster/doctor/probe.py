"""The doctor's questions to each node. It runs ``python -m bigbatch.cluster.doctor.probe facts|allreduce``.

Each question prints one line of JSON. ``facts`` inspects the node; ``allreduce`` connects the nodes with torch, if
it is installed.
"""

from __future__ import annotations

import hashlib
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
from bigbatch.base.root import ROOT
from bigbatch.cluster.host import slurm_commands
from bigbatch.cluster.host.network import own_address

PACKAGES = ("ray", "torch", "torchvision", "optuna", "numpy", "bigbatch")
HOUSES = ("cluster", "search_spaces", "train_loop", "tune")
DEADLINE_S = 60.0


# Facts of one node


def facts(shared: Path, env: Mapping[str, str] | None = None) -> dict[str, object]:
    """The node's software, devices, ports and folders. ``shared``: the folder in which the doctor left its mark."""
    env = os.environ if env is None else env
    tmp = Path(env.get("BIGBATCH_NODE_TMP") or "/tmp")
    gpus = visible_gpus(env)
    return {
        "host": socket.gethostname(),
        "python": platform.python_version(),
        "executable": sys.executable,
        "packages": {name: _version(name) for name in PACKAGES},
        "code": code_digest(),
        "gpus": {**gpus, "refused": _torch_refuses() if gpus["seen"] and find_spec("torch") else ""},
        "tmp": {"path": str(tmp), "error": _cannot_use(tmp), **free_space(tmp)},
        "shared": {"path": str(shared), "error": _cannot_use(shared), "mark": _mark(shared), **free_space(shared)},
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def code_digest(root: Path = ROOT) -> str:
    """A digest of all Python files of the packages. It shows changed files."""
    digest = hashlib.sha256()
    for house in HOUSES:
        for path in sorted((root / house).rglob("*.py")):
            digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


def visible_gpus(env: Mapping[str, str], dev: Path = Path("/dev")) -> dict[str, object]:
    """``granted``: by Slurm's variables, None outside a job. ``seen``: what a process would use."""
    granted = slurm_commands.granted_gpus_here(env)
    files = len(list(dev.glob("nvidia[0-9]*")))
    visible = env.get("CUDA_VISIBLE_DEVICES")
    seen = files if visible is None else slurm_commands.count_listed_devices(visible)
    return {
        # Slurm sets no variable in a job without GPUs.
        "granted": 0 if granted is None and env.get("SLURM_JOB_ID") else granted,
        "seen": min(seen, files) if files else seen,
    }


def _torch_refuses() -> str:
    """Why torch can use no GPU here, e.g. because the driver is older than what this torch was built for."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", "import torch; torch.cuda.init()"],
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return "" if done.returncode == 0 else done.stderr.strip().splitlines()[-1].partition(". ")[0]


def _cannot_use(folder: Path) -> str | None:
    """Why no file can be made in ``folder``; None if one can."""
    try:
        # A quota shows only when data reaches the disk, so the file is written and synced.
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".bigbatch-") as file:
            file.write(b"x")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return error.strerror or str(error)
    return None


def free_space(folder: Path) -> dict[str, int | None]:
    """Bytes and inodes that are free for this user, from statvfs. Inodes are None if they are not counted."""
    try:
        stat = os.statvfs(folder)
    except OSError:
        return {"free_bytes": None, "free_inodes": None}
    return {"free_bytes": stat.f_bavail * stat.f_frsize, "free_inodes": stat.f_favail if stat.f_files else None}


def _mark(shared: Path) -> str | None:
    try:
        return (shared / "mark").read_text()
    except OSError:
        return None


# Between the nodes


def _await(path: Path) -> list[object]:
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        try:
            return list(json.loads(path.read_text()))
        except (OSError, ValueError):
            time.sleep(0.1)
    raise TimeoutError(f"the first node's address did not appear within {DEADLINE_S:g} s")


def allreduce(folder: Path, env: Mapping[str, str] | None = None) -> dict[str, object]:
    """Sum a tensor over all nodes with gloo, and with NCCL if there are GPUs."""
    env = os.environ if env is None else env
    answer: dict[str, object] = {"host": socket.gethostname(), "rank": int(env["SLURM_PROCID"])}
    if find_spec("torch") is None:
        return {**answer, "error": "torch is not installed"}
    import torch

    if env.get("BIGBATCH_INTERFACE"):
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            # Both choose an interface by themselves, and may choose one that reaches no other node.
            os.environ.setdefault(name, env["BIGBATCH_INTERFACE"])
    for backend in ["gloo"] + ["nccl"] * torch.cuda.is_available():
        try:
            answer[backend] = _reduce(folder / f"{backend}.json", backend, env)
        except Exception as error:  # torch, gloo and NCCL raise many kinds
            answer["error"] = f"{backend}: {str(error).strip().splitlines()[0]}"
            break
    return answer


def _reduce(meeting: Path, backend: str, env: Mapping[str, str]) -> float:
    """MB/s of one all-reduce of 16 MiB. Raises RuntimeError for a wrong sum."""
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
        tensor = torch.full((4 * 2**20,), float(rank + 1), device="cuda" if backend == "nccl" else "cpu")
        another = tensor.clone()
        dist.all_reduce(another)  # NCCL connects the nodes here, which takes longer than the sum
        another[0].item()
        started = time.monotonic()
        dist.all_reduce(tensor)
        first = float(tensor[0])  # waits for the device
        elapsed_s = time.monotonic() - started
    finally:
        dist.destroy_process_group()
    if first != size * (size + 1) / 2:
        raise RuntimeError(f"the sum over the nodes is {first}, not {size * (size + 1) / 2}")
    return 16 * 2**20 / 1e6 / elapsed_s


if __name__ == "__main__":
    what = {"facts": facts, "allreduce": allreduce}[sys.argv[1]]
    # A mark at the start of the line: modules and MPI libraries may print other lines.
    print("\nBIGBATCH-PROBE " + json.dumps(what(Path(sys.argv[2]))), flush=True)
