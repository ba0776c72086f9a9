"""A user's request for a job, and checks of its numbers, memory, time and GPUs: types, syntax, and contradictions.

Its fields are those of ``bigbatch cluster submit`` and of ``cluster.submit``. The terms are Slurm's (``man sbatch``).
Options of sbatch (``--sbatch``) may describe the same things as the request's own options, so both are read together.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypedDict

from bigbatch.base.command_line import empty_value
from bigbatch.base.waits import MARGIN_S
from bigbatch.cluster.host import slurm_commands
from bigbatch.cluster.host.profiles import InputError, Partition, parse_time


@dataclass(frozen=True)
class Request:
    """The user's request. None: the default of the site or of Slurm."""

    arguments: tuple[str, ...] = ()
    """Arguments of ``tune/run.py``; or ``--`` and any command."""
    nodes: int = 1
    time: str | None = None
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    gpus_per_node: int | None = None
    """None: all GPUs of a node."""
    cpus_per_gpu: int | None = None
    cpus_per_node: int | None = None
    mem: str | None = None
    gres: str | None = None
    """A GPU's name for ``--gres``, e.g. ``gpu:a100``."""
    name: str = "bigbatch"
    container: str | None = None
    python: str | None = None
    prelude: str | None = None
    signal_s: int = MARGIN_S
    job_options: tuple[str, ...] = ()
    """Options of the job itself, before the arguments, e.g. ``--tls``."""
    options: tuple[str, ...] = ()
    """Further long options of sbatch, each as one word: ``--constraint=fast``."""
    attach_to: str | None = None
    """The id of a running job to which the nodes are lent."""

    @property
    def is_search(self) -> bool:
        """Whether the request is for a search, not for a command or for nodes of another job."""
        return self.attach_to is None and "--" not in self.arguments


class RequestFields(TypedDict, total=False):
    """``Request``'s fields as keywords of a function, all but ``arguments``. None: as if it were not given."""

    nodes: int
    time: str | None
    partition: str | None
    account: str | None
    qos: str | None
    gpus_per_node: int | None
    cpus_per_gpu: int | None
    cpus_per_node: int | None
    mem: str | None
    gres: str | None
    name: str
    container: str | os.PathLike[str] | None
    python: str | os.PathLike[str] | None
    prelude: str | os.PathLike[str] | None
    signal_s: int
    job_options: tuple[str, ...]
    options: tuple[str, ...]
    attach_to: str | None


MIN_WHOLE_NUMBERS = {"nodes": 1, "gpus_per_node": 0, "cpus_per_gpu": 1, "cpus_per_node": 1, "signal_s": 1}
"""Fields that are whole numbers, with their lowest value."""
LARGEST_SIGNAL_S = 65535
MEMORY = ("--mem", "--mem-per-cpu", "--mem-per-gpu")
GPUS_BY_SBATCH = ("--gres", "--gpus", "--gpus-per-node", "--gpus-per-task", "--gpus-per-socket")
OF_THE_REQUEST = "what submit has an option for is said by that option"
ONE_TASK = ("a job has one task on each node", "Write --nodes N and --cpus-per-node N.")
REFUSED = {
    "--array": ("a search must be its own job, not a task of an array", "Submit it once a search, with --study NAME."),
    **dict.fromkeys(("--ntasks", *(f"--ntasks-per-{one}" for one in ("node", "core", "gpu", "socket"))), ONE_TASK),
    "--cpus-per-task": (OF_THE_REQUEST, "Write --cpus-per-node N."),
    "--signal": (OF_THE_REQUEST, "Write --signal S."),
    "--job-name": (OF_THE_REQUEST, "Write --name NAME."),
    **{f"--{one}": (OF_THE_REQUEST, f"Write --{one} …") for one in ("partition", "account", "qos", "cpus-per-gpu")},
    "--test-only": (OF_THE_REQUEST, "Write --dry-run."),
    "--wait": ("submit returns when the job is queued", "Write `bigbatch cluster logs JOBID -f` then."),
}
"""Options of sbatch that contradict the request or the batch script: the rule and the fix."""
READ = (*REFUSED, *MEMORY, *GPUS_BY_SBATCH, "--time", "--nodes", "--chdir")


def check_sbatch_options(request: Request) -> None:
    """Raise InputError for an option of sbatch that the job cannot have, or that is read here and abbreviated."""
    for option in request.options:
        if not option.startswith("--"):
            raise InputError(f"--sbatch must be a long option of sbatch; got {option!r}. Write e.g. --constraint=fast.")
        name = re.split(r"[=\s]", option)[0]
        meant = [name] if name in READ else [one for one in READ if one.startswith(name)]  # sbatch takes a beginning
        for rule, fix in (REFUSED[one] for one in meant if one in REFUSED):
            raise InputError(f"{rule}; got --sbatch={option}. {fix}")
        if meant and meant != [name]:
            raise InputError(f"--sbatch must be a whole option of sbatch; got {option!r}. Write {meant[0]}=….")


def check_kinds(request: Request) -> None:
    """Raise InputError if a number is no number or out of range, or a text is no text."""
    for name, value in vars(request).items():
        option = "--signal" if name == "signal_s" else f"--{name.replace('_', '-')}"
        if value is None or isinstance(value, tuple):
            continue
        if name not in MIN_WHOLE_NUMBERS:
            if not isinstance(value, str):
                raise InputError(f"{option} must be text; got {value!r}. Write '{value}'.")
            if not value.strip():
                raise InputError(empty_value(option, value))
        # To Python, True is a whole number.
        elif not isinstance(value, int) or isinstance(value, bool):
            raise InputError(f"{option} must be a whole number; got {value!r}. Write it without quotes.")
        elif value < (least := MIN_WHOLE_NUMBERS[name]):
            raise InputError(f"{option} must be at least {least}; got {value}. Write {option} {least}.")
    if request.signal_s > LARGEST_SIGNAL_S:
        raise InputError(f"--signal must be at most {LARGEST_SIGNAL_S}; got {request.signal_s}. Write --signal 120.")


def check_memory_and_time(request: Request) -> None:
    """Raise InputError if Slurm could not read memory or time, or if one of them is given twice."""
    for option, value in _by_sbatch(request, ("--time",)):
        try:
            parse_time(value)
        except InputError as error:
            raise InputError(f"--sbatch={option}: {error}") from None
        if request.time is not None:
            raise InputError(
                f"the time must be given once; got --time {request.time} and --sbatch={option}={value}. Leave one out."
            )
    memory_options = [("--mem", request.mem)] if request.mem is not None else []
    memory_options += [(f"--sbatch={option}=", value) for option, value in _by_sbatch(request, MEMORY)]
    for option, value in memory_options:
        check_memory(option, str(value))
    if len(memory_options) > 1:  # sbatch refuses these three beside each other
        (one, first), (other, second) = memory_options[:2]
        raise InputError(f"memory must be given once; got {_words(one, first)} and {_words(other, second)}. Leave one.")


def check_memory(option: str, text: str) -> None:
    """Raise InputError unless ``text`` is a size in Slurm's form: digits, in MiB unless K, M, G or T follow; 0: all."""
    if re.fullmatch(r"[0-9]+[KMGT]?", text, re.IGNORECASE):
        return
    fix = "Write e.g. 120G, or 0 for all of a node."
    near = re.fullmatch(r"([0-9]+)(?:\.([0-9]+))?\s*([KMGT])?(?:i?B)?", text.strip(), re.IGNORECASE)
    if near and not near[2]:
        fix = f"Write {near[1]}{(near[3] or '').upper()}."
    elif near and near[3] and near[3].upper() in "GT":
        whole = float(f"{near[1]}.{near[2]}") * 1024
        fix = f"Write {whole:.0f}{'M' if near[3].upper() == 'G' else 'G'}."
    raise InputError(f"{option.rstrip('=')} must be a whole number, with K, M, G or T or without; got {text!r}. {fix}")


# GPUs


@dataclass(frozen=True)
class GpuOption:
    """The GPUs of a node according to one option. None and empty: the option does not tell."""

    words: str
    count: float | None
    kind: str
    own: bool
    """Whether it is an option of the request itself, not one for sbatch."""


def read_gpu_options(request: Request) -> list[GpuOption]:
    """The GPUs according to each option of the request. Raises InputError for an unreadable option."""
    found = []
    if request.gres is not None:
        name, kind, count = parse_gres(request.gres)
        found.append(GpuOption(f"--gres {request.gres}", count, kind, True))
    if request.gpus_per_node is not None:
        found.append(GpuOption(f"--gpus-per-node {request.gpus_per_node}", request.gpus_per_node, "", True))
    for option, value in _by_sbatch(request, GPUS_BY_SBATCH):
        other_nodes = any(name.startswith("--nodes") for name in request.options)
        found += _of_sbatch(option, value, 0 if other_nodes else request.nodes)
    return found


def _of_sbatch(option: str, value: str, nodes: int) -> list[GpuOption]:
    """``nodes``: 0 if their number is not known; then a total of GPUs does not tell the GPUs of a node."""
    words = f"--sbatch={option}={value}"
    if option == "--gres":
        parts = [(kind, count) for name, kind, count in slurm_commands.gres_parts(value) if name == "gpu"]
    else:
        kind, _, number = value.rpartition(":")
        count = slurm_commands.read_count(number)
        if count is None:
            raise InputError(f"--sbatch={option} must be N or TYPE:N; got {value!r}. Write e.g. --sbatch={option}=4.")
        parts = [(kind, count)]
    if len(parts) != 1 or option == "--gpus-per-socket":  # several kinds, or sockets: not known here
        return [GpuOption(words, None, "", False)] if parts else []
    kind, count = parts[0]
    if option != "--gpus":
        return [GpuOption(words, count, kind, False)]  # also by task: a node has one
    return [GpuOption(words, count / nodes if nodes else None, kind, False)]


def resources_beside_gpus(request: Request) -> list[str]:
    """The values of ``--sbatch=--gres=…`` without a GPU: ``tmpdisk:10``."""
    values = [value for _, value in _by_sbatch(request, ("--gres",))]
    return [value for value in values if all(name != "gpu" for name, _, _ in slurm_commands.gres_parts(value))]


def parse_gres(text: str) -> tuple[str, str, int | None]:
    """Name, type and number of ``gpu``, ``gpu:a100``, ``gpu:2`` or ``gpu:a100:2``. Raises InputError."""
    match = re.fullmatch(r"(gpu)(?::([A-Za-z0-9_.-]*[A-Za-z_.-][A-Za-z0-9_.-]*))?(?::([0-9]+))?", text)
    if not match:
        raise InputError(
            f"--gres must be gpu, gpu:TYPE or gpu:TYPE:NUMBER; got {text!r}. "
            "Write other resources as --sbatch=--gres=…, together with the GPUs."
        )
    return match[1], match[2] or "", int(match[3]) if match[3] else None


def check_gpus(gpu_options: Iterable[GpuOption], partition: Partition | None) -> None:
    """Raise InputError if two options contradict each other, or the partition has no GPUs of that type."""
    gpu_options = list(gpu_options)
    for what in ("count", "kind"):
        known = [one for one in gpu_options if getattr(one, what) not in (None, "")]
        for other in known[1:]:
            if getattr(known[0], what) != getattr(other, what):
                raise InputError(
                    f"options must agree about a node's GPUs; got {known[0].words} and {other.words}. "
                    "Leave one out, or make them equal."
                )
    kinds = partition.gpu_types if partition else ()
    for one in gpu_options:
        if partition and one.kind and kinds and one.kind not in kinds:
            near = difflib.get_close_matches(one.kind.lower(), kinds, n=1)
            fix = f"Did you mean gpu:{near[0]}?" if near else f"Write --gres gpu:{kinds[0]}."
            raise InputError(f"partition {partition.name} has GPUs of type {', '.join(kinds)}; got {one.words}. {fix}")


def _by_sbatch(request: Request, names: Iterable[str]) -> list[tuple[str, str]]:
    """The options of sbatch with one of these names, and their values."""
    pairs = [option.partition("=")[::2] for option in request.options]
    return [(name, value) for name, value in pairs if name in names]


def _words(option: str, value: object) -> str:
    return f"{option}{value}" if option.endswith("=") else f"{option} {value}"
