"""The names of ``--strategy`` and ``--stopping``, what each strategy can do, and what ``auto`` stands for.

No Optuna here: the plan of a search is printed without it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from bigbatch.train_loop.config.plug_ins import is_own


@dataclass(frozen=True)
class Capabilities:
    """What a strategy can do; and, in the same terms, what a search asks of its strategy (``lacking``)."""

    learns: bool = True
    """Whether what it proposes depends on earlier trials."""
    learns_from_stopped: bool = True
    """Whether it learns from trials that did not run to their end."""
    conditional: bool = True
    """Whether it models parameters that exist only with some values of another. If not, it draws them at random."""
    categorical: bool = True
    """Whether it models choices. If not, it draws them at random."""
    knows_others: bool = False
    """Whether it learns from other studies (``--warm-start``). If not, it only tries their best configurations."""
    constraints: bool = False
    """Whether it models where the constraints of the space are met."""
    objectives: int = 1
    """How many objectives it can optimise at once."""
    targets: bool = True
    """Whether it can optimise the time to a target, where a run that misses it has no value on the same scale."""
    frontier: bool = False
    """Whether it needs no help to compare values of the frontier's parameter. If not, it is shown each trial's rank
    among the trials of its own value."""


MANY = 8
"""As many objectives as anybody would write."""
NEEDS_NOTHING = Capabilities(False, False, False, False, False, False, 1, False, False)
"""What a search of one metric over ranges of numbers asks of a strategy."""
CAPABILITIES = {
    "curves": Capabilities(knows_others=True, constraints=True, targets=False, frontier=True),
    "tpe": Capabilities(constraints=True, objectives=MANY),
    "gp": Capabilities(learns_from_stopped=False, conditional=False, constraints=True, objectives=MANY, targets=False),
    "cmaes": Capabilities(conditional=False, categorical=False),
    "qmc": Capabilities(learns=False, objectives=MANY, frontier=True),
    "random": Capabilities(learns=False, objectives=MANY, frontier=True),
}
"""By the name of ``--strategy``."""
OWN = Capabilities(learns=False, constraints=True, objectives=MANY, frontier=True)
"""Of a sampler of the user's own, ``FILE.py:FUNCTION``. Nothing is known about it, so no weakness is claimed. It
proposes every trial itself, as the designs do, and the values of a frontier are chosen beside it."""
STRATEGIES = ("auto", *CAPABILITIES)
STOPPINGS = ("auto", "look", "asha", "hyperband", "median", "none")
LOOK_FROM_TRIALS, LOOK_FROM_EPOCHS = 16, 10
"""A third of the looked-at trials goes on: of fewer than 16 that is at most five, too few to know each batch. A tenth
of a run is less than an epoch if the run has fewer than ten."""


def capabilities_of(name: str) -> Capabilities:
    """What the strategy of that name can do."""
    return OWN if is_own(name) else CAPABILITIES[name]


def lacking(strategy: str, needs: Capabilities) -> list[str]:
    """The names of the capabilities in which a strategy falls short of what a search needs."""
    can = capabilities_of(strategy)
    return [one.name for one in fields(can) if getattr(can, one.name) < getattr(needs, one.name)]


def resolved(strategy: str, stopping: str, trials: int, max_epochs: int) -> tuple[str, str]:
    """The names that ``auto`` stands for in a search of this size. See docs/decisions/025."""
    if strategy == "auto":
        strategy = "curves"
    if stopping == "auto":
        stopping = "look" if trials >= LOOK_FROM_TRIALS and max_epochs >= LOOK_FROM_EPOCHS else "asha"
    return strategy, stopping
