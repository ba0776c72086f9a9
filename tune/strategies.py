"""Strategies by the names of ``--strategy`` and ``--stopping``."""

from __future__ import annotations

from bigbatch.train_loop.config.rules import is_own
from bigbatch.tune.models.curve_data import CurveEncoder
from bigbatch.tune.models.names import STOPPINGS, STRATEGIES, resolved
from bigbatch.tune.models.protocol import Proposer, SearchFacts, Stopping, Strategy
from bigbatch.tune.proposers.curves import CurvesSampler
from bigbatch.tune.proposers.frontier_sampler import at_frontier
from bigbatch.tune.proposers.own_strategy import own_sampler
from bigbatch.tune.proposers.passing_sampler import Combined
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
