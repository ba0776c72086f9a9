"""``--transfer-to``: smaller batches predict a configuration at a larger one, and a few trials search around it.

For each optimizer a line through the good runs gives its rate at the target (``batch_rule.py``), and other lines give
the places of the other parameters in their ranges. The first trial at the target is the prediction of the optimizer
that was best at the largest tuned batch, the second that of the next one. Each further trial is drawn from a narrow
log-normal around the best one that has finished at the target, or around the prediction while none has. Draws come in
pairs, one on each side of it.

All of it is a function of the study. A trial keeps what was predicted in ``FOLLOWS_ATTR``.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from optuna.distributions import CategoricalDistribution
from optuna.trial import FrozenTrial, TrialState

from bigbatch.search_spaces.inverse import nearest_parameters
from bigbatch.search_spaces.registry import Space
from bigbatch.search_spaces.trial import StandInTrial
from bigbatch.search_spaces.workload import Workload
from bigbatch.train_loop.config import ConfigError, TrainConfig
from bigbatch.tune.strategies.batch_rule import (
    PLACE,
    RATE,
    BatchLine,
    Belief,
    fit_line,
    goodness,
    log_over_rule,
    rate_at,
    rule_for,
)
from bigbatch.tune.strategies.follow_up import NextTrial, first_part, second_part
from bigbatch.tune.strategies.protocol import Dimension
from bigbatch.tune.strategies.qmc import value_at
from bigbatch.tune.strategies.unit_space import position
from bigbatch.tune.study.objective import Objective
from bigbatch.tune.study.trial_facts import configuration

NARROWEST, WIDEST = math.log(1.25), math.log(2.0)
"""The log-normal around a rate is as wide as the line is uncertain, within these."""
PLACE_SD = 0.08
"""How far another parameter moves, in parts of its range."""
MOST_PREDICTED = 2
"""Optimizers whose prediction is tried: which one is best may change with the batch."""


@dataclass(frozen=True)
class TransferFacts:
    """What a transfer knows besides the study."""

    name: str
    """The parameter of the batch."""
    target: int
    first: float
    """Configurations at the smaller batches; infinite if only a budget limits them."""
    space: Space
    workload: Workload
    fixed: Mapping[str, object]
    """``--set``."""
    dimensions: tuple[Dimension, ...]
    objective: Objective
    seed: int


@dataclass(frozen=True)
class Prediction:
    """The configuration of one optimizer at the target."""

    config: TrainConfig
    params: Mapping[str, object]
    gain: float
    """Expected, larger is better."""
    rate_sd: float
    """One standard deviation of the logarithm of its rate."""
    exponent: float
    """The rate (for LARS: rate × η) grows as the batch to this power, at one momentum."""
    runs: int
    """Finished trials of its optimizer."""


@dataclass(frozen=True)
class _TunedRun:
    """A finished trial at a smaller batch."""

    params: Mapping[str, object]
    config: TrainConfig
    gain: float

    @property
    def batch(self) -> int:
        return self.config.batch.global_size


class Transfer:
    """The second part of a search: trials at the target."""

    def __init__(self, facts: TransferFacts) -> None:
        self.facts = facts

    @property
    def first_share(self) -> float:
        """Three quarters, as of the trials: all runs are whole ones."""
        return 0.75

    def is_due(self, configurations: int) -> bool:
        """Whether enough configurations were tried at the smaller batches."""
        return configurations >= self.facts.first

    def next_trial(self, trials: Sequence[FrozenTrial]) -> NextTrial | None:
        """The next trial at the target. None: no trial at a smaller batch has finished."""
        predictions = self.predictions(trials)
        if not predictions:
            return None
        there = second_part(trials)
        begun = len(there)
        if begun < min(len(predictions), MOST_PREDICTED):
            return self._trial(predictions[begun], predictions[begun].params, "prediction")
        chosen, around = self._centre(there, predictions)
        params = self._near(around, chosen.rate_sd, begun)
        return self._trial(chosen, chosen.params if params is None else params, "around")

    def predictions(self, trials: Sequence[FrozenTrial]) -> list[Prediction]:
        """For each optimizer with a finished trial, the prediction at the target; the most promising one first."""
        runs = _finished_runs(first_part(trials), self.facts.objective)
        by_optimizer: dict[str, list[_TunedRun]] = {}
        for run in runs:
            by_optimizer.setdefault(run.config.optimizer.name, []).append(run)

        def promise(name: str) -> tuple[int, float]:
            largest = max(run.batch for run in by_optimizer[name])
            return largest, max(run.gain for run in by_optimizer[name] if run.batch == largest)

        found = [self._prediction(by_optimizer[name]) for name in sorted(by_optimizer, key=promise, reverse=True)]
        return [prediction for prediction in found if prediction is not None]

    def _prediction(self, runs: Sequence[_TunedRun]) -> Prediction | None:
        batches, weights = [run.batch for run in runs], goodness([r.batch for r in runs], [r.gain for r in runs])
        base = max(runs, key=lambda run: (run.batch, run.gain))
        rates = [log_over_rule(run.config, self.facts.workload) for run in runs]
        line = fit_line(batches, rates, weights, RATE)
        placed = self._config({**base.params, **self._places(runs, weights)})
        params = self._params(placed, line.at(self.facts.target)) if placed else None
        config = self._config(params) if params else None
        if params is None or config is None:
            return None
        return Prediction(
            config,
            params,
            _expected_gain(runs, self.facts),
            min(max(line.sd_at(self.facts.target), NARROWEST), WIDEST),
            self._exponent(config, line, max(batches)),
            len(runs),
        )

    def _places(self, runs: Sequence[_TunedRun], weights: Sequence[float]) -> dict[str, object]:
        """For each number among the parameters, its value at the target by a line through its places."""
        found: dict[str, object] = {}
        for dimension in self.facts.dimensions:
            name = dimension.name
            having = [(run, weight) for run, weight in zip(runs, weights, strict=True) if name in run.params]
            if name == self.facts.name or isinstance(dimension.distribution, CategoricalDistribution) or not having:
                continue
            places = [position(run.params[name], dimension.distribution) for run, _ in having]
            line = fit_line([run.batch for run, _ in having], places, [weight for _, weight in having], PLACE)
            found[name] = value_at(_inside(line.at(self.facts.target)), dimension.distribution)
        return found

    def _exponent(self, config: TrainConfig, line: BatchLine, largest: int) -> float:
        """Between the largest tuned batch and the target."""
        before = config.replace_keys({"batch.global_size": largest})
        rules = [rule_for(one, self.facts.workload) for one in (before, config)]
        return line.slope + math.log(rules[1] / rules[0]) / math.log(self.facts.target / largest)

    def _centre(
        self, there: Sequence[FrozenTrial], predictions: Sequence[Prediction]
    ) -> tuple[Prediction, TrainConfig]:
        """The prediction of the optimizer around which to draw, and the best configuration there so far."""
        runs = _finished_runs(there, self.facts.objective)
        if not runs:
            return predictions[0], predictions[0].config
        best = max(runs, key=lambda run: run.gain).config
        own = [one for one in predictions if one.config.optimizer.name == best.optimizer.name]
        return (own or list(predictions))[0], best

    def _near(self, config: TrainConfig, rate_sd: float, number: int) -> dict[str, object] | None:
        """The parameters of a configuration like this one. An odd number draws on the other side of the even one."""
        rng = np.random.default_rng([self.facts.seed, self.facts.target, number // 2])
        side = 1 if number % 2 == 0 else -1
        step = side * abs(float(rng.normal(0, rate_sd)))
        params = self._params(config, log_over_rule(config, self.facts.workload))
        if params is None:
            return None
        for dimension in self.facts.dimensions:
            name, move = dimension.name, side * float(rng.normal(0, PLACE_SD))
            is_number = not isinstance(dimension.distribution, CategoricalDistribution)
            if is_number and name in params and name != self.facts.name:
                place = _inside(position(params[name], dimension.distribution) + move)
                params[name] = value_at(place, dimension.distribution)
        moved = self._config(params)
        rate = log_over_rule(config, self.facts.workload) + step
        return self._params(moved, rate) if moved else None

    def _trial(self, prediction: Prediction, params: Mapping[str, object], kind: str) -> NextTrial:
        says = {
            "target": self.facts.target,
            "kind": kind,
            "optimizer": prediction.config.optimizer.name,
            "peak_lr": prediction.config.optimizer.peak_lr,
            "objective": self.facts.objective.gain(prediction.gain),  # its own inverse
            "exponent": prediction.exponent,
            "factor": math.exp(prediction.rate_sd),
            "runs": prediction.runs,
        }
        return NextTrial(params, says)

    def _config(self, params: Mapping[str, object]) -> TrainConfig | None:
        """The configuration at the target; None if the space has none."""
        trial = StandInTrial(None, {**params, self.facts.name: self.facts.target})
        try:
            return self.facts.space(trial, self.facts.workload, self.facts.fixed)
        except (ConfigError, ValueError):
            return None

    def _params(self, config: TrainConfig, over_rule: float) -> dict[str, object] | None:
        """The parameters of the configuration with another rate, as near as the ranges allow; None: there are none."""
        rate = rate_at(config, self.facts.workload, over_rule)
        changed = dataclasses.replace(config, optimizer=dataclasses.replace(config.optimizer, peak_lr=rate))
        return nearest_parameters(self.facts.space, changed, self.facts.workload, self.facts.fixed)


def _finished_runs(trials: Sequence[FrozenTrial], objective: Objective) -> list[_TunedRun]:
    done = [t for t in trials if t.state == TrialState.COMPLETE and t.values]
    found = [
        _TunedRun(dict(t.params), TrainConfig.from_dict(dict(configuration(t))), objective.gain(t.values[0]))
        for t in done
    ]
    return [run for run in found if run.config.optimizer.peak_lr > 0]


def _expected_gain(runs: Sequence[_TunedRun], facts: TransferFacts) -> float:
    """The best values of the batches continued to the target by a line, which is never better than the best of them."""
    best: dict[int, float] = {}
    for run in runs:
        best[run.batch] = max(run.gain, best.get(run.batch, run.gain))
    line = fit_line(list(best), list(best.values()), [1.0] * len(best), Belief(1.0, 1.0))
    worst = facts.objective.gain(facts.objective.worst)
    expected = min(line.at(facts.target), max(best.values()))
    return max(expected, worst) if math.isfinite(worst) else expected


def _inside(place: float) -> float:
    return min(max(place, 0.0), math.nextafter(1.0, 0.0))
