"""``--fidelity``: the best cheap runs of each value of the frontier are trained in full.

The order is a function of the cheap runs alone: first the best of each value, the largest value first, then the
second-best ones, and so on. It does not depend on how the first finalists end, so slots need not wait for each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from optuna.trial import FrozenTrial

from bigbatch.tune.strategies.follow_up import NextTrial, first_part, second_part
from bigbatch.tune.study.cheap_runs import cheap_value, ran_cheaply
from bigbatch.tune.study.fidelity import Fidelity
from bigbatch.tune.study.objective import Objective
from bigbatch.tune.study.trial_facts import ENQUEUED_ATTR, FOLLOWS_ATTR, GIVEN_ATTR, configuration, ordered_values


@dataclass(frozen=True)
class Finalist:
    """A cheap run that is trained in full."""

    trial: FrozenTrial
    rank: int
    """Among the finished cheap runs of its value, from 1."""
    among: int


@dataclass(frozen=True)
class Finalists:
    """The second part of a search: full runs."""

    fidelity: Fidelity
    objective: Objective
    frontier: str | None
    """The parameter whose values are compared separately; None: all cheap runs compare."""
    first: float
    """Configurations of the first part; infinite if only a budget limits them."""

    @property
    def first_share(self) -> float:
        """Half: each full run costs as much as some cheap ones."""
        return 0.5

    def is_due(self, configurations: int) -> bool:
        """Whether enough cheap runs were tried."""
        return configurations >= self.first

    def next_trial(self, trials: Sequence[FrozenTrial]) -> NextTrial | None:
        """The next finalist. None: each cheap run that has finished is one already."""
        begun = {trial.user_attrs[FOLLOWS_ATTR].get("of") for trial in second_part(trials)}
        for one in self.order(trials):
            if one.trial.number not in begun:
                attrs = one.trial.user_attrs
                kept = {name: attrs[name] for name in (GIVEN_ATTR, ENQUEUED_ATTR) if name in attrs}
                says = {
                    "fidelity": self.fidelity.text,
                    "of": one.trial.number,
                    "cheap": cheap_value(one.trial),
                    "rank": one.rank,
                    "among": one.among,
                }
                return NextTrial(one.trial.params, says, kept)
        return None

    def order(self, trials: Sequence[FrozenTrial]) -> list[Finalist]:
        """All finished cheap runs, the first finalist first. Of equal configurations only the first one counts."""
        groups: dict[object, list[FrozenTrial]] = {}
        done = [trial for trial in first_part(trials) if ran_cheaply(trial)]
        for trial in sorted(done, key=lambda t: (-self.objective.gain(cheap_value(t)), t.number)):
            group = groups.setdefault(trial.params.get(self.frontier) if self.frontier else None, [])
            if configuration(trial) not in map(configuration, group):
                group.append(trial)
        values = ordered_values(list(groups))[::-1]
        longest = max(map(len, groups.values()), default=0)
        return [
            Finalist(groups[value][rank], rank + 1, len(groups[value]))
            for rank in range(longest)
            for value in values
            if rank < len(groups[value])
        ]
