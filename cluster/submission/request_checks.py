"""A user's request for a job, and checks of its numbers, memory and GPUs: types, syntax, and contradictions.

Its fields are those of ``bigbatch cluster submit`` and of ``bigbatch.submit``. The terms are Slurm's (``man sbatch``).
``--sbatch`` refuses an option of sbatch for which the request has a field, so that each setting has only one place.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TypedDict

from bigbatch.base.command_line import empty_value
from bigbatch.base.waits import MARGIN_S
from bigbatch.cluster.host import slurm_commands
from bigbatch.cluster.host.profiles import InputError


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
    """Options of the job itself, before the arguments, e.g. ``--chain``."""
    options: tuple[str, ...] = ()
    """Further long options of sbatch, each as one word: ``--constraint=fast``."""

    @property
    def is_search(self) -> bool:
        """Whether the request is for a search, not for a command."""
        return "--" not in self.arguments

    @property
    def nodes_may_differ(self) -> bool:
        """Whether an option of sbatch says how many nodes the job gets, e.g. a range."""
        return any(option.startswith("--nodes") for option in self.options)


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


LEAST = {"nodes": 1, "gpus_per_node": 0, "cpus_per_gpu": 1, "cpus_per_node": 1, "signal_s": 1}
"""Fields that are numbers, with their lowest value."""
REFUSED = {
    "--array": "Submit it once for each search, with --study NAME.",
    **dict.fromkeys(
        ("--ntasks", *(f"--ntasks-per-{one}" for one in ("node", "core", "gpu", "socket"))), "Write --nodes."
    ),
    "--cpus-per-task": "Write --cpus-per-node N.",
    "--job-name": "Write --name NAME.",
    **{
        f"--{one}": f"Write --{one} …"
        for one in ("partition", "account", "qos", "time", "mem", "cpus-per-gpu", "gpus-per-node", "signal")
    },
    **dict.fromkeys(("--gpus", "--gpus-per-task", "--gpus-per-socket"), "Write --gpus-per-node N."),
    "--test-only": "Write --dry-run.",
    "--wait": "Write `bigbatch cluster logs JOBID -f` then.",
}
"""Options of sbatch that contradict the request or the batch script, and the fix."""


def check_sbatch_options(request: Request) -> None:
    """Raise InputError for an option of sbatch that the job cannot have."""
    for option in request.options:
        if not option.startswith("--"):
            raise InputError(f"--sbatch must be a long option of sbatch; got {option!r}. Write e.g. --constraint=fast.")
        if fix := REFUSED.get(re.split(r"[=\s]", option)[0]):
            raise InputError(f"submit has its own way to say this, for one task a node; got --sbatch={option}. {fix}")
    for value in other_resources(request):
        if any(name == "gpu" for name, _, _ in slurm_commands.gres_parts(value)):
            raise InputError(f"submit has an option of its own for GPUs; got --gres={value}. Write --gres gpu:TYPE:N.")


def check_kinds(request: Request) -> None:
    """Raise InputError if a number is out of range, or a text is empty."""
    for name, value in vars(request).items():
        option = "--signal" if name == "signal_s" else f"--{name.replace('_', '-')}"
        if isinstance(value, str) and not value.strip():
            raise InputError(empty_value(option, value))
        if name in LEAST and value is not None and value < LEAST[name]:
            raise InputError(f"{option} must be at least {LEAST[name]}; got {value}. Write {option} {LEAST[name]}.")
    if request.gres is not None and not re.fullmatch(r"gpu(:(?!\d+$)[\w.-]+)?", request.gres):
        raise InputError(
            f"--gres must be gpu or gpu:TYPE; got {request.gres!r}. "
            "Write the number as --gpus-per-node N, and other resources as --sbatch=--gres=…."
        )


def other_resources(request: Request) -> list[str]:
    """The values of ``--sbatch=--gres=…``: ``tmpdisk:10``."""
    return [option.partition("=")[2] for option in request.options if option.startswith("--gres=")]
