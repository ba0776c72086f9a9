"""What ``--transfer-to`` and ``--fidelity`` find that a second search with ``--warm-start`` does not, by replay.

    python benchmarks/two_parts.py --curves t_c8.jsonl [--cheap epochs=FILE:0.375 subset=FILE:0.25] [--seeds 32]
        [--families projected wide steps] [--output benchmarks/results/two_parts.json]

**A larger batch.** The first part is the same for all arms: FIRST trials at the smaller batches. Then SECOND whole runs
at the largest batch, one after the other: ``transfer`` as ``--transfer-to`` chooses them (the rule of
tune/strategies/transfer.py in the parameters of a table), ``warm`` as ``--strategy curves --warm-start`` does, ``half``
as that with half of the runs at what the first part found best, ``scaled`` as ``warm`` with rates scaled by the linear
rule (only where a table has rates and no multiples of a rule), ``cold`` without the first part.

**Cheap runs.** ``--cheap`` names recorded runs of the same configurations with fewer epochs, images or pixels, and what
one of them costs in whole runs. The first part are FIRST cheap runs. Then ``finalists`` as ``--fidelity`` chooses them,
``warm`` and ``half`` as above. ``plain`` is one search without cheap runs, of the same cost in all.

Figures are regrets in points after each number of AFTER whole runs beyond the first part: mean, and the mean difference
to the arm of one command with its 95 % bootstrap interval.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy

import argparse  # noqa: E402
import json  # noqa: E402
import math  # noqa: E402
from collections.abc import Mapping, Sequence  # noqa: E402
from dataclasses import dataclass, replace  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402
from optuna.distributions import BaseDistribution, CategoricalDistribution  # noqa: E402
from optuna.samplers import BaseSampler, RandomSampler  # noqa: E402
from optuna.study import Study  # noqa: E402
from optuna.trial import FrozenTrial, TrialState  # noqa: E402
from store import store  # noqa: E402

from bigbatch.tune.plan.warm_start import _few_values, _ranked  # noqa: E402
from bigbatch.tune.simulate import CurveTable, ReplayedEpoch, read_curves, synthetic_table  # noqa: E402
from bigbatch.tune.simulate.compare import outcome_of, regret_at  # noqa: E402
from bigbatch.tune.simulate.replay import Replay, replay  # noqa: E402
from bigbatch.tune.strategies.batch_rule import PLACE, RATE, BatchLine, fit_line, goodness  # noqa: E402
from bigbatch.tune.strategies.named import make_strategy  # noqa: E402
from bigbatch.tune.strategies.protocol import Fits, Lasts, SearchFacts, Strategy, TrialDecision  # noqa: E402
from bigbatch.tune.strategies.qmc import value_at  # noqa: E402
from bigbatch.tune.strategies.transfer import MOST_PREDICTED, NARROWEST, PLACE_SD, WIDEST  # noqa: E402
from bigbatch.tune.strategies.unit_space import position  # noqa: E402
from bigbatch.tune.study.knowledge import KnownStudy, KnownTrial  # noqa: E402
from bigbatch.tune.study.provenance import provenance  # noqa: E402

FIRST, SECOND, SLOTS = 18, 6, 2
AFTER = (1, 2, 3, 4, 6)
BATCHES, RATES = ("batch", "global_batch_size"), ("lr_multiplier", "peak_lr")
WORST = 0.2
"""A regret counts at most so much: a search that has found nothing yet would outweigh all others."""


@dataclass
class Proposes(BaseSampler):
    """Proposes given parameters, or what a rule makes of the study."""

    params: Any

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return {}

    def sample_relative(self, study: Study, trial: FrozenTrial, search_space: Any) -> dict[str, Any]:
        return dict(self.params(study) if callable(self.params) else self.params)

    def sample_independent(self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: Any) -> Any:
        return RandomSampler(seed=trial.number).sample_independent(study, trial, param_name, param_distribution)


@dataclass(frozen=True)
class Begins:
    """A strategy whose first trials are given."""

    inner: Strategy
    first: Sequence[Any]

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def capabilities(self) -> Any:
        return self.inner.capabilities

    def sampler(self, number: int) -> BaseSampler:
        return Proposes(self.first[number]) if number < len(self.first) else self.inner.sampler(number)

    def look(self, study: Study, trial: FrozenTrial, epoch: int) -> TrialDecision:
        return self.inner.look(study, trial, epoch)

    def to_continue(self, study: Study, fits: Fits | None = None, lasts: Lasts | None = None) -> FrozenTrial | None:
        return self.inner.to_continue(study, fits, lasts)

    def is_over(self, study: Study) -> bool:
        return self.inner.is_over(study)


def first_of(table: CurveTable, names: Sequence[str]) -> str:
    return next(d.name for d in table.dimensions if d.name in names)


def at_batches(table: CurveTable, batches: Sequence[Any], *, with_batch: bool) -> CurveTable:
    """The rows of these batches."""
    name = first_of(table, BATCHES)
    curves = tuple(curve for curve in table.curves if curve.params[name] in batches)
    if with_batch:
        space = tuple(
            replace(d, distribution=CategoricalDistribution(list(batches))) if d.name == name else d
            for d in table.dimensions
        )
        return replace(table, curves=curves, declared=space)
    return replace(table, curves=curves, declared=table.dimensions).without([name])


def known_of(table: CurveTable, found: Sequence[ReplayedEpoch], group: str | None) -> list[KnownTrial]:
    """What ``--warm-start`` reads of a search: each configuration with its values."""
    rows = {frozenset(table.params(row).items()): row for row in range(len(table.curves))}
    values: dict[int, dict[int, float]] = {}
    for epoch in found:
        one = values.setdefault(rows[frozenset(epoch.parameters.items())], {})
        if epoch.value is not None:
            one[len(one) + 1] = epoch.value
    known = []
    lost = {rows[frozenset(e.parameters.items())] for e in found if e.value is None}
    for number, (row, one) in enumerate(values.items()):
        curve, params = table.curves[row], dict(table.params(row))
        batch = params.pop(group) if group else None
        known.append(KnownTrial(number, params, _few_values(one, curve.epochs), curve.epochs, row in lost, batch))
    return [trial for trial in known if trial.values or trial.diverged]


def search(table: CurveTable, strategy: str, stopping: str, seed: int, trials: int | None, **more: Any) -> Replay:
    """One search. ``first``: given trials; ``known``: of other studies; ``budget_h``, ``slots``."""
    known = more.get("known", ())

    def make(facts: SearchFacts) -> Any:
        made = make_strategy(strategy, stopping, replace(facts, knowledge=known))
        return Begins(made, more.get("first", ()))

    return replay(table, make, more.get("slots", 1), seed, more.get("budget_h", math.inf), trials=trials)


def regrets(table: CurveTable, found: Replay) -> list[float]:
    """The regret after each number of AFTER runs that have ended, diverged ones included."""
    ends = [epoch for epoch in found.epochs if epoch.finished or epoch.value is None]
    best: list[float | None] = [None]
    for end in ends:
        values = [value for value in (best[-1], end.value) if value is not None]
        best.append(table.objective.best(values))
    return [min(WORST, table.regret(best[min(n, len(ends))])) for n in AFTER]


# The second part of --transfer-to, in the parameters of a table


@dataclass(frozen=True)
class Transferred:
    """As tune/strategies/transfer.py. ``known``: the finished trials of the first part."""

    table: CurveTable
    target: int
    known: Sequence[KnownTrial]
    seed: int

    def rule(self, params: Mapping[str, Any], batch: int) -> float:
        """The published rate; 1 where the table has multiples of it."""
        if first_of(self.table, RATES) == "lr_multiplier":
            return 1.0
        return 0.1 * batch / 256 * float(params.get("one_minus_momentum", 0.1)) / 0.1

    def predictions(self) -> list[tuple[dict[str, Any], float]]:
        by: dict[Any, list[KnownTrial]] = {}
        for trial in self.known:
            by.setdefault(trial.params.get("optimizer"), []).append(trial)
        order = sorted(by.values(), key=lambda t: max((one.group, gain_of(one)) for one in t), reverse=True)
        return [self._prediction(trials) for trials in order]

    def _prediction(self, trials: Sequence[KnownTrial]) -> tuple[dict[str, Any], float]:
        batches, gains = [int(str(t.group)) for t in trials], [gain_of(t) for t in trials]
        weights, rate = goodness(batches, gains), first_of(self.table, RATES)
        base = dict(max(zip(batches, gains, trials, strict=True), key=lambda one: one[:2])[2].params)
        rates = [math.log(t.params[rate] / self.rule(t.params, b)) for t, b in zip(trials, batches, strict=True)]
        line: BatchLine = fit_line(batches, rates, weights, RATE)
        for d in self.table.dimensions:
            having = [(t, b, w) for t, b, w in zip(trials, batches, weights, strict=True) if d.name in t.params]
            if d.name == rate or isinstance(d.distribution, CategoricalDistribution) or not having:
                continue
            places = [position(t.params[d.name], d.distribution) for t, _, _ in having]
            at = fit_line([b for _, b, _ in having], places, [w for *_, w in having], PLACE).at(self.target)
            if d.name in base:
                base[d.name] = value_at(inside(at), d.distribution)
        base[rate] = self._rate(base, line.at(self.target))
        return base, min(max(line.sd_at(self.target), NARROWEST), WIDEST)

    def _rate(self, params: Mapping[str, Any], over_rule: float) -> float:
        found = {d.name: d.distribution for d in self.table.dimensions}[first_of(self.table, RATES)]
        value = math.exp(over_rule) * self.rule(params, self.target)
        return float(min(max(value, found.low), found.high))  # type: ignore[attr-defined]

    def next(self, study: Study) -> dict[str, Any]:
        """The next trial at the target."""
        trials, predictions = study.get_trials(deepcopy=False), self.predictions()
        begun = len(trials) - 1
        if begun < min(len(predictions), MOST_PREDICTED):
            return predictions[begun][0]
        done = [t for t in trials if t.state == TrialState.COMPLETE]
        best = max(done, key=lambda t: t.values[0]).params if done else predictions[0][0]
        own = [sd for params, sd in predictions if params.get("optimizer") == best.get("optimizer")]
        return self._near(best, (own or [predictions[0][1]])[0], begun)

    def _near(self, params: Mapping[str, Any], rate_sd: float, number: int) -> dict[str, Any]:
        rng, name = np.random.default_rng([self.seed, self.target, number // 2]), first_of(self.table, RATES)
        side, moved = 1 if number % 2 == 0 else -1, dict(params)
        step = side * abs(float(rng.normal(0, rate_sd)))
        over = math.log(params[name] / self.rule(params, self.target)) + step
        for d in self.table.dimensions:
            move = side * float(rng.normal(0, PLACE_SD))
            if d.name in params and d.name != name and not isinstance(d.distribution, CategoricalDistribution):
                moved[d.name] = value_at(inside(position(params[d.name], d.distribution) + move), d.distribution)
        moved[name] = self._rate(moved, over)
        return moved


def gain_of(trial: KnownTrial) -> float:
    return trial.values[max(trial.values)]


def inside(place: float) -> float:
    return min(max(place, 0.0), math.nextafter(1.0, 0.0))


# The two comparisons


def larger_batch(table: CurveTable, seed: int) -> dict[str, list[float]]:
    """The regrets of each arm at the largest batch."""
    name, rate = first_of(table, BATCHES), first_of(table, RATES)
    batches = sorted({curve.params[name] for curve in table.curves})
    small, target = (at_batches(table, b, with_batch=w) for b, w in ((batches[:-1], True), (batches[-1:], False)))
    first = search(small, "auto", "auto", seed, FIRST, slots=SLOTS)
    known = known_of(small, first.epochs, name)
    done = [trial for trial in known if trial.finished]
    study = (KnownStudy("first", tuple(known)),)
    ranked = [dict(t.params) for t in _ranked(study[0], batches[-1], table.objective)]
    rule = Transferred(target, batches[-1], done, seed)
    arms = {
        "transfer": search(target, "random", "none", seed, SECOND, first=[rule.next] * SECOND) if done else None,
        "warm": search(target, "curves", "none", seed, SECOND, known=study, first=ranked[: max(1, SECOND // 4)]),
        "half": search(target, "curves", "none", seed, SECOND, known=study, first=ranked[: SECOND // 2]),
        "cold": search(target, "curves", "none", seed, SECOND),
    }
    if rate == "peak_lr":
        scaled = [replace(t, params={**t.params, rate: t.params[rate] * batches[-1] / t.group}) for t in known]
        found = {d.name: d.distribution for d in target.dimensions}[rate]
        kept = KnownStudy("scaled", tuple(t for t in scaled if found._contains(t.params[rate])))
        best = [dict(t.params) for t in _ranked(kept, batches[-1], table.objective)]
        arms["scaled"] = search(target, "curves", "none", seed, SECOND, known=(kept,), first=best[:1])
    return {arm: regrets(target, found) for arm, found in arms.items() if found is not None}


def cheap_runs(table: CurveTable, cheap: CurveTable, cost: float, seed: int) -> dict[str, list[float]]:
    """The regrets of each arm after a first part of cheap runs."""
    first = search(cheap, "auto", "auto", seed, FIRST, slots=SLOTS)
    known = known_of(cheap, first.epochs, None)
    study = (KnownStudy("cheap", tuple(known)),)
    ranked = [dict(t.params) for t in _ranked(study[0], None, table.objective)]
    run_h = table.run_s / 3600
    spent_h = len(first.epochs) / cheap.max_epochs * cost * run_h
    plain = search(table, "auto", "auto", seed, None, budget_h=spent_h + SECOND * run_h)
    outcome = outcome_of(table, plain)
    arms = {
        "finalists": search(table, "random", "none", seed, SECOND, first=ranked[:SECOND]),
        "warm": search(table, "curves", "none", seed, SECOND, known=study, first=ranked[: max(1, SECOND // 4)]),
        "half": search(table, "curves", "none", seed, SECOND, known=study, first=ranked[: SECOND // 2]),
    }
    found = {arm: regrets(table, one) for arm, one in arms.items()}
    return {**found, "plain": [min(WORST, regret_at(table, outcome, spent_h + n * run_h)) for n in AFTER]}


def figures(runs: Sequence[Mapping[str, list[float]]], one_command: str) -> dict[str, Any]:
    """For each arm the mean regret, and its difference to ``one_command`` with an interval, in points."""
    rng, found = np.random.default_rng(0), {}
    for arm in dict.fromkeys(arm for run in runs for arm in run):
        both = [run for run in runs if arm in run and one_command in run]
        values, other = (100 * np.array([run[name] for run in both]) for name in (arm, one_command))
        draws = (values - other)[rng.integers(len(both), size=(2000, len(both)))].mean(axis=1)
        low, high = np.quantile(draws, (0.025, 0.975), axis=0)
        found[arm] = {
            "mean": values.mean(axis=0).round(3).tolist(),
            "median": np.median(values, axis=0).round(3).tolist(),
            "less": (values - other).mean(axis=0).round(3).tolist(),
            "interval": np.stack([low, high], 1).round(3).tolist(),
            "searches": len(both),
        }
    return found


def report(title: str, found: Mapping[str, Any]) -> None:
    print(f"{title}: regret in points after {AFTER} whole runs: mean, and the difference to the first arm")
    for arm, f in found.items():
        words = "  ".join(
            f"{m:5.2f} ({d:+.2f}, {low:+.2f} … {high:+.2f})"
            for m, d, (low, high) in zip(f["mean"], f["less"], f["interval"], strict=True)
        )
        print(f"  {arm:10} {words}", flush=True)


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--curves", type=Path, help="recorded runs of the space large_batch")
    p.add_argument("--without", nargs="*", default=["lr"])
    p.add_argument("--cheap", nargs="*", default=[], metavar="KIND=FILE:COST")
    p.add_argument("--families", nargs="*", default=["projected", "wide", "steps"])
    p.add_argument("--rows", type=int, default=400)
    p.add_argument("--seeds", type=int, default=32)
    p.add_argument("--output", type=Path)
    o = p.parse_args()
    result: dict[str, Any] = {"benchmark": "two_parts", "first": FIRST, "second": SECOND, "after": AFTER}
    result |= {"seeds": o.seeds, "provenance": provenance(), "larger_batch": {}, "cheap": {}, "raw": {}, "recorded": {}}
    seeds = range(o.seeds)
    tables = {family: [synthetic_table(family, 200 + seed, o.rows) for seed in seeds] for family in o.families}
    recorded = read_curves([o.curves]).without(o.without).at_epoch_s(300) if o.curves else None
    if recorded is not None:
        tables[recorded.name] = [recorded] * o.seeds
    for name, each in reversed(tables.items()):
        runs = [larger_batch(table, seed) for seed, table in zip(seeds, each, strict=True)]
        result["raw"][f"larger batch, {name}"] = [json.dumps(run) for run in runs]
        result["larger_batch"][name] = figures(runs, "transfer")
        report(f"larger batch, {name}", result["larger_batch"][name])
    for text in o.cheap:
        kind, file, cost = text.replace(":", "=").split("=")
        cheap = read_curves([Path(file)]).without(o.without)
        assert recorded is not None
        runs = [cheap_runs(recorded, cheap, float(cost), seed) for seed in seeds]
        result["raw"][f"cheap, {kind}"] = [json.dumps(run) for run in runs]
        result["cheap"][kind] = figures(runs, "finalists")
        result["recorded"][kind] = json.dumps([[round(v, 4) for v in curve.values] for curve in cheap.curves])
        report(f"cheap runs, {kind}", result["cheap"][kind])
    store(result, o.output)


if __name__ == "__main__":
    main()
