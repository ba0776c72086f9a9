"""Confirm the best trials of a finished search: train them again with seeds that the search did not use.

The best of many trials is chosen for its value, so a part of that value is luck with the validation examples, the
initial weights and the data order. Fresh seeds give other weights and another order, so the mean over them is free of
the last two parts ("regression to the mean"), and a trial is called best by this mean. All seeds validate on the same
examples, so the luck with the examples stays; only held-out examples show how large it is (reported.py).

The default rule confirms the search's answer and its best trial. If their means show that the answer is worse by more
than the tolerance, the next value below that may be good enough is confirmed as well, and so on: otherwise only the
value of the best trial, mostly the smallest batch, could become the answer. If the answer itself is the best trial, its
mean is compared with the search's own value of the next candidate.

A confirmation is a trial of the study with the parameters of the confirmed trial, ``CONFIRMS_ATTR`` and ``SEED_ATTR``.
It runs to its end, does not count as one of ``--trials``, and no strategy sees it. Which confirmations are missing is a
function of the study: a search that was killed runs only those.

Seeds: the search's seed + 1, + 2, … The trials of a search all have the search's seed. Each confirmed trial gets the
same fresh seeds, so that they compare.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from optuna.trial import TrialState

from bigbatch.tune.runs.confirm_rule import AFFORDABLE_SHARE, AFFORDABLE_WORKER_S, LEAST_TRIALS, ConfirmRule
from bigbatch.tune.runs.frontier import FrontierFacts, frontier_of, value_of_trial
from bigbatch.tune.runs.reported import confirmed_trials
from bigbatch.tune.runs.run import (
    SEED_ATTR,
    AnyTrial,
    Kind,
    before_equal_ones,
    configuration,
    confirmed_by,
    counted_trials,
    epoch_records,
    given_trials,
    of_kind,
    planned_epochs,
    search_trials,
    trials_per_gpu_of,
)
from bigbatch.tune.runs.tables import epoch_s

LEAST_SEEDS = 2
"""The default rule takes fewer fresh seeds if it cannot afford all of them, but never a single one: one seed says
nothing about others."""
SEEDS = 2**31


@dataclass(frozen=True)
class Confirmation:
    """One run that is still to be made."""

    trial: int
    """Number of the trial that it confirms."""
    seed: int


@dataclass(frozen=True)
class ConfirmationFacts:
    """What decides which trials are confirmed, besides the study."""

    rule: ConfirmRule
    seed: int
    """Of the search."""
    frontier: FrontierFacts = FrontierFacts()
    most_worker_s: float | None = None
    """What the default rule may use of a budget. None: AFFORDABLE_SHARE of what was trained, or more."""


def missing_confirmations(trials: Sequence[AnyTrial], facts: ConfirmationFacts) -> list[Confirmation]:
    """The confirmations that the rule asks for and the study does not have yet, in the order in which they run.

    The most important comes first: all seeds of the answer's best trial, then those of the best trial of all, then the
    other values of the frontier; then the second-best trials of these values, and so on. A confirmation that has failed
    is not missing: ``--retry-failed`` repeats it.
    """
    there = {(confirmed_by(t), t.user_attrs.get(SEED_ATTR)) for t in of_kind(trials, Kind.CONFIRMATION)}
    wanted = [Confirmation(t.number, seed) for t, seeds in trials_to_confirm(trials, facts) for seed in seeds]
    return [one for one in wanted if (one.trial, one.seed) not in there]


def fresh_seeds(facts: ConfirmationFacts, count: int) -> list[int]:
    """The first fresh seeds of the search."""
    # TrainConfig takes seeds below 2**31.
    return [(facts.seed + 1 + i) % SEEDS for i in range(count)]


def trials_to_confirm(trials: Sequence[AnyTrial], facts: ConfirmationFacts) -> list[tuple[AnyTrial, Sequence[int]]]:
    """The trials that the rule confirms, by importance, each with its fresh seeds."""
    searched = search_trials(trials)
    if facts.rule.affordable:
        return _affordable(searched, of_kind(trials, Kind.CONFIRMATION), facts)
    points, seeds = _points(searched, facts), fresh_seeds(facts, facts.rule.seeds)
    return [(point[rank], seeds) for rank in range(facts.rule.best) for point in points if rank < len(point)]


def best_of_each_value(trials: Sequence[AnyTrial], facts: ConfirmationFacts) -> dict[object, list[AnyTrial]]:
    """Value of the frontier → as many of its finished trials as may be confirmed, the best first.

    If two or more may be confirmed, the best given configuration (e.g. a published recipe) is one of them: the last
    one, if it is not among the best. So luck with one seed alone cannot make the result worse than what is published.
    """
    searched, most = search_trials(trials), max(1, facts.rule.best)
    done = [t for t in counted_trials(searched) if t.state == TrialState.COMPLETE and t.values]
    given = given_trials(searched)
    groups: dict[object, list[AnyTrial]] = {}
    for trial in sorted(done, key=lambda t: (-facts.frontier.objective.gain(t.values[0]), before_equal_ones(t, given))):
        group = groups.setdefault(value_of_trial(trial, facts.frontier), [])
        if len(group) == most and (most == 1 or trial.number not in given or any(t.number in given for t in group)):
            continue
        if configuration(trial) not in map(configuration, group):  # the same configuration twice is one candidate
            group[most - 1 :] = [trial]
    return groups


def _points(searched: Sequence[AnyTrial], facts: ConfirmationFacts) -> list[list[AnyTrial]]:
    """For each value of the frontier its finished trials, the best first; the answer's value first, then the best's."""
    groups, frontier = best_of_each_value(searched, facts), frontier_of(searched, facts.frontier)
    if frontier is None:
        return list(groups.values())
    first = [row.value for row in (frontier.answer_row, frontier.reference) if row and frontier.usable]
    return [
        groups[value] for value in dict.fromkeys([*first, *(row.value for row in frontier.rows)]) if value in groups
    ]


def _affordable(
    searched: Sequence[AnyTrial], confirmations: Sequence[AnyTrial], facts: ConfirmationFacts
) -> list[tuple[AnyTrial, Sequence[int]]]:
    """The answer's trial and the best one, and the next candidates if fresh seeds refute the answer, as far as this
    costs little by the epochs of the search. Empty for fewer than LEAST_TRIALS trials, or without an answer."""
    frontier = frontier_of(searched, facts.frontier)
    if len(counted_trials(searched)) < LEAST_TRIALS or frontier is None or frontier.answer is None:
        return []
    best = {value: group[0] for value, group in best_of_each_value(searched, facts).items()}
    first = dict.fromkeys([frontier.rows[frontier.answer].value, frontier.reference.value])
    below = [row.value for row in reversed(frontier.rows[: frontier.answer]) if frontier.may_be_good_enough(row)]
    workers, left_s = facts.frontier.workers, facts.most_worker_s
    if left_s is None:
        used_s = sum(workers / trials_per_gpu_of(t) * epoch_s(record) for t in searched for record in epoch_records(t))
        left_s = max(AFFORDABLE_SHARE * used_s, AFFORDABLE_WORKER_S)
    again_s = left_s if facts.most_worker_s is None else 0.0
    found: list[tuple[AnyTrial, Sequence[int]]] = []
    for value in dict.fromkeys([*first, *below]):
        if value not in first:
            if not _answer_fell_below(best[value], found, searched, confirmations, facts):
                break
            left_s, again_s = left_s + again_s, 0.0
        cost_s = run_worker_s(best[value], workers)
        count = facts.rule.seeds if facts.rule.seeds * cost_s <= left_s else int(left_s / cost_s)
        if count >= min(LEAST_SEEDS, facts.rule.seeds):
            left_s -= count * cost_s
            found.append((best[value], fresh_seeds(facts, count)))
        elif not found:  # the answer's
            break
    return found


def _answer_fell_below(
    candidate: AnyTrial,
    asked: Sequence[tuple[AnyTrial, Sequence[int]]],
    searched: Sequence[AnyTrial],
    confirmations: Sequence[AnyTrial],
    facts: ConfirmationFacts,
) -> bool:
    """Whether all confirmations that were ``asked`` for have ended, and by their results the answer is a value before
    the candidate's, or, if only one trial was confirmed, is worse than the candidate by more than the tolerance.

    Runs that ended without a result are ignored. False if a trial has no other runs, until they are repeated.
    """
    numbers = {trial.number for trial, _ in asked}
    of_asked = [t for t in confirmations if confirmed_by(t) in numbers]
    ended = {(confirmed_by(t), t.user_attrs.get(SEED_ATTR)) for t in of_asked if t.state.is_finished()}
    wanted = {(trial.number, seed) for trial, seeds in asked for seed in seeds}
    known = [*searched, *of_asked]
    results = confirmed_trials(known, facts.frontier.objective)
    if not (wanted <= ended and all(t.state.is_finished() for t in of_asked) and numbers <= results.keys()):
        return False
    frontier = frontier_of(known, facts.frontier)
    if frontier is None or frontier.answer is None or frontier.answer_best is None or not candidate.values:
        return False
    if len(asked) == 1:
        gain = facts.frontier.objective.gain
        return gain(candidate.values[0]) - gain(frontier.answer_best.objective) > frontier.allowance
    return value_of_trial(candidate, facts.frontier) in [row.value for row in frontier.rows[frontier.answer + 1 :]]


def run_worker_s(trial: AnyTrial, workers: int) -> float:
    """Device seconds of a whole run of the trial's configuration, from its measured epochs."""
    seconds = [epoch_s(record) for record in epoch_records(trial)]
    if not seconds:
        return 0.0
    return (planned_epochs(trial) or len(seconds)) * statistics.median(seconds) * workers / trials_per_gpu_of(trial)
