"""``--strategy curves``: proposes what a Gaussian process on learning curves thinks will most probably be better.

For each trial a threshold is drawn: the best value so far, plus a random improvement between 10^−2.5 and 10^−0.3
standard deviations (as MFPI-random of ifBO, Rakotoarison et al. 2024, arXiv 2404.16795). Of 60 random configurations
and 60 near the five best, the one is taken whose run most probably ends above it. So trials that start at the same
time differ, some careful and some bold. A configuration whose run will cost much more than usual must be as much more
probable. A run that violates a constraint of the space counts as diverged, and so does what the space has
refused. A configuration that the model can hardly tell from one that
was tried must be a hundred times as probable: the trials of a search are for what is not known yet. Of a word that no
trial had, e.g. an optimizer, trials with other words say little. So after the first trials each has such a word until
all were tried, in the first half of a search.

The very first trial is the middle of the space, unless recipes or a space's own initial points are. The other first
ones are the points of a Sobol sequence: ten or more, and up to two for each slot as long as no run has ended. If other
studies say something (``--warm-start``), every second of the first trials is proposed already, and candidates lie near
the best configurations of those studies, too. After them every third proposal disregards the other studies, so that
one that misleads cannot lead the whole search astray.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial
from scipy.special import log_ndtr

from bigbatch.tune.models.curve_data import CurveEncoder, Learned, first_round, startup_trials
from bigbatch.tune.models.curve_history import Curve
from bigbatch.tune.models.curve_model import CurvePoints, matern_52, squared_distances
from bigbatch.tune.models.one_thread import on_one_thread
from bigbatch.tune.models.protocol import SearchFacts
from bigbatch.tune.models.unit_space import SobolSampler, is_word, middle_of, random_part, value_at
from bigbatch.tune.runs.run import GIVEN_ATTR

Array = NDArray[np.float64]
FRESH, NEAR, ELITE = 60, 60, 5
"""Random candidates, candidates near the best trials, and how many are the best."""
ALONE_EVERY = 3
"""Every so many trials, what other studies say is disregarded."""
COPY = 0.97
"""A configuration is a copy of one that was tried if the model's correlation of the two is above this."""
COPY_ODDS = 100.0
"""A copy must be so many times as probable as another configuration. It is not ruled out: after many trials of few
parameters, what is left may be bad, and the best is to be found between copies."""
SAME, LEFT_FOR_LAST = 1 - 1e-12, 1e9
"""The very same configuration, as in a space of words, is proposed again only if no other candidate is left: the
logarithm of its probability counts as so much smaller."""

NEW_WORD_UNTIL = 0.5
"""In this part of a search, a configuration with a word that no trial had comes first. With a budget alone it is a part
of the number of trials that is guessed."""
NEW_WORD_FIRST = 1e6
"""The logarithm of its probability counts as so much larger then."""


class CurvesSampler(BaseSampler):
    """Proposes all parameters of trial ``number`` at once.

    Args:
        facts: its dimensions are the search space.
        encoder: where to keep coordinates for the next sampler.
    """

    def __init__(self, facts: SearchFacts, number: int, encoder: CurveEncoder | None = None) -> None:
        self._facts, self._number = facts, number
        self._encoder = encoder or CurveEncoder(facts)
        self._space = self._encoder.space

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """All parameters of the space, also those that exist only with some values of others."""
        return {dimension.name: dimension.distribution for dimension in self._facts.dimensions}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, object]:
        """The proposal's parameters that are in ``search_space``."""
        proposal = self.propose(study, trial, {})
        return {name: value for name, value in proposal.items() if name in search_space}

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> object:
        """A random value of a parameter that the facts do not name, or whose range differs from theirs."""
        return value_at(random_part(self._facts.seed, self._number, param_name), param_distribution)

    def propose(self, study: Study, trial: FrozenTrial, fixed: Mapping[str, object]) -> dict[str, object]:
        """A whole configuration with the ``fixed`` values, those of an enqueued trial, and those it already has."""
        fixed = {**trial.system_attrs.get("fixed_params", {}), **trial.params, **fixed}
        learned, starts = None, self._starts(study)
        has_begun = bool(self._facts.knowledge) and self._number % 2 == 0
        if has_begun or not starts:
            alone = not starts and self._number % ALONE_EVERY == 0
            learned = self._encoder.learn(study, alone=alone)
        if learned is None:
            return self._quasi_random(study, trial, fixed)
        rng = np.random.default_rng([self._facts.seed, self._number])
        peers = self._peers(learned, fixed)
        candidates = self._candidates(rng, learned, peers, fixed)
        features = np.array([self._space.encode(params) for params in candidates])
        # At the end of the run, by no trial's curve: a new trial has none yet.
        at = CurvePoints(features, np.ones(len(features)), np.full(len(features), -1))
        mean, sd = learned.model.predict(at)
        best = max((learned.curves[i].best for i in peers), default=-np.inf)
        bar = learned.standardised(best) if np.isfinite(best) else 0.0
        threshold = bar + 10 ** rng.uniform(-2.5, -0.3)
        # The logarithm: far below the threshold the probabilities themselves would all be 0.
        score = log_ndtr((mean - threshold) / sd)
        score -= surcharge(learned.curves, learned.features, peers, features)
        score -= self._repetition(learned, candidates, features)
        if not starts and self._number < NEW_WORD_UNTIL * self._facts.trials:
            score += NEW_WORD_FIRST * self._has_new_word(study, candidates)
        return candidates[int(score.argmax())]

    def _starts(self, study: Study) -> bool:
        """Whether this is one of the first trials. More are, while the looks of the first round are all there is."""
        history = self._encoder.history
        history.update(study)
        number = self._number - len(history.refused)
        if number < startup_trials(self._facts):
            return True
        if number >= first_round(self._facts) or history.any_ended:
            return False
        return not (self._facts.knowledge and self._encoder.trusted(study))

    def _quasi_random(self, study: Study, trial: FrozenTrial, fixed: Mapping[str, object]) -> dict[str, object]:
        sobol = SobolSampler(self._facts.names, self._facts.seed, self._facts.priors)
        earlier = study.get_trials(deepcopy=False)[: self._number]
        is_first = all(GIVEN_ATTR in one.user_attrs for one in earlier)
        params: dict[str, object] = {}
        for dimension in self._space.dimensions:
            if dimension.is_active(params):
                drawn = sobol.sample_independent(study, trial, dimension.name, dimension.distribution)
                if is_first and not is_word(dimension.distribution):
                    drawn = middle_of(dimension)
                params[dimension.name] = fixed.get(dimension.name, drawn)
        return params

    def _peers(self, learned: Learned, fixed: Mapping[str, object]) -> list[int]:
        """Places of the curves with which a trial of these values compares, without those that are no candidates."""
        name, found = self._facts.frontier, [i for i, c in enumerate(learned.curves) if c.competes]
        if name is None or name not in fixed:
            return found
        return [i for i in found if learned.curves[i].params.get(name) == fixed[name]]

    def _tried(self, learned: Learned) -> tuple[list[Mapping[str, object]], Array]:
        """The n configurations of the curves and of running trials that have no value yet, with their coordinates."""
        running = self._encoder.history.running
        silent = [one.params for one in running if one.number != self._number and not one.intermediate_values]
        coordinates = np.array([self._space.encode(params) for params in silent]).reshape(-1, self._space.width)
        return [*(c.params for c in learned.curves), *silent], np.concatenate([learned.features, coordinates])

    def _repetition(self, learned: Learned, candidates: Sequence[Mapping[str, object]], at: Array) -> Array:
        """By how much the logarithm of each candidate's probability (m,) counts as smaller because the candidate
        repeats, or nearly repeats, what was tried at its value of the frontier. ``at``: their coordinates (m, d)."""
        tried, coordinates = self._tried(learned)
        alike = learned.model.resemblance(at, coordinates)
        if (name := self._facts.frontier) is not None:
            values = dict[object, int]()
            mine, theirs = (
                np.array([values.setdefault(params.get(name), len(values)) for params in some], int)
                for some in (candidates, tried)
            )
            alike *= mine[:, None] == theirs[None]
        most = alike.max(axis=1, initial=0.0)
        return np.asarray(np.log(COPY_ODDS) * (most > COPY) + LEFT_FOR_LAST * (most > SAME))

    def _has_new_word(self, study: Study, candidates: Sequence[Mapping[str, object]]) -> NDArray[np.bool_]:
        """Whether each candidate (m,) has a word that no trial had, of this study or of those that it believes."""
        if not any(self._encoder.history.untried.values()):
            return np.zeros(len(candidates), bool)  # the common case
        believed = [self._facts.knowledge[place] for place in self._encoder.trusted(study)]
        known = [trial.params for other in believed for trial in other.trials]
        untried = {
            name: words - {params[name] for params in known if name in params}
            for name, words in self._encoder.history.untried.items()
        }
        return np.array([any(one[name] in words for name, words in untried.items()) for one in candidates])

    def _candidates(
        self, rng: np.random.Generator, learned: Learned, peers: Sequence[int], fixed: Mapping[str, object]
    ) -> list[dict[str, object]]:
        """Random configurations and neighbours of the best: of the peers, filled up with the best of the others."""
        ends = learned.ends()
        mine = set(peers)
        whole = [i for i, c in enumerate(learned.curves) if c.competes]
        elite = sorted(whole, key=lambda i: (i not in mine, -ends[i]))[:ELITE]
        found = [self._space.sample(rng, fixed) for _ in range(FRESH)]
        parents = [learned.curves[i].params for i in elite]
        parents += learned.known_best
        if parents:
            near = [parents[int(k)] for k in rng.integers(len(parents), size=NEAR)]
            found += [self._space.neighbour(rng, params, fixed) for params in near]
        return found


USUAL = 1.5
"""Times the median run: up to this, all runs count as equally expensive."""
FEWEST_RUNS = 3
NOISE = 0.05
"""Variance of the noise, as a part of the variance of the logarithms."""


@on_one_thread
def surcharge(curves: Sequence[Curve], features: Array, peers: Sequence[int], at: Array) -> Array:
    """How much more expensive than usual the runs of other configurations will be.

    The cost of a run is predicted by the mean of a Gaussian process on its logarithm (Rasmussen and Williams 2006, eq.
    2.25; Matérn-5/2 with one fixed length), from the epoch times of all curves.

    Args:
        curves: what was run.
        features: (n, d): their configurations in unit coordinates.
        peers: places of the curves with which the others compare. The usual cost is the median of these.
        at: (m, d): the other configurations.

    Returns:
        (m,): the logarithm of predicted cost / (USUAL × median cost), at least 0. All 0 if fewer than three peers'
        costs are known, or none is above USUAL × median.
    """
    known = np.array([i for i, curve in enumerate(curves) if curve.run_s is not None], int)
    costs = np.log([run_s for curve in curves if (run_s := curve.run_s) is not None])
    usual = costs[np.isin(known, list(peers))]
    if len(usual) < FEWEST_RUNS or costs.max() <= (most := np.median(usual) + np.log(USUAL)):
        return np.zeros(len(at))  # the common case, in which nothing is to be predicted
    # The length is the median of the curve model's prior (curve_model.prior).
    mean, length = costs.mean(), 0.5 * np.sqrt(max(at.shape[1], 1))
    gram, _ = matern_52(squared_distances(features[known], features[known], 1 / length))
    cross, _ = matern_52(squared_distances(at, features[known], 1 / length))
    predicted = mean + cross @ np.linalg.solve(gram + NOISE * np.eye(len(known)), costs - mean)
    return np.asarray(np.maximum(0.0, predicted - most))
