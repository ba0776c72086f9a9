"""What other studies say, for Optuna's samplers: old trials that these see beside the study's own, and nobody else.

Values of different studies do not compare. So each trial has a normal score in place of its value: an old one that of
its rank among the finished ones of its group. The best of this study's finished trials has the best of the scores that
the old studies predict for all these trials, the second-best one the second-best of them, and so on. So few trials that
are all near the best place all have high scores, as they would have among many.

The limits to trust are those of ``curves``: a study that this one refutes is left out (curve_data.py), and every second
one of the first trials and later every third sees no other studies. Besides, each result of this study takes the place
of an old trial: after ``MOST_KNOWN`` results no old one is left.

CMA-ES has no use for single old trials. They give it its first distribution instead: WS-CMA-ES, Nomura et al. 2021,
arXiv 2012.06932.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState, create_trial

from bigbatch.tune.models.curve_data import CurveEncoder
from bigbatch.tune.models.known_curves import known_prediction, normal_scores
from bigbatch.tune.models.protocol import Proposer, SearchFacts
from bigbatch.tune.models.study_view import view_of, whole_study
from bigbatch.tune.proposers.passing_sampler import Asked, PassingSampler
from bigbatch.tune.runs.knowledge import KnownStudy, KnownTrial

MOST_KNOWN = 30
"""Old trials that a sampler sees at most."""
FEWEST_SOURCES = 10
"""WS-CMA-ES begins with the best tenth of the old trials."""
EXTREME = 0.02
"""Predicted ranks are no nearer than this part to the best and to the worst."""
ALONE_EVERY = 3
"""Every so many trials, what other studies say is disregarded."""
_NORMAL = NormalDist()
MakeFrom = Callable[[int, Sequence[FrozenTrial] | None], BaseSampler]
"""From a trial's number and the old trials with which to begin, if any, to a sampler."""


class KnownTrials:
    """The finished trials of other studies. It keeps nothing that could not be made again."""

    def __init__(self, facts: SearchFacts) -> None:
        self._facts, self._encoder = facts, CurveEncoder(facts)
        self._told: dict[tuple[int, ...], list[tuple[KnownTrial, float]]] = {}

    def told(self, study: Study, names: Sequence[str] | None = None, most: int | None = None) -> list[FrozenTrial]:
        """Trials of the studies that this one does not refute, with their normal scores as values.

        Args:
            study: or a view of it.
            names: only trials that have all these parameters, and of them only these. None: all but the frontier's.
            most: how many, the most telling ones.
        """
        key = self._encoder.trusted(whole_study(study))
        if key not in self._told:
            groups = [group for place in key for group in self._facts.knowledge[place].groups().values()]
            scored = [self._scored(group) for group in groups]
            longest = max(map(len, scored), default=0)
            self._told[key] = [group[i] for i in range(longest) for group in scored if i < len(group)]
        wanted = [name for name in self._facts.names if name != self._facts.frontier] if names is None else names
        whole = [(t, score) for t, score in self._told[key] if names is None or all(name in t.params for name in names)]
        return [self._as_trial(trial, score, wanted) for trial, score in whole[:most]]

    def scored(self, study: Study, trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
        """Trials of this study, the finished ones with scores on the scale of the old ones. None is changed."""
        done = [t for t in trials if t.state == TrialState.COMPLETE and t.values]
        trusted = [self._facts.knowledge[place] for place in self._encoder.trusted(whole_study(study))]
        known = [one for one in trusted if any(trial.finished for trial in one.trials)]
        if not done or not known:
            return list(trials)
        expected = np.mean([self._expected(one, [t.params for t in done]) for one in known], axis=0)
        order = sorted(range(len(done)), key=lambda i: (done[i].values[0], -done[i].number))
        scores = dict(zip((done[i].number for i in order), np.sort(expected).tolist(), strict=True))
        return [_with_value(t, scores[t.number]) if t.number in scores else t for t in trials]

    def _expected(self, study: KnownStudy, asked: Sequence[Mapping[str, object]]) -> NDArray[np.float64]:
        """The scores (n,) that a study predicts. The frontier's value is no matter: ranks are among equal ones.

        A prediction varies less than what it was made from; this is undone.
        """
        facts = replace(
            self._facts, dimensions=tuple(d for d in self._facts.dimensions if d.name != self._facts.frontier)
        )
        own = known_prediction(study, facts, [trial.params for trial in study.trials if trial.finished])
        # Evenly spread ranks from −½ to ½ have a standard deviation of 1/√12.
        shares = known_prediction(study, facts, asked) / max(float(own.std()) * math.sqrt(12), 0.1)
        scores = np.array([_NORMAL.inv_cdf(share) for share in np.clip(shares + 0.5, EXTREME, 1 - EXTREME)])
        return scores if self._facts.objective.direction == "maximize" else -scores

    def _scored(self, trials: Sequence[KnownTrial]) -> list[tuple[KnownTrial, float]]:
        """The finished trials of a group with their scores: in turns one from the best, and one from the worst."""
        done = [trial for trial in trials if trial.finished]
        scores = normal_scores([trial.values[max(trial.values)] for trial in done])
        gain = self._facts.objective.gain
        best = sorted(zip(done, scores, strict=True), key=lambda one: (-gain(one[1]), one[0].number))
        return [best[i // 2] if i % 2 == 0 else best[-1 - i // 2] for i in range(len(best))]

    def _as_trial(self, trial: KnownTrial, score: float, wanted: Sequence[str]) -> FrozenTrial:
        params = {name: trial.params[name] for name in wanted if name in trial.params}
        found = {name: self._facts.dimension(name).distribution for name in params}
        return create_trial(params=params, distributions=found, value=score)


def knowing_others(inner: Proposer, facts: SearchFacts, begins_with: MakeFrom | None = None) -> Proposer:
    """Proposes as ``inner``, which sees old trials too.

    Args:
        begins_with: CMA-ES: how to make a sampler that begins with old trials. None: old trials are shown instead.
    """
    known = KnownTrials(facts)

    def sampler(number: int) -> BaseSampler:
        if begins_with is not None:
            return _BeginningSampler(inner(number), number, begins_with, known)
        first = number < max(4, min(10, facts.most_trials // 3))
        alone = number % 2 == 1 if first else number % ALONE_EVERY == 0
        return inner(number) if alone else _ShowingSampler(inner(number), known)

    return sampler


def _with_value(trial: FrozenTrial, value: float) -> FrozenTrial:
    shown = copy.copy(trial)  # the study caches the original
    shown.values = [value]
    return shown


class _ShowingSampler(PassingSampler):
    """Shows old trials to another sampler."""

    def __init__(self, inner: BaseSampler, known: KnownTrials) -> None:
        self._inner, self._known = inner, known
        self._old: list[FrozenTrial] | None = None

    def asked(self, study: Study, trial: FrozenTrial) -> Asked:
        """The inner sampler, with what it sees."""
        return Asked(self._inner, view_of(study, partial(self._beside, study)), trial)

    def _beside(self, study: Study, trials: list[FrozenTrial]) -> list[FrozenTrial]:
        """The old trials, and then those of this study; with a frontier, FrontierSampler has ranked these."""
        if self._old is None:  # the same for the whole proposal
            done = sum(t.state == TrialState.COMPLETE for t in trials)
            self._old = self._known.told(study, most=max(0, MOST_KNOWN - done))
            for old in self._old:  # TPE weighs by number, and these are the oldest;
                old.number = -1  # IntersectionSearchSpace overlooks all trials before a smaller one
        if not self._old:
            return trials
        return [*self._old, *self._known.scored(study, trials)]


class _BeginningSampler(PassingSampler):
    """Lets CMA-ES begin with old trials. Its later generations follow from the study alone."""

    def __init__(self, plain: BaseSampler, number: int, make: MakeFrom, known: KnownTrials) -> None:
        self._plain, self._number, self._make, self._known = plain, number, make, known

    def asked(self, study: Study, trial: FrozenTrial) -> Asked:
        """The plain sampler."""
        return Asked(self._plain, study, trial)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, object]:
        """As a sampler that begins with what is known of the parameters of ``search_space``."""
        old = self._known.told(study, names=list(search_space))
        if len(old) < FEWEST_SOURCES:
            return super().sample_relative(study, trial, search_space)
        return self._make(self._number, old).sample_relative(study, trial, search_space)
