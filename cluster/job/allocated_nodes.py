"""Read which nodes, CPUs and GPUs Slurm has granted to this job."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass

from bigbatch.base import waits
from bigbatch.cluster.host import slurm_commands

DEVICE_VARIABLES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")
ASK_AGAIN_S = 1.0


class NoAllocation(RuntimeError):
    """This process is not a job's batch script. The message is one line."""


@dataclass(frozen=True)
class AllocatedNode:
    """A node of the allocation."""

    name: str
    cpus: int | None


@dataclass(frozen=True)
class Allocation:
    """The allocation. ``end_time``: seconds since the epoch; None: no limit."""

    job_id: str
    nodes: tuple[AllocatedNode, ...]
    gpus_per_node: int
    end_time: float | None
    restart_count: int
    work_folder: str | None = None
    """Where Slurm was told to run the job; None if it did not answer."""

    @property
    def start_id(self) -> str:
        """This start of the job: its id and the number of its restart."""
        return f"{self.job_id}.{self.restart_count}"

    @property
    def head(self) -> AllocatedNode:
        """The first node: it runs Ray's head."""
        return self.nodes[0]

    @property
    def cpus(self) -> int | None:
        """CPUs of all nodes; None if Slurm does not say."""
        counts = [node.cpus for node in self.nodes]
        return None if None in counts else sum(c for c in counts if c is not None)

    @property
    def gpus(self) -> int:
        """GPUs of all nodes."""
        return self.gpus_per_node * len(self.nodes)


def read_allocation(
    env: MutableMapping[str, str] = os.environ,
    hostnames: Callable[[str], list[str]] = slurm_commands.hostnames,
    fields: Callable[[str], dict[str, str]] = slurm_commands.job_fields,
) -> Allocation:
    """The allocation around this process. Removes other jobs' variables from ``env`` (default: this process's).

    Raises NoAllocation outside an allocation, SlurmError if neither a variable nor Slurm tells a necessary fact.
    """
    if not env.get("SLURM_JOB_ID") or not env.get("SLURM_JOB_NODELIST"):
        raise NoAllocation(
            "this runs inside a Slurm job; got no SLURM_JOB_ID. Write: sbatch [-N 4 …] cluster/ray_head_workers.slurm "
            "--space large_batch …"
        )
    job_id = env["SLURM_JOB_ID"]
    end_time = slurm_commands.seconds_since_epoch(env.get("SLURM_JOB_END_TIME"))
    # Without an answer the job starts if its variables say enough: a silent controller must not end it.
    of_others = bool(env.get("SLURM_ARRAY_TASK_ID") or env.get("SLURM_HET_SIZE"))
    about = _about(job_id, fields, needed=end_time is None or of_others)
    forget_outer_job(env, about)
    if env.get("SLURM_ARRAY_TASK_ID"):  # one task's id may mean the whole array, and would end the other tasks
        raise NoAllocation(
            f"a search must be its own job, not a task of an array; got --array (task {env['SLURM_ARRAY_TASK_ID']}). "
            "Submit it once for each search, with --study NAME."
        )
    if env.get("SLURM_HET_SIZE"):
        raise NoAllocation(
            "all nodes of a search must be of one request; got a heterogeneous job. Submit one without ':', "
            "which asks for the same on each node."
        )
    gpus = slurm_commands.granted_gpus_here(env)
    return Allocation(
        job_id=job_id,
        nodes=tuple(_nodes(env, hostnames)),
        gpus_per_node=slurm_commands.count_listed_devices(env.get("CUDA_VISIBLE_DEVICES")) if gpus is None else gpus,
        end_time=slurm_commands.seconds_since_epoch(about.get("EndTime")) if end_time is None else end_time,
        # Slurm sets this variable in restarted jobs only.
        restart_count=slurm_commands.read_count(env.get("SLURM_RESTART_COUNT")) or 0,
        work_folder=about.get("WorkDir"),
    )


def _about(job_id: str, fields: Callable[[str], dict[str, str]], *, needed: bool) -> dict[str, str]:
    """What Slurm says about the job; empty if Slurm does not answer and the answer is not ``needed``."""
    try:
        return fields(job_id)
    except slurm_commands.SlurmError:
        if needed:
            raise
        return {}


OF_GPUS = (
    *("SLURM_GPUS", "SLURM_JOB_GPUS", "SLURM_STEP_GPUS", "SLURM_GRES", "SLURM_TRES_PER_TASK", "SLURM_NTASKS_PER_GPU"),
    *("SLURM_GPU_", "SLURM_MEM_PER_GPU", "SLURM_CPUS_PER_GPU", *DEVICE_VARIABLES),
)
MEMORY_FIELDS = {
    "SLURM_MEM_PER_GPU": "MemPerTres",
    "SLURM_MEM_PER_CPU": "MinMemoryCPU",
    "SLURM_MEM_PER_NODE": "MinMemoryNode",
}


def forget_outer_job(env: MutableMapping[str, str], about: Mapping[str, str]) -> None:
    """Remove the variables of another job, from whose shell or task this one was submitted.

    sbatch passes its whole environment on, and Slurm replaces only the variables that it sets for the new job. The
    others would make this job a task of the other job's array, or give it that job's memory; srun then refuses every
    step ("mutually exclusive").

    Args:
        about: what ``scontrol --details show job`` says about this job; empty: nothing is removed.
    """
    if not about:
        return
    others = ["SLURM_STEP"]  # a batch script is no step of srun
    others += [] if "ArrayTaskId" in about else ["SLURM_ARRAY_"]
    # Slurm sets it in restarted jobs only: in a first start the variable belongs to the job that submitted this one.
    others += ["SLURM_RESTART_COUNT"] if about.get("Restarts") == "0" else []
    others += [] if "HetJobId" in about else ["SLURM_HET_"]
    others += OF_GPUS if "JOB_GRES" in about and not slurm_commands.gres_count(about["JOB_GRES"], "gpu") else []
    # srun refuses two of these together; Slurm knows which one this job has asked for.
    asked = next((name for name, field in MEMORY_FIELDS.items() if slurm_commands.is_set(about.get(field))), None)
    others += [name for name in MEMORY_FIELDS if asked not in (None, name)]
    for name in [name for name in env if name.startswith(tuple(others))]:
        del env[name]


def await_allocation(stop: Sequence[int], say: Callable[[str], None]) -> Allocation:
    """``read_allocation``, repeated while the controller is silent, for up to SILENT_S or until ``stop`` is not empty.

    The controller may have requeued this job just before it went down; this start must not be lost.
    """
    ends, was_told = time.monotonic() + waits.SILENT_S, False
    while True:
        try:
            return read_allocation()
        except slurm_commands.SlurmSilent as error:
            if stop or time.monotonic() > ends:
                raise
            if not was_told:
                say(f"{error}; trying again for up to {waits.SILENT_S:.0f} s")
            was_told = True
            time.sleep(ASK_AGAIN_S)


def _nodes(env: Mapping[str, str], hostnames: Callable[[str], list[str]]) -> list[AllocatedNode]:
    names = hostnames(env["SLURM_JOB_NODELIST"])
    cpus = node_cpus(env, len(names))
    return [AllocatedNode(name, cpus[i] if cpus else None) for i, name in enumerate(names)]


def node_cpus(env: Mapping[str, str], nodes: int) -> list[int]:
    """CPUs of each node: ``--cpus-per-task`` × tasks if the job asked for them, else all that it has there.

    Empty if Slurm gives neither number.
    """
    per_task = slurm_commands.read_count(env.get("SLURM_CPUS_PER_TASK"))
    tasks = slurm_commands.per_node(env.get("SLURM_TASKS_PER_NODE"))
    if per_task and len(tasks) == nodes:
        return [per_task * count for count in tasks]
    counts = slurm_commands.per_node(env.get("SLURM_JOB_CPUS_PER_NODE"))
    return counts if len(counts) == nodes else []
