"""Work out a job's resources and check that the site grants them: partition, nodes, GPUs, cores, time, account.

They are checked against the site's profile and, if Slurm answers, against Slurm's partitions. The tighter limit counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from bigbatch.base.command_line import did_you_mean
from bigbatch.cluster.host import slurm_commands
from bigbatch.cluster.host.profiles import NO_LIMIT_S, InputError, Partition, Site, format_time, parse_time
from bigbatch.cluster.job import options
from bigbatch.cluster.submission import request_checks
from bigbatch.cluster.submission.request_checks import Request

USUAL_TIME_S = 4 * 3600
"""Default wall time, if the partition grants it. Short jobs start early, and they requeue."""


@dataclass(frozen=True)
class JobResources:
    """The resources of a request on a partition."""

    partition: Partition | None
    nodes: int
    gpus_per_node: int
    cpus_per_node: int
    time_s: int
    qos: str | None
    account: str | None
    gres: str
    """What ``--gres`` calls a GPU, without the number."""


def job_resources(
    request: Request, site: Site, env: Mapping[str, str], live: Mapping[str, Partition] | None
) -> JobResources:
    """The resources of the request. Raises InputError for the first thing that the site does not grant.

    ``live``: the partitions as Slurm knows them now; None if Slurm was not asked.
    """
    _check_words(request, site)
    partition = _partition(request, site, live)
    gpus = _gpus(request, site, partition)
    if partition and partition.max_nodes and request.nodes > partition.max_nodes:
        raise InputError(
            f"partition {partition.name} grants at most {partition.max_nodes} nodes a job; got {request.nodes}. "
            f"Write --nodes {partition.max_nodes} or less."
        )
    cpus = _cpus(request, site, partition, gpus)
    if not request.nodes_may_differ:  # else the job sees its allocation and checks again
        chosen, each = options.parse_job_options([*request.job_options, *request.arguments]), gpus or cpus
        most, kind = each * request.nodes, "GPUs" if gpus else "cores"
        options.check_workers(chosen, most, kind, lambda wanted: f"--nodes {-(-wanted // each)}")
    return JobResources(
        partition=partition,
        nodes=request.nodes,
        gpus_per_node=gpus,
        cpus_per_node=cpus,
        time_s=_time_s(request, partition),
        qos=request.qos or (partition.default_qos if partition else None),
        account=_account(request, site, partition, env),
        gres=request.gres or (partition.gres if partition else "gpu"),
    )


def _check_words(request: Request, site: Site) -> None:
    """Raise InputError for values that are wrong on every site."""
    request_checks.check_kinds(request)
    request_checks.check_sbatch_options(request)
    options.parse_job_options([*request.job_options, *request.arguments])
    # Refuse it now: if the job found it, the wait in the queue would be lost.
    if site.internet is False and "--wandb online" in " ".join(request.arguments).replace("=", " "):
        raise InputError(f"compute nodes of {site.name} have no internet; got --wandb online. Write --wandb offline.")


def _partition(request: Request, site: Site, live: Mapping[str, Partition] | None) -> Partition | None:
    """The profile's partition, with Slurm's limits if they are tighter; None if neither knows a partition."""
    slurms = [one.name for one in (live or {}).values() if one.is_default]
    name = request.partition or site.default_partition or (slurms[0] if slurms else None)
    known = {**site.partitions, **(live or {})}
    if name is None:
        return None
    if name not in known:
        if live is None and not site.partitions:
            return Partition(name)  # nothing is known here: Slurm will decide
        fix = did_you_mean(name, sorted(known))
        raise InputError(f"--partition must be one of {site.name}'s; got {name!r}. {fix}")
    return _tightest(site.partitions.get(name), (live or {}).get(name))


def _tightest(profile: Partition | None, live: Partition | None) -> Partition | None:
    if profile is None or live is None:
        return profile or live

    def less(*values: int | None) -> int | None:
        return min((value for value in values if value), default=None)

    return replace(
        profile,
        max_time_s=less(profile.max_time_s, live.max_time_s),
        max_nodes=less(profile.max_nodes, live.max_nodes),
        gpus_per_node=profile.gpus_per_node or live.gpus_per_node,
        cores_per_node=profile.cores_per_node or live.cores_per_node,
    )


def _gpus(request: Request, site: Site, partition: Partition | None) -> int:
    """GPUs of each node: the requested number, or all of a node."""
    most = partition.gpus_per_node if partition else None
    wanted = request.gpus_per_node
    if wanted is None:
        return most or (1 if request.gres else 0)
    if most is not None and wanted > most and partition:
        fix = f"Write --gpus-per-node {most} and more --nodes." if most else "Write a --partition with GPUs, or 0."
        raise InputError(f"a node of {site.name}'s partition {partition.name} has {most} GPUs; got {wanted}. {fix}")
    return wanted


def _cpus(request: Request, site: Site, partition: Partition | None, gpus: int) -> int:
    """CPUs of each node: the requested number, the site's rule for each GPU, or the GPUs' share of the node."""
    most = partition.cores_per_node if partition else None
    per_gpu = request.cpus_per_gpu or (partition.cores_per_gpu if partition else None)
    if request.cpus_per_node is not None:
        cpus = request.cpus_per_node
    elif gpus and per_gpu:
        cpus = gpus * per_gpu
    elif most:
        all_gpus = partition.gpus_per_node if partition else None
        cpus = most * gpus // all_gpus if gpus and all_gpus else most
    else:
        where = f"partition {partition.name}" if partition else f"site {site.name}"
        raise InputError(
            f"the CPUs of a node of {where} are not known; got neither --cpus-per-gpu nor --cpus-per-node. "
            "Write one, e.g. --cpus-per-gpu 8."
        )
    if cpus < 1:
        raise InputError(f"a job needs at least 1 CPU on each node; got {cpus}. Write --cpus-per-node 1 or more.")
    if most and cpus > most and partition:
        raise InputError(
            f"a node of {site.name}'s partition {partition.name} has {most} cores; got {cpus}. "
            f"Write --cpus-per-node {most} or less."
        )
    return cpus


def _time_s(request: Request, partition: Partition | None) -> int:
    """The wall time."""
    limit = partition.max_time_s if partition else None
    time_s = parse_time(request.time) if request.time else min(USUAL_TIME_S, limit or USUAL_TIME_S)
    if partition and limit and time_s > limit:
        raise InputError(
            f"partition {partition.name} grants at most {format_time(limit)}; got --time {format_time(time_s)}. "
            f"Write --time {format_time(limit)} or less: the job then continues in another allocation."
        )
    if time_s < request.signal_s + 60:
        raise InputError(
            f"a job is warned {request.signal_s} s before its end and needs time before that; got --time "
            f"{format_time(time_s)}. Write --time {format_time(request.signal_s + 600)} or more, or a smaller --signal."
        )
    return time_s


def _account(request: Request, site: Site, partition: Partition | None, env: Mapping[str, str]) -> str | None:
    """The account, with the suffix that some sites require for each kind of GPU."""
    account = request.account or env.get("SBATCH_ACCOUNT")
    suffix = partition.account_suffix if partition else ""
    if not account:
        if site.account_required:
            raise InputError(f"{site.name} needs an account; got none. Write --account PROJECT{suffix}.")
        return None
    if suffix and "@" not in account:
        return account + suffix
    if suffix and partition and not account.endswith(suffix):
        raise InputError(
            f"partition {partition.name} needs an account that ends with {suffix}; got {account!r}. "
            f"Write --account {account.split('@')[0]}{suffix}."
        )
    return account


def slurm_partitions() -> dict[str, Partition] | None:
    """Every partition as Slurm now describes it; None if Slurm does not answer."""
    if not slurm_commands.is_installed("sinfo"):
        return None
    try:
        # --exact: else unlike nodes are one row, with the least of their cores ("1+").
        text = slurm_commands.run("sinfo", "--exact", "--noheader", "--format=%P|%l|%s|%c|%G|%D")
    except slurm_commands.SlurmError:
        return None
    found: dict[str, Partition] = {}
    nodes: dict[str, int] = {}
    for line in text.splitlines():
        if line.count("|") != 5:
            continue
        name, time, size, cpus, gres, count = (part.strip() for part in line.split("|"))
        nodes[name] = nodes.get(name, 0) + (slurm_commands.read_count(count) or 10**9)
        before = found.get(name.rstrip("*"))  # if nodes differ, a job may ask for the resources of the largest
        found[name.rstrip("*")] = Partition(
            name.rstrip("*"),
            gpus_per_node=max(slurm_commands.gres_count(gres, "gpu"), (before and before.gpus_per_node) or 0),
            cores_per_node=max(slurm_commands.read_count(cpus) or 0, (before and before.cores_per_node) or 0),
            max_nodes=min(slurm_commands.largest_count(size) or nodes[name], nodes[name]),  # more would wait for ever
            max_time_s=_slurm_time(time),
            is_default=name.endswith("*"),
        )
    return found


def _slurm_time(text: str) -> int | None:
    try:
        time_s = parse_time(text)
    except InputError:  # "n/a"
        return None
    return None if time_s >= NO_LIMIT_S else time_s  # "infinite"
