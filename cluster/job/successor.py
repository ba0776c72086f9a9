"""The successor of a job (``--chain``): its options and environment, and whether it is already submitted."""

from __future__ import annotations

from collections.abc import Mapping

from bigbatch.cluster.host import slurm_commands, slurm_values

MARK = "bigbatch-after-"
"""This word and the predecessor's id are in the successor's comment. They identify it in the queue."""
HOST_LOST = "--host-lost"
"""Before the batch script's arguments where another node acts for it (``bigbatch.cluster.job.lost_host``)."""
SBATCH_OPTIONS = {
    "JobName": "--job-name",
    "Partition": "--partition",
    "Account": "--account",
    "QOS": "--qos",
    "TimeLimit": "--time",
    "WorkDir": "--chdir",
    "CPUs/Task": "--cpus-per-task",
    "MinMemoryNode": "--mem",
    "MinMemoryCPU": "--mem-per-cpu",
    "Features": "--constraint",
    "Reservation": "--reservation",
    "TresPerNode": "--gres",
    "Licenses": "--licenses",
}
EXCLUSIVE = {"NO": "--exclusive", "USER": "--exclusive=user", "MCS": "--exclusive=mcs"}
# sbatch hands its environment on. With these a successor would take itself for this job, and its Ray for ours.
THIS_JOB_VARIABLES = ("SLURM_", "SRUN_", "RAY_")
DEVICE_VARIABLES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")


def environment_for_successor(env: Mapping[str, str]) -> dict[str, str]:
    """``env`` without the variables of this job; Slurm's configuration stays."""
    kept = {k: v for k, v in env.items() if not k.startswith(THIS_JOB_VARIABLES) and k not in DEVICE_VARIABLES}
    return {**kept, **({"SLURM_CONF": env["SLURM_CONF"]} if "SLURM_CONF" in env else {})}


def sbatch_options(fields: Mapping[str, str]) -> list[str]:
    """A job's resources as options of sbatch, from the fields of ``scontrol show job``."""
    given = {option: fields[name] for name, option in SBATCH_OPTIONS.items() if slurm_values.is_set(fields.get(name))}
    if "--gres" in given:  # gres:gpu:2 or, with types, gres/gpu:a100:2
        given["--gres"] = given["--gres"].replace("gres:", "").replace("gres/", "")
    given["--nodes"] = str(slurm_values.least_count(fields.get("NumNodes")) or 1)
    given.update(_gpu_options(fields))
    # sbatch accepts only one option of each group.
    for chosen, others in (("--mem-per-gpu", ("--mem", "--mem-per-cpu")), ("--cpus-per-gpu", ("--cpus-per-task",))):
        if chosen in given:
            given = {option: value for option, value in given.items() if option not in others}
    if slurm_values.is_set(fields.get("StdOut")):
        given["--output"] = fields["StdOut"]
    exclusive = EXCLUSIVE.get(fields.get("OverSubscribe", ""))
    return [f"{option}={value}" for option, value in given.items()] + ([exclusive] if exclusive else [])


def component_options(fields: Mapping[str, str]) -> list[str]:
    """The same for a later component of a heterogeneous job. The script's ``#SBATCH`` lines do not apply to it."""
    given, tasks = sbatch_options(fields), f"--ntasks={fields.get('NumTasks', '1')}"
    return given if tasks in given else [*given, tasks]


def _gpu_options(fields: Mapping[str, str]) -> dict[str, str]:
    """Options for GPUs that were not requested by node (``--gpus``, ``--gpus-per-task``), and for shares per GPU."""
    found = {}
    if gpus := _gpus(fields.get("TresPerJob")):
        found["--gpus"] = gpus
    if gpus := _gpus(fields.get("TresPerTask")):
        found["--gpus-per-task"] = gpus
        if fields.get("NumTasks", "").isdigit():  # sbatch refuses it without a number of tasks
            found["--ntasks"] = fields["NumTasks"]
    for name, option in (("CpusPerTres", "--cpus-per-gpu"), ("MemPerTres", "--mem-per-gpu")):
        if share := slurm_values.per_gpu(fields.get(name)):
            found[option] = share
    return found


def _gpus(tres: str | None) -> str:
    """``gres/gpu:a100:4`` → ``a100:4``; empty if there is none."""
    parts = slurm_values.gres_parts(tres) if tres is not None and slurm_values.is_set(tres) else []
    return ",".join(f"{kind}:{count}" if kind else str(count) for name, kind, count in parts if name == "gpu")


def comment_with_mark(comment: str | None, job_id: str) -> str:
    """The comment of ``job_id``'s successor: the user's own comment and the mark."""
    words = (comment or "").split() if slurm_values.is_set(comment) else []
    own = [word for word in words if not word.startswith(MARK)]
    return " ".join([*own, MARK + job_id])


def find_successor(job_id: str) -> str | None:
    """The successor of ``job_id`` in Slurm's queue; None if there is none. Raises SlurmError."""
    for line in slurm_commands.run("squeue", "--me", "--noheader", "--format=%i|%k").splitlines():
        found, _, comment = line.strip().partition("|")
        if MARK + job_id in comment.split():
            return found.partition("+")[0]  # 8+0 is the first component of the heterogeneous job 8
    return None
