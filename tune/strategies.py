"""Strategies by the names of ``--strategy`` and ``--stopping``: a proposer and a stopping, joined.

Confirmations are hidden from both: a strategy does not decide these. A configuration that is trained again must not
look like several good ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial

from bigbatch.train_loop.config.rules import is_own
from bigbatch.tune.models.curve_data import CurveEncoder
from bigbatch.tune.models.names import STOPPINGS, STRATEGIES, resolved
from bigbatch.tune.models.protocol import Fits, Lasts, Proposer, SearchFacts, Stopping, Strategy, TrialDecision
from bigbatch.tune.proposers.curves import CurvesSampler
from bigbatch.tune.proposers.frontier_sampler import at_frontier
from bigbatch.tune.proposers.own_strategy import own_sampler
from bigbatch.tune.proposers.passing_sampler import OwnTrials, ShownSampler
from bigbatch.tune.proposers.samplers import sampler_factory, trial_seed
from bigbatch.tune.stoppers.early_look import EarlyLook
from bigbatch.tune.stoppers.stopping import PrunerStopping


def make_strategy(strategy: str, stopping: str, facts: SearchFacts) -> Strategy:
    """The strategy of these names, or of users' files. Raises ValueError for an unknown one."""
    if any(name not in known and not is_own(name) for name, known in ((strategy, STRATEGIES), (stopping, STOPPINGS))):
        raise ValueError(f"no such strategy: {strategy!r} with {stopping!r}")
    strategy, stopping = resolved(strategy, stopping, facts.most_trials, facts.max_epochs)
    encoder = CurveEncoder(facts)  # curves and look learn from the same curves
    proposer = _proposer(strategy, facts, encoder)
    if facts.frontier is not None:
        proposer = at_frontier(proposer, facts, sees_all=strategy != "tpe")
    return Combined(proposer, _stopping(stopping, facts, encoder))


def _proposer(name: str, facts: SearchFacts, encoder: CurveEncoder) -> Proposer:
    if name == "curves":
        return lambda number: CurvesSampler(facts, number, encoder)
    if is_own(name):
        return lambda number: own_sampler(name, trial_seed(facts.seed, number))
    return sampler_factory(name, facts.seed, facts.most_trials, facts.names, facts.priors)


def _stopping(name: str, facts: SearchFacts, encoder: CurveEncoder) -> Stopping:
    if name == "look":
        return EarlyLook(facts, encoder)
    return PrunerStopping(name, facts)


@dataclass(frozen=True)
class Combined:
    """The strategy of a proposer and a stopping. They see its own trials alone; the others are never stopped."""

    proposer: Proposer
    stopping: Stopping
    _own: OwnTrials = field(default_factory=OwnTrials, init=False, repr=False, compare=False)

    def sampler(self, number: int) -> BaseSampler:
        """A new sampler for trial ``number``."""
        return ShownSampler(self.proposer(number), self._own.seen)

    def look(self, study: Study, trial: FrozenTrial, epoch: int) -> TrialDecision:
        """As the stopping, for what it sees."""
        if self._own.hides(trial):
            return TrialDecision.GO_ON
        return self.stopping.look(self._own.seen(study), trial, epoch)

    def to_continue(self, study: Study, fits: Fits | None = None, lasts: Lasts | None = None) -> FrozenTrial | None:
        """As the stopping, for what it sees."""
        return self.stopping.to_continue(self._own.seen(study), fits, lasts)

    def is_over(self, study: Study) -> bool:
        """As the stopping, for what it sees."""
        return self.stopping.is_over(self._own.seen(study))
