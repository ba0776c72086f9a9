"""What a request says of numbers, memory, time and GPUs by itself: kinds, syntax, and words that contradict.

In Slurm's own words (``man sbatch``). Options of sbatch (``--sbatch``) speak of the same things as the request's own,
so they are read along with them.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass

from bigbatch.cluster.host import slurm_values
from bigbatch.cluster.host.command_line import empty_value
from bigbatch.cluster.host.site.profiles import InputError, Partition, parse_time
from bigbatch.cluster.submission.request import Request

MIN_WHOLE_NUMBERS = {"nodes": 1, "gpus_per_node": 0, "cpus_per_gpu": 1, "cpus_per_node": 1, "signal_s": 1}
"""Fields that are whole numbers, with the least that they may be."""
LARGEST_SIGNAL_S = 65535
MEMORY = ("--mem", "--mem-per-cpu", "--mem-per-gpu")
GPUS_BY_SBATCH = ("--gres", "--gpus", "--gpus-per-node", "--gpus-per-task", "--gpus-per-socket")


def check_kinds(request: Request) -> None:
    """Numbers are numbers in their range, and text is text. Raises InputError."""
    for name, value in vars(request).items():
        option = "--signal" if name == "signal_s" else f"--{name.replace('_', '-')}"
        if value is None or isinstance(value, tuple):
            continue
        if name not in MIN_WHOLE_NUMBERS:
            if not isinstance(value, str):
                raise InputError(f"{option} must be text; got {value!r}. Write '{value}'.")
            if not value.strip():
                raise InputError(empty_value(option, value))
        elif not isinstance(value, int) or isinstance(value, bool):
            raise InputError(f"{option} must be a whole number; got {value!r}. Write it without quotes.")
        elif value < (least := MIN_WHOLE_NUMBERS[name]):
            raise InputError(f"{option} must be at least {least}; got {value}. Write {option} {least}.")
    if request.signal_s > LARGEST_SIGNAL_S:
        raise InputError(f"--signal must be at most {LARGEST_SIGNAL_S}; got {request.signal_s}. Write --signal 120.")


def check_memory_and_time(request: Request) -> None:
    """Raises InputError where Slurm could not read them, or would be told twice."""
    for option, value in _by_sbatch(request, ("--time",)):
        try:
            parse_time(value)
        except InputError as error:
            raise InputError(f"--sbatch={option}: {error}") from None
        if request.time is not None:
            raise InputError(
                f"the time is said once; got --time {request.time} and --sbatch={option}={value}. Leave one out."
            )
    said = [("--mem", request.mem)] if request.mem is not None else []
    said += [(f"--sbatch={option}=", value) for option, value in _by_sbatch(request, MEMORY)]
    for option, value in said:
        check_memory(option, str(value))
    if len(said) > 1:  # sbatch refuses these three beside each other
        (one, first), (other, second) = said[:2]
        raise InputError(f"memory is said once; got {_words(one, first)} and {_words(other, second)}. Leave one out.")


def check_memory(option: str, text: str) -> None:
    """A size as Slurm writes it: digits, MiB unless K, M, G or T follow; 0 is all of a node. Raises InputError."""
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
    """What one option says of the GPUs of a node. None and empty: it says nothing of that."""

    words: str
    count: float | None
    kind: str
    own: bool
    """An option of the request itself, not one that is handed to sbatch."""


def read_gpu_options(request: Request) -> list[GpuOption]:
    """What the request says of GPUs, each option by itself. Raises InputError where one cannot be read."""
    said = []
    if request.gres is not None:
        name, kind, count = parse_gres(request.gres)
        said.append(GpuOption(f"--gres {request.gres}", count, kind, True))
    if request.gpus_per_node is not None:
        said.append(GpuOption(f"--gpus-per-node {request.gpus_per_node}", request.gpus_per_node, "", True))
    for option, value in _by_sbatch(request, GPUS_BY_SBATCH):
        other_nodes = any(name.startswith("--nodes") for name in request.options)
        said += _of_sbatch(option, value, 0 if other_nodes else request.nodes)
    return said


def _of_sbatch(option: str, value: str, nodes: int) -> list[GpuOption]:
    """``nodes``: 0 where their number is not known, so that a number of GPUs in all says nothing of a node."""
    words = f"--sbatch={option}={value}"
    if option == "--gres":
        parts = [(kind, count) for name, kind, count in slurm_values.gres_parts(value) if name == "gpu"]
    else:
        kind, _, number = value.rpartition(":")
        count = slurm_values.read_count(number)
        if count is None:
            raise InputError(f"--sbatch={option} must be N or TYPE:N; got {value!r}. Write e.g. --sbatch={option}=4.")
        parts = [(kind, count)]
    if len(parts) != 1 or option == "--gpus-per-socket":  # several kinds, or sockets, of which nothing is known here
        return [GpuOption(words, None, "", False)] if parts else []
    kind, count = parts[0]
    if option != "--gpus":
        return [GpuOption(words, count, kind, False)]  # also by task: a node has one
    return [GpuOption(words, count / nodes if nodes else None, kind, False)]


def resources_beside_gpus(request: Request) -> list[str]:
    """What ``--sbatch=--gres=…`` asks for where no GPU is in it: ``tmpdisk:10``."""
    values = [value for _, value in _by_sbatch(request, ("--gres",))]
    return [value for value in values if all(name != "gpu" for name, _, _ in slurm_values.gres_parts(value))]


def parse_gres(text: str) -> tuple[str, str, int | None]:
    """Name, type and number of ``gpu``, ``gpu:a100``, ``gpu:2`` or ``gpu:a100:2``. Raises InputError."""
    match = re.fullmatch(r"(gpu)(?::([A-Za-z0-9_.-]*[A-Za-z_.-][A-Za-z0-9_.-]*))?(?::([0-9]+))?", text)
    if not match:
        raise InputError(
            f"--gres must be gpu, gpu:TYPE or gpu:TYPE:NUMBER; got {text!r}. "
            "Write other resources as --sbatch=--gres=…, GPUs among them."
        )
    return match[1], match[2] or "", int(match[3]) if match[3] else None


def check_gpus(said: Iterable[GpuOption], partition: Partition | None) -> None:
    """Raises InputError where two options contradict each other, or the partition has no GPUs of that type."""
    said = list(said)
    for what in ("count", "kind"):
        known = [one for one in said if getattr(one, what) not in (None, "")]
        for other in known[1:]:
            if getattr(known[0], what) != getattr(other, what):
                raise InputError(
                    f"the GPUs of a node are said once; got {known[0].words} and {other.words}. "
                    "Leave one out, or let both say the same."
                )
    kinds = partition.gpu_types if partition else ()
    for one in said:
        if partition and one.kind and kinds and one.kind not in kinds:
            near = difflib.get_close_matches(one.kind.lower(), kinds, n=1)
            fix = f"Did you mean gpu:{near[0]}?" if near else f"Write --gres gpu:{kinds[0]}."
            raise InputError(f"partition {partition.name} has GPUs of type {', '.join(kinds)}; got {one.words}. {fix}")


def _by_sbatch(request: Request, names: Iterable[str]) -> list[tuple[str, str]]:
    """Those of sbatch's options that have one of the names, with their values."""
    pairs = [option.partition("=")[::2] for option in request.options]
    return [(name, value) for name, value in pairs if name in names]


def _words(option: str, value: object) -> str:
    return f"{option}{value}" if option.endswith("=") else f"{option} {value}"
