"""Linear algebra on one thread. The matrices of a strategy are so small that more threads only wait for each other: on
a busy machine, five times as long as the computation itself takes.

The limit holds in this process, and only while the function runs. Workers that train are other processes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import ParamSpec, TypeVar

from threadpoolctl import ThreadpoolController

Asked = ParamSpec("Asked")
Found = TypeVar("Found")


@cache
def _libraries() -> ThreadpoolController:
    """The loaded ones. They are searched for once, because the search takes longer than a decision."""
    return ThreadpoolController()


def on_one_thread(function: Callable[Asked, Found]) -> Callable[Asked, Found]:
    """The function, which calls BLAS on one thread."""

    @wraps(function)
    def limited(*args: Asked.args, **kwargs: Asked.kwargs) -> Found:
        with _libraries().limit(limits=1, user_api="blas"):
            return function(*args, **kwargs)

    return limited
