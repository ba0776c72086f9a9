"""Run searches as Slurm jobs, each with its own Ray cluster. Standard library only: login nodes lack torch and Ray.

For notebooks: ``from bigbatch.cluster import submit, queue, logs, cancel``.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bigbatch.cluster.submission.batch_script import submit
    from bigbatch.cluster.submission.queue import cancel, logs, queue

__all__ = ["cancel", "logs", "queue", "submit"]


def __getattr__(name: str) -> object:
    # Imported late: a training process that only asks for its CPUs does not need this.
    if name == "submit":
        from bigbatch.cluster.submission.batch_script import submit

        return submit
    if name in __all__:
        from bigbatch.cluster.submission import queue

        return getattr(queue, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
