"""How far the ends of runs lie from what the curve model predicted at their early look.

    python benchmarks/prediction_errors.py [--curves FILE …] [--families wide projected steps] [--seeds 4]
        [--first-seed 4000] [--equivalents 24] [--output FILE.json]

Each search is a replay with ``--strategy curves --stopping look`` (search_efficiency.py). Whenever a trial is paused,
the model predicts its end, mean and standard deviation; the table knows the end. Runs that diverge or learn nothing are
left out: they are an outcome of their own. By group, before the first run of a search has ended and after it: in which
part of the cases the end lies more than two standard deviations above and below (of a normal distribution 4.6 %
together), and the root mean square of error / standard deviation, which should be 1. Prints a table and, last, one JSON
line.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy

import argparse  # noqa: E402
import json  # noqa: E402
import sys  # noqa: E402
from collections.abc import Sequence  # noqa: E402
from dataclasses import dataclass, field  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from optuna.samplers import BaseSampler  # noqa: E402
from optuna.study import Study  # noqa: E402
from optuna.trial import FrozenTrial  # noqa: E402
from replay.curves import CurveTable, RecordedCurve  # noqa: E402
from replay.search import replay  # noqa: E402
from search_efficiency import Job, Sources, group_of  # noqa: E402
from store import store  # noqa: E402

from bigbatch.tune.models.curve_data import CurveEncoder  # noqa: E402
from bigbatch.tune.models.protocol import Fits, Lasts, SearchFacts, Strategy, TrialDecision  # noqa: E402
from bigbatch.tune.storage.description import provenance  # noqa: E402
from bigbatch.tune.strategies import make_strategy  # noqa: E402

NOTHING = 0.1
"""A run that ends within this part of the way from chance to the table's best has learnt nothing."""


@dataclass
class Watched:
    """A strategy that notes at each pause how far the run's end is from its prediction."""

    inner: Strategy
    facts: SearchFacts
    table: CurveTable
    scores: list[tuple[bool, float]] = field(default_factory=list)
    """Whether a run of the search had ended by then, and the error in standard deviations."""

    def __post_init__(self) -> None:
        self.encoder = CurveEncoder(self.facts)

    def sampler(self, number: int) -> BaseSampler:
        """As the inner one."""
        return self.inner.sampler(number)

    def to_continue(self, study: Study, fits: Fits | None = None, lasts: Lasts | None = None) -> FrozenTrial | None:
        """As the inner one."""
        return self.inner.to_continue(study, fits, lasts)

    def is_over(self, study: Study) -> bool:
        """As the inner one."""
        return self.inner.is_over(study)

    def look(self, study: Study, trial: FrozenTrial, epoch: int) -> TrialDecision:
        """As the inner one; a pause is noted."""
        decision = self.inner.look(study, trial, epoch)
        if decision == TrialDecision.PAUSE and (end := self._end(trial, epoch)) is not None:
            number = self.encoder.history.first_number(trial.number)
            learned = self.encoder.learn(study, also=[number])
            if learned is not None:
                predicted = learned.end(number)
                assert predicted is not None
                mean, sd = predicted
                error = (learned.standardised(end) - mean) / sd
                self.scores.append((self.encoder.history.any_ended, error))
        return decision

    def _end(self, trial: FrozenTrial, epoch: int) -> float | None:
        """The gain at the run's end; None if it diverges or learns nothing."""
        gain, met = self.table.objective.gain, [trial.intermediate_values[e] for e in range(1, epoch + 1)]
        curve = next(c for row, c in enumerate(self.table.curves) if self._is_of(trial, met, row, c))
        worst, best = gain(self.table.worst), gain(self.table.best)
        if curve.final is None or gain(curve.final) <= worst + NOTHING * (best - worst):
            return None
        return gain(curve.final)

    def _is_of(self, trial: FrozenTrial, met: Sequence[float], row: int, curve: RecordedCurve) -> bool:
        return list(curve.values[: len(met)]) == met and self.table.params(row) == trial.params


def scores_of(table: CurveTable, seed: int, equivalents: float) -> list[tuple[bool, float]]:
    """The errors of one search, see ``Watched.scores``."""
    watched: list[Watched] = []

    def make(facts: SearchFacts) -> Strategy:
        watched.append(Watched(make_strategy("curves", "look", facts), facts, table))
        return watched[0]

    replay(table, make, 8, seed, equivalents * table.run_s / 3600)
    return watched[0].scores


def row_of(group: str, ended: bool, errors: Sequence[float]) -> dict[str, Any]:
    """A row of the table."""
    z = np.array(errors)
    return {
        "group": group,
        "a_run_has_ended": ended,
        "looks": len(z),
        "above": round(float((z > 2).mean()), 3),
        "below": round(float((z < -2).mean()), 3),
        "rms": round(float(np.sqrt((z**2).mean())), 2),
    }


def main(argv: Sequence[str] | None = None) -> int:
    p = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    p.add_argument("--curves", nargs="*", type=Path, default=[], help="files or studies")
    p.add_argument("--families", nargs="*", default=["wide", "projected", "steps"], help="invented tables")
    p.add_argument("--without", nargs="*", default=[], help="parameters that follow from others")
    p.add_argument("--seeds", type=int, default=4)
    p.add_argument("--first-seed", type=int, default=4000)
    p.add_argument("--equivalents", type=float, default=24.0, help="of mean full runs, that a search costs")
    p.add_argument("--output", type=Path)
    args = p.parse_args(argv)
    sources = Sources(tuple(args.curves), tuple(args.without), 300.0, 500, args.equivalents)
    rows, every = list[dict[str, Any]](), list[tuple[bool, float]]()
    print(f"{'group':18}{'a run ended':>12}{'looks':>7}{'> 2 sd':>8}{'< -2 sd':>8}{'rms':>7}")
    for group in [*args.families, *map(group_of, args.curves), "all"]:
        seeds = range(args.first_seed, args.first_seed + args.seeds) if group != "all" else ()
        found = [s for seed in seeds for s in scores_of(sources.table(Job(group, "", 8, seed)), seed, args.equivalents)]
        every += found
        for ended in (False, True):
            errors = [z for after, z in found or every if after == ended]
            if errors:
                rows.append(row := row_of(group, ended, errors))
                print(f"{group:18}{'yes' if ended else 'no':>12}{len(errors):7}", end="")
                print(f"{row['above']:8.1%}{row['below']:8.1%}{row['rms']:7.2f}", flush=True)
    store({"benchmark": "prediction_errors", "rows": rows, "provenance": provenance()}, args.output)
    print(json.dumps([row for row in rows if row["group"] == "all"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
