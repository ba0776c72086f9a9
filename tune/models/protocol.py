"""What the bridge asks of a strategy: the next parameters, a look at each epoch, which paused trial to continue.

A strategy has no memory of its own. Every answer is a function of the study and of the facts with which the strategy
was made, so a search that was killed at any moment continues with the same decisions. Random numbers are seeded by the
search's seed and the trial's number.

A strategy has two parts, chosen by ``--strategy`` and ``--stopping``: a ``Proposer`` and a ``Stopping``.
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial

from bigbatch.search_spaces.check import ParamRange
from bigbatch.search_spaces.priors import LogNormal
from bigbatch.tune.runs.knowledge import KnownStudy
from bigbatch.tune.runs.objective import HALF_A_POINT, Objective, Tolerance

Fits = Callable[[FrozenTrial], bool]
"""Whether a budget has room for the rest of a paused trial's run."""
Lasts = Callable[[FrozenTrial, float], bool]
"""Whether a budget lasts for this multiple of the rest of a paused trial's run."""


class TrialDecision(enum.Enum):
    """What happens to a trial after an epoch."""

    GO_ON = "go on"
    PAUSE = "pause"
    """End its processes and keep its checkpoint. It may be continued later."""
    STOP = "stop"
    """End it for good."""


@dataclass(frozen=True)
class Dimension:
    """One parameter of a space."""

    name: str
    distribution: BaseDistribution
    active_when: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    """Another parameter → its values with which this one exists. Empty: it always exists, or ``always`` is False."""
    prior: LogNormal | None = None
    """What is believed about it before the first trial. None: every value of the range, or of its log, is as likely as
    any other."""
    always: bool = True
    """Whether every configuration that fulfils ``active_when`` has it. False if e.g. a number decides, not a choice."""

    def is_active(self, params: Mapping[str, object]) -> bool:
        """Whether the parameter exists beside the others of ``params``."""
        return all(params.get(name) in values for name, values in self.active_when.items())


@dataclass(frozen=True)
class SearchFacts:
    """What a strategy knows about its search besides the study."""

    dimensions: tuple[Dimension, ...]
    trials: int
    """Configurations that the search tries at most. A guess where a budget alone ends the search: see most_trials."""
    max_epochs: int
    """Epochs of the longest run."""
    slots: int = 1
    """Trials that run at the same time."""
    seed: int = 0
    objective: Objective = Objective()
    frontier: str | None = None
    """The parameter whose values are compared separately, e.g. ``global_batch_size``. None: all trials compare."""
    tolerance: Tolerance = HALF_A_POINT
    """The answer is the largest of these values that is at most this much worse than the best."""

    knowledge: tuple[KnownStudy, ...] = ()
    """What other studies say."""
    open_ended: bool = False
    """Whether a budget of hours alone ends the search, and no number of trials."""

    @property
    def most_trials(self) -> int:
        """Configurations that the search tries at most; no limit if only a budget ends it."""
        return sys.maxsize if self.open_ended else self.trials

    @property
    def names(self) -> list[str]:
        """The names of all parameters."""
        return [dimension.name for dimension in self.dimensions]

    @property
    def priors(self) -> dict[str, LogNormal]:
        """The soft priors of the parameters that have one."""
        return {dimension.name: dimension.prior for dimension in self.dimensions if dimension.prior is not None}


Proposer = Callable[[int], BaseSampler]
"""From a trial's number to an Optuna sampler that proposes its parameters. A fresh one each time."""


class Stopping(Protocol):
    """Judges running trials, and chooses which paused one goes on."""

    def look(self, study: Study, trial: FrozenTrial, epoch: int) -> TrialDecision:
        """What happens to ``trial`` after ``epoch`` (1-based, not its last), whose value is already in the study.

        The trial manager calls this after each epoch, and again if the driver was killed before it carried out the
        answer. The study is then the same, except for what the first call wrote. The answer may depend on it alone.
        """

    def to_continue(self, study: Study, fits: Fits | None = None, lasts: Lasts | None = None) -> FrozenTrial | None:
        """The paused trial that the next free slot continues; None: the slot gets a new configuration.

        The bridge calls this whenever a slot is free and no trial waits in the study.

        Args:
            fits: given if the budget has no room for a new configuration. Then only a trial that fits may go on; if
                none does, the slot stays empty.
            lasts: how long the budget lasts. None: for ever.
        """

    def is_over(self, study: Study) -> bool:
        """Whether the search is over once all configurations were proposed: no paused trial has to be continued."""


class Strategy(Stopping, Protocol):
    """A ``Proposer`` and a ``Stopping`` that work together."""

    def sampler(self, number: int) -> BaseSampler:
        """As the ``Proposer``."""


def dimensions_of(ranges: Mapping[str, ParamRange]) -> tuple[Dimension, ...]:
    """A dimension for each searched parameter, in the order of ``ranges``. Derived rates are no parameters."""
    searched = [found for found in ranges.values() if found.kind != "derived"]
    return tuple(map(_dimension, searched))


def _dimension(found: ParamRange) -> Dimension:
    always = found.always or bool(found.conditions)
    return Dimension(found.name, _distribution(found), dict(found.conditions), found.prior, always)


def _distribution(found: ParamRange) -> BaseDistribution:
    if found.kind == "categorical":
        return CategoricalDistribution(list(found.choices))  # type: ignore[arg-type]  # a space chose them
    if found.kind == "int":
        step = 1 if found.log or found.step is None else int(found.step)
        return IntDistribution(int(found.low), int(found.high), log=found.log, step=step)
    return FloatDistribution(found.low, found.high, log=found.log, step=found.step)
