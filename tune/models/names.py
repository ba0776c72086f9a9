"""The names of ``--strategy`` and ``--stopping``, which of them learn, and what ``auto`` stands for.

No Optuna here: the plan of a search is printed without it.
"""

from __future__ import annotations

LEARNING = ("curves", "tpe")
"""Strategies whose proposals depend on earlier trials. The others are designs."""
STRATEGIES = ("auto", *LEARNING, "qmc", "random")
STOPPINGS = ("auto", "look", "asha", "median", "none")
LOOK_FROM_TRIALS, LOOK_FROM_EPOCHS = 16, 10
"""``look`` needs at least so many trials and epochs. A third of the trials goes on: of fewer than 16 at most five, too
few to measure each batch. A tenth of a run of fewer than ten epochs is less than an epoch."""


def resolved(strategy: str, stopping: str, trials: int, max_epochs: int) -> tuple[str, str]:
    """The names that ``auto`` stands for in a search of this size. See docs/decisions/025."""
    if strategy == "auto":
        strategy = "curves"
    if stopping == "auto":
        stopping = "look" if trials >= LOOK_FROM_TRIALS and max_epochs >= LOOK_FROM_EPOCHS else "asha"
    return strategy, stopping
