"""What a user asks of a job: the fields of ``bigbatch cluster submit`` and of ``cluster.submit``."""

from __future__ import annotations

from dataclasses import dataclass

from bigbatch.cluster.host.waits import MARGIN_S


@dataclass(frozen=True)
class Request:
    """What the user asks for. None: what the site or Slurm has as its default."""

    arguments: tuple[str, ...] = ()
    """Of ``tune/run.py``, or ``--`` and any command."""
    nodes: int = 1
    time: str | None = None
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    gpus_per_node: int | None = None
    """None: all that a node has."""
    cpus_per_gpu: int | None = None
    cpus_per_node: int | None = None
    mem: str | None = None
    gres: str | None = None
    """What ``--gres`` calls a GPU, e.g. ``gpu:a100``."""
    name: str = "bigbatch"
    container: str | None = None
    python: str | None = None
    prelude: str | None = None
    signal_s: int = MARGIN_S
    job_options: tuple[str, ...] = ()
    """Of the job itself, before the arguments, e.g. ``--tls``."""
    options: tuple[str, ...] = ()
    """Further options of sbatch, long and each as one word: ``--constraint=fast``."""
    attach_to: str | None = None
    """A running job that the nodes are lent to."""

    @property
    def is_search(self) -> bool:
        """Whether a search is what is submitted: neither a command nor nodes for another job."""
        return self.attach_to is None and "--" not in self.arguments
