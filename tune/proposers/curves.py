"""``--strategy curves``: proposes what a Gaussian process on learning curves thinks will most probably be better.

For each trial a threshold is drawn: the best value so far, plus a random improvement between 10^−2.5 and 10^−0.3
standard deviations (as MFPI-random of ifBO, Rakotoarison et al. 2024, arXiv 2404.16795). Among 60 random configurations
and 60 near the five best, the sampler takes the one whose run most probably ends above the threshold. So trials that
start at the same time differ: some are careful, some are bold. A run that costs k times as much as usual needs k times
the probability. A configuration that violates a constraint of the space, or that the space has refused, counts as
diverged. A configuration that the model can hardly distinguish from a tried one needs a hundred times the probability:
a search should try what is not known yet. Trials with other words (e.g. optimizers) say little about a word that no
trial had. So in the first half of a search, after the first trials, each trial has such a word until all words were
tried.

The first trial, or the first one after the recipes, is the middle of the space, unless initial points or trials of a
warm start come before it. The other first trials are points of a Sobol sequence: ten or more, and up to two for each
slot while no run has ended. With knowledge of other studies (``--warm-start``), the model already proposes every second
of the first trials, and candidates also lie near the best configurations of those studies. After the first trials every
third proposal disregards the other studies, so that a misleading study cannot spoil the whole search.
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
from bigbatch.tune.models.curve_model import CurvePoints, matern_52, squared_distances
from bigbatch.tune.models.one_thread import on_one_thread
from bigbatch.tune.models.protocol import SearchFacts
from bigbatch.tune.models.unit_space import SobolSampler, is_word, middle_of, random_part, value_at
from bigbatch.tune.runs.knowledge import Curve
from bigbatch.tune.runs.run import GIVEN_ATTR

Array = NDArray[np.float64]
FRESH, NEAR, ELITE = 60, 60, 5
"""Random candidates, candidates near the best trials, and how many are the best."""
ALONE_EVERY = 3
"""One of this many proposals disregards the other studies."""
COPY = 0.97
"""A configuration is a copy of one that was tried if the model's correlation of the two is above this."""
COPY_ODDS = 100.0
"""A copy must be so many times as probable as another configuration. It is not excluded: after many trials of few
parameters, all other configurations may be bad, and the best one may be a copy."""
SAME, LEFT_FOR_LAST = 1 - 1e-12, 1e9
"""A configuration with a correlation above SAME is identical to a tried one. It is proposed only if no other candidate
is left: LEFT_FOR_LAST is subtracted from the logarithm of its probability."""

NEW_WORD_UNTIL = 0.5
"""In this first part of a search, configurations with a word that no trial had come first. If a budget is the only
limit, it is a part of the guessed number of trials."""
NEW_WORD_FIRST = 1e6
"""It is then added to the logarithm of such a configuration's probability."""


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
        """A whole configuration with the ``fixed`` values, the enqueued ones and those that the trial already has."""
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
        # The end of each run. The owner −1 is no trial: a new trial has no curve yet.
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
        """Whether this is one of the first trials. There are more of them while no run has ended."""
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
        """Places of the curves that may be the best; of those at the ``fixed`` value of the frontier, if it is
        fixed."""
        name, found = self._facts.frontier, [i for i, c in enumerate(learned.curves) if c.competes]
        if name is None or name not in fixed:
            return found
        return [i for i in found if learned.curves[i].group == fixed[name]]

    def _tried(self, learned: Learned) -> tuple[list[Mapping[str, object]], Array]:
        """The n configurations of the curves and of running trials that have no value yet, with their coordinates."""
        running = self._encoder.history.running
        silent = [one.params for one in running if one.number != self._number and not one.intermediate_values]
        coordinates = np.array([self._space.encode(params) for params in silent]).reshape(-1, self._space.width)
        return [*(c.params for c in learned.curves), *silent], np.concatenate([learned.features, coordinates])

    def _repetition(self, learned: Learned, candidates: Sequence[Mapping[str, object]], at: Array) -> Array:
        """What to subtract from the logarithm of each candidate's probability (m,), because the candidate repeats, or
        nearly repeats, what was tried at its value of the frontier. ``at``: their coordinates (m, d)."""
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
        """Whether each candidate (m,) has a word that no trial of this study or of a trusted other study had."""
        if not any(self._encoder.history.untried.values()):
            return np.zeros(len(candidates), bool)  # the common case
        believed = [self._facts.knowledge[place] for place in self._encoder.trusted(study)]
        known = [curve.params for other in believed for curve in other.curves]
        untried = {
            name: words - {params[name] for params in known if name in params}
            for name, words in self._encoder.history.untried.items()
        }
        return np.array([any(one[name] in words for name, words in untried.items()) for one in candidates])

    def _candidates(
        self, rng: np.random.Generator, learned: Learned, peers: Sequence[int], fixed: Mapping[str, object]
    ) -> list[dict[str, object]]:
        """Random configurations, and neighbours of the best: of the peers, then the others, and of other studies."""
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
