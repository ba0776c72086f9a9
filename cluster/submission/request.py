"""A user's request for a job: the fields of ``bigbatch cluster submit`` and of ``cluster.submit``."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TypedDict

from bigbatch.base.waits import MARGIN_S


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
