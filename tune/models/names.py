"""The names of ``--strategy`` and ``--stopping``, what each strategy can do, and what ``auto`` stands for.

No Optuna here: the plan of a search is printed without it.
"""

from __future__ import annotations

from dataclasses import dataclass

from bigbatch.train_loop.config.plug_ins import is_own


@dataclass(frozen=True)
class Capabilities:
    """What a strategy can do."""

    learns: bool = True
    """Whether what it proposes depends on earlier trials."""
    several_objectives: bool = True
    targets: bool = True
    """Whether it can optimise the time to a target, where a run that misses it has no value on the same scale."""
    frontier: bool = False
    """Whether it needs no help to compare values of the frontier's parameter. If not, it is shown each trial's rank
    among the trials of its own value."""


CAPABILITIES = {
    "curves": Capabilities(several_objectives=False, targets=False, frontier=True),
    "tpe": Capabilities(),
    "gp": Capabilities(targets=False),
    "cmaes": Capabilities(several_objectives=False),
    "qmc": Capabilities(learns=False, frontier=True),
    "random": Capabilities(learns=False, frontier=True),
}
"""By the name of ``--strategy``."""
OWN = Capabilities(learns=False, frontier=True)
"""Of a sampler of the user's own, ``FILE.py:FUNCTION``. It proposes every trial itself, as the designs do, and the
values of a frontier are chosen beside it."""
STRATEGIES = ("auto", *CAPABILITIES)
STOPPINGS = ("auto", "look", "asha", "hyperband", "median", "none")
LOOK_FROM_TRIALS, LOOK_FROM_EPOCHS = 16, 10
"""A third of the looked-at trials goes on: of fewer than 16 that is at most five, too few to know each batch. A tenth
of a run is less than an epoch if the run has fewer than ten."""


def capabilities_of(name: str) -> Capabilities:
    """What the strategy of that name can do."""
    return OWN if is_own(name) else CAPABILITIES[name]


def resolved(strategy: str, stopping: str, trials: int, max_epochs: int) -> tuple[str, str]:
    """The names that ``auto`` stands for in a search of this size. See docs/decisions/025."""
    if strategy == "auto":
        strategy = "curves"
    if stopping == "auto":
        stopping = "look" if trials >= LOOK_FROM_TRIALS and max_epochs >= LOOK_FROM_EPOCHS else "asha"
    return strategy, stopping
