"""Confirm the best trials of a finished search: train them again with seeds that the search did not use.

The best of many trials is chosen for its value, so a part of that value is luck: with its images, its initial weights
and its data order. Fresh seeds have not taken part in the choice. The mean over them has no such luck ("regression to
the mean"), whatever the number of trials was. So a trial is called best by this mean.

A confirmation is a trial of the study with the parameters of the confirmed trial, ``CONFIRMS_ATTR`` and ``SEED_ATTR``.
It runs to its end, does not count as one of ``--trials``, and no strategy sees it. Which confirmations are missing is a
function of the study: a search that was killed runs only those.

Seeds: the search's seed + 1, + 2, … The trials of a search all have the search's seed. Each confirmed trial gets the
same fresh seeds, so that they compare.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from optuna.trial import FrozenTrial, TrialState

from bigbatch.cluster.host import json_values
from bigbatch.tune.study.certainty import ERROR_RATE, mean_interval, mean_over_seeds_interval
from bigbatch.tune.study.confirm_rule import ConfirmRule
from bigbatch.tune.study.frontier import (
    FrontierFacts,
    before_equal_ones,
    confirmations,
    counted_trials,
    diverged_confirmations,
    frontier_of,
    value_of_trial,
)
from bigbatch.tune.study.objective import Objective
from bigbatch.tune.study.objectives import Objectives
from bigbatch.tune.study.retry import given_trials
from bigbatch.tune.study.tables import epoch_records, epoch_s
from bigbatch.tune.study.trial_facts import CONFIRMS_ATTR, SEED_ATTR, configuration, has_diverged, planned_epochs

LEAST_TRIALS = 6
"""The default rule confirms nothing in smaller searches: three runs would be more than half of the search again."""
AFFORDABLE_SHARE = 0.2
"""The default rule may use this part of the time that the search has trained …"""
AFFORDABLE_WORKER_S = 120.0
"""… or this many worker seconds, if they are more: 60 s on two devices. With a budget: of the budget alone."""
SEEDS = 2**31


@dataclass(frozen=True)
class Confirmation:
    """One run that is still to be made."""

    trial: int
    """Number of the trial that it confirms."""
    seed: int

    def attrs(self) -> dict[str, object]:
        """The user attributes of its trial."""
        return {CONFIRMS_ATTR: self.trial, SEED_ATTR: self.seed}


@dataclass(frozen=True)
class ConfirmationFacts:
    """What decides which trials are confirmed, besides the study."""

    rule: ConfirmRule
    seed: int
    """Of the search."""
    frontier: FrontierFacts | None = None
    objective: Objective = Objective()
    workers: int = 1
    """Of each trial."""
    most_worker_s: float | None = None
    """What the default rule may use where a budget says it. None: AFFORDABLE_SHARE of what was trained, or more."""


@dataclass(frozen=True)
class Confirmed:
    """What the fresh seeds of one trial came to. Values are those of the objective."""

    trial: int
    chosen_at: float
    """The value for which the trial was chosen."""
    seeds: tuple[int, ...]
    values: tuple[float, ...]
    """By seed. A run that diverged has the objective's worst value, which may be no number."""
    holdout: tuple[float, ...]
    """Top-1 on the validation images that made no choice, by seed; empty without them."""
    diverged: int = 0
    """How many of the runs diverged."""

    @property
    def mean(self) -> float:
        """The mean over the seeds, by which trials are compared. No number if a run diverged, where nobody knows what
        that is worth."""
        return statistics.fmean(self.values)

    def interval_of_mean(self, chosen_from: int = 1) -> tuple[float, float] | None:
        """The 95 % interval of the mean over all seeds, of an objective that is no count of right answers.

        It is Student's, so it takes the values to be about normal. None with one seed, or if a run has diverged.

        Args:
            chosen_from: confirmed trials among which this one is the best. The interval allows for this choice.
        """
        return mean_interval(self.values, ERROR_RATE / chosen_from)

    @property
    def reported(self) -> tuple[float, ...]:
        """The values that report: on the holdout where there is one."""
        return self.holdout or self.values

    def interval(self, images: int, chosen_from: int = 1) -> tuple[float, float]:
        """The 95 % interval of the mean of ``reported``, for the accuracy with any seed on any images.

        Args:
            images: on which ``reported`` was measured.
            chosen_from: confirmed trials among which this one is the best. The interval allows for this choice.
        """
        return mean_over_seeds_interval(self.reported, images, ERROR_RATE / chosen_from)


def search_trials(trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """All trials but the confirmations."""
    return [t for t in trials if CONFIRMS_ATTR not in t.user_attrs]


def missing_confirmations(trials: Sequence[FrozenTrial], facts: ConfirmationFacts) -> list[Confirmation]:
    """The confirmations that the rule asks for and the study does not have yet, in the order in which they run.

    The most important comes first: all seeds of the answer's best trial, then those of the best trial of all, then the
    other values of the frontier; then the second-best trials of these values, and so on. A confirmation that has failed
    is not missing: ``--retry-failed`` repeats it.
    """
    there = {
        (t.user_attrs[CONFIRMS_ATTR], t.user_attrs.get(SEED_ATTR)) for t in trials if CONFIRMS_ATTR in t.user_attrs
    }
    wanted = [Confirmation(t.number, seed) for t in trials_to_confirm(trials, facts) for seed in seeds_of(facts)]
    return [one for one in wanted if (one.trial, one.seed) not in there]


def seeds_of(facts: ConfirmationFacts) -> list[int]:
    """The fresh seeds of each confirmed trial."""
    return [(facts.seed + 1 + i) % SEEDS for i in range(facts.rule.seeds)]


def trials_to_confirm(trials: Sequence[FrozenTrial], facts: ConfirmationFacts) -> list[FrozenTrial]:
    """The trials that the rule confirms, by importance."""
    searched = search_trials(trials)
    points = _points(searched, facts)
    if facts.rule.affordable:
        return _affordable([point[0] for point in points], searched, facts)
    ranks = range(facts.rule.best)
    return [point[rank] for rank in ranks for point in points if rank < len(point)]


def confirmed_trials(trials: Sequence[FrozenTrial], objective: Objective) -> dict[int, Confirmed]:
    """Number of a confirmed trial → what came out. Runs that have not ended, or failed otherwise, are left out."""
    found: dict[int, list[tuple[int, float, float | None]]] = {}
    for trial in confirmations(trials):
        holdout: float | None = None
        if trial.state == TrialState.COMPLETE and trial.values:
            value = trial.values[0]
            records = epoch_records(trial)
            holdout = json_values.number_or_none(records[-1], "holdout_top1") if records else None
        elif has_diverged(trial):
            value = objective.worst
        else:
            continue
        seed = int(trial.user_attrs.get(SEED_ATTR, 0))
        found.setdefault(int(trial.user_attrs[CONFIRMS_ATTR]), []).append((seed, value, holdout))
    by_number, lost = {trial.number: trial for trial in trials}, diverged_confirmations(trials)  # tables lack some
    return {
        number: _confirmed_from(by_number[number], sorted(runs, key=lambda run: run[0]), lost[number], objective)
        for number, runs in found.items()
        if number in by_number
    }


def _confirmed_from(
    trial: FrozenTrial, runs: Sequence[tuple[int, float, float | None]], diverged: int, objective: Objective
) -> Confirmed:
    held = [run[2] for run in runs]
    on_holdout = any(value is not None for value in held) and objective.name == "val_top1"
    return Confirmed(
        trial=trial.number,
        chosen_at=trial.values[0] if trial.values else math.nan,
        seeds=tuple(run[0] for run in runs),
        values=tuple(run[1] for run in runs),
        # A diverged run has no accuracy on the holdout: it is at chance there too.
        holdout=tuple(objective.worst if value is None else value for value in held) if on_holdout else (),
        diverged=diverged,
    )


def best_of_each_value(trials: Sequence[FrozenTrial], facts: ConfirmationFacts) -> dict[object, list[FrozenTrial]]:
    """Value of the frontier → as many of its finished trials as may be confirmed, the best first.

    Without a frontier there is only the value None. If two or more may be, the best configuration that was given, as
    published recipes are, is one of them: the last one, if it is not among the best. Then what is found is never worse
    than what is published for no better reason than luck with one seed.
    """
    searched, most = search_trials(trials), max(1, facts.rule.best)
    done = [t for t in counted_trials(searched) if t.state == TrialState.COMPLETE and t.values]
    given = given_trials(searched)
    groups: dict[object, list[FrozenTrial]] = {}
    for trial in sorted(done, key=lambda t: (-facts.objective.gain(t.values[0]), before_equal_ones(t, given))):
        group = groups.setdefault(value_of_trial(trial, facts.frontier) if facts.frontier else None, [])
        if len(group) == most and (most == 1 or trial.number not in given or any(t.number in given for t in group)):
            continue
        if configuration(trial) not in map(configuration, group):  # the same configuration twice is one candidate
            group[most - 1 :] = [trial]
    return groups


def _points(searched: Sequence[FrozenTrial], facts: ConfirmationFacts) -> list[list[FrozenTrial]]:
    """For each value of the frontier its finished trials, the best first; the answer's value first, then the best's.

    The default rule has only these two, which may be one.
    """
    groups = best_of_each_value(searched, facts)
    frontier = frontier_of(searched, facts.frontier) if facts.frontier else None
    if frontier is None:
        return list(groups.values())
    first = [frontier.answer_row.value, frontier.reference.value]
    others = [] if facts.rule.affordable else [row.value for row in frontier.rows]
    order = dict.fromkeys([*first, *others])
    return [groups[value] for value in order if value in groups]


def _affordable(
    candidates: Sequence[FrozenTrial], searched: Sequence[FrozenTrial], facts: ConfirmationFacts
) -> list[FrozenTrial]:
    """The first of the candidates whose confirmations cost little, measured by the epochs of the search."""
    if len(counted_trials(searched)) < LEAST_TRIALS:
        return []
    left_s = facts.most_worker_s
    if left_s is None:
        used_s = facts.workers * sum(epoch_s(record) for t in searched for record in epoch_records(t))
        left_s = max(AFFORDABLE_SHARE * used_s, AFFORDABLE_WORKER_S)
    found = []
    for trial in candidates:
        left_s -= facts.rule.seeds * run_worker_s(trial, facts.workers)
        if left_s < 0:
            break
        found.append(trial)
    return found


def run_worker_s(trial: FrozenTrial, workers: int) -> float:
    """Worker seconds of a whole run of the trial's configuration, from its measured epochs."""
    seconds = [epoch_s(record) for record in epoch_records(trial)]
    if not seconds:
        return 0.0
    return (planned_epochs(trial) or len(seconds)) * statistics.median(seconds) * workers


def best_confirmed(trials: Sequence[FrozenTrial], objectives: Objectives) -> FrozenTrial | None:
    """The trial with the best mean over fresh seeds, with none of which it diverged. If there is none: the best that
    was not confirmed; else the best mean of those that diverged; else the best one, or None."""
    confirmed, given = confirmed_trials(trials, objectives.first), given_trials(trials)
    found = [one for one in confirmed.values() if not one.diverged]
    if not found:
        searched = search_trials(trials)
        if unconfirmed := objectives.best([t for t in searched if t.number not in confirmed]):
            return unconfirmed
        found = [one for one in confirmed.values() if math.isfinite(one.mean)]
        if not found:
            return objectives.best(searched)
    by_number = {trial.number: trial for trial in trials}  # tables lack trials that wait
    best = min(
        found,
        key=lambda one: (-objectives.first.gain(one.mean), before_equal_ones(by_number[one.trial], given)),
    )
    return by_number[best.trial]
