"""What the cluster grants. Standard library only: login nodes have neither torch nor Ray.

For notebooks: ``from cluster import submit, queue, logs, cancel``.
"""

from __future__ import annotations

from typing import Any

__all__ = ["cancel", "logs", "queue", "submit"]


def __getattr__(name: str) -> Any:
    # Late: a training process that asks for its share of CPUs needs none of this.
    if name == "submit":
        from cluster.submission import submit

        return submit
    if name in __all__:
        from cluster import jobs

        return getattr(jobs, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
