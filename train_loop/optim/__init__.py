"""Optimizers for large batches, schedules of the learning rate, and the gradient noise scale.

``from bigbatch.train_loop.optim import LARS, LAMB``. Each name is imported at its first use, because schedules are also
used without torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bigbatch.train_loop.optim.build import build_optimizer, parameter_groups, set_learning_rate
    from bigbatch.train_loop.optim.lamb import LAMB
    from bigbatch.train_loop.optim.lars import LARS

__all__ = ["LAMB", "LARS", "build_optimizer", "parameter_groups", "set_learning_rate"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    file = {"LAMB": "lamb", "LARS": "lars"}.get(name, "build")
    return getattr(importlib.import_module(f"{__name__}.{file}"), name)
