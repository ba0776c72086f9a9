"""What the confirmation of a search's best trial found, in words."""

from __future__ import annotations

from collections.abc import Mapping

from bigbatch.train_loop.config.words import epochs_text
from bigbatch.tune.plan.search_plan import SearchPlan
from bigbatch.tune.study.certainty import ERROR_RATE, clopper_pearson, right_answers
from bigbatch.tune.study.confirmation import LEAST_TRIALS, Confirmed
from bigbatch.tune.study.objective import Objective
from bigbatch.tune.watch.display import percent
from bigbatch.tune.watch.frontier_table import name_in_words
from bigbatch.tune.watch.observer import TrialView

FEW = 5
"""A sentence names at most this many values one by one."""


def confirm_lines(plan: SearchPlan) -> list[tuple[str, str]]:
    """The plan's line about confirmations; none if nothing will be confirmed."""
    rule, frontier = plan.confirm, plan.frontier
    small = not plan.open_ended and plan.trials < LEAST_TRIALS
    if not rule.best or (rule.affordable and small):
        return []
    values = len(frontier.values) if frontier else 1
    seeds = f"with {rule.seeds} fresh seed{'s' * (rule.seeds != 1)}"
    has_budget = plan.budget_gpu_hours is not None or plan.time_budget_s is not None
    if rule.affordable:
        which = "the answer and the best trial" if values > 1 else "the best trial"
        whole = "budget" if has_budget else "search's time"
        runs = min(2, values) * rule.seeds
        return [("confirm", f"{which} {seeds} (at most {runs} runs), as far as a fifth of the {whole} allows")]
    best = "the best trial" if rule.best == 1 else f"the {rule.best} best trials"
    which = f"{best} of each {name_in_words(frontier.name)}" if frontier and values > 1 else best
    kept = "; the budget keeps room for them" if has_budget else ""
    runs = rule.best * values * rule.seeds
    return [("confirm", f"{which} {seeds} ({f'at most {runs}' if values > 1 else runs} run{'s' * (runs != 1)}){kept}")]


def confirmed_words(
    found: Confirmed, objective: Objective, *, images: int, held_out: int, searched: int, among: int
) -> str:
    """How the value changed with fresh seeds, and how certain it is now.

    Args:
        images: validation images that chose.
        held_out: those that report; 0 for none.
        searched: finished trials of the search, among which this one was chosen.
        among: confirmed trials among which it is the best now.
    """
    best_of = f" It is the best of {among} confirmed trials, and the range allows for that." if among > 1 else ""
    if not objective.has_interval:
        return f"{_change(found, objective)} {_range_of_mean(found, objective, among)}{best_of}"
    said = [_change(found, objective)]
    if found.diverged:
        said.append(f"{found.diverged} of its {len(found.seeds)} runs diverged; each counts as chance.")
    low, high = found.interval(held_out if found.holdout else images, among if found.holdout else max(among, searched))
    if found.holdout:
        mean = sum(found.holdout) / len(found.holdout)
        said.append(f"On the {held_out:,} validation images that took no part in the choice it has {percent(mean)}.")
        free = "Neither the seeds nor these images chose it, so no allowance for the search is needed."
    else:
        free = f"The seeds are fresh; the {images:,} images also chose it, and the range allows for that."
    whose = "with any seed" if len(found.seeds) > 1 else "with this seed"
    said.append(f"The 95 % range of its accuracy {whose} is {100 * low:.1f} to {100 * high:.1f} %. {free}{best_of}")
    return " ".join(said)


def _range_of_mean(found: Confirmed, objective: Objective, among: int) -> str:
    """How certain the mean of another metric than an accuracy is."""
    if found.diverged:
        return f"{found.diverged} of its {len(found.seeds)} runs diverged, so it has no mean."
    interval = found.interval_of_mean(among)
    if interval is None:
        return "One seed says nothing about others: --confirm 1x3 gives a range."
    low, high = map(objective.worth, interval)
    return (
        f"The 95 % range of its mean over all seeds is {low} to {high} (Student's t). The validation examples also "
        "chose it, and the range does not allow for that."
    )


def _change(found: Confirmed, objective: Objective) -> str:
    count = len(found.seeds)
    seeds = "one fresh seed" if count == 1 else f"{count} fresh seeds"
    each = ", ".join(objective.worth(value).removesuffix(" %") for value in found.values) if 1 < count <= FEW else ""
    text = f"{objective.worth(found.chosen_at)} when it was chosen, {objective.worth(found.mean)} with {seeds}"
    text += f" ({each})." if each else "."
    lost = objective.gain(found.chosen_at) - objective.gain(found.mean)
    if objective.has_interval:
        return f"{text} The {100 * lost:.1f} points between them were luck." if 100 * lost >= 0.05 else text
    return f"{text} The {objective.worth(lost)} between them were luck." if lost > 0 else text


def holdout_words(value: float, images: int) -> str:
    """The accuracy of a trial that was not confirmed, on the images that took no part in the choice."""
    low, high = clopper_pearson(right_answers(value, images), images, ERROR_RATE)
    return (
        f"On the {images:,} validation images that took no part in the choice it has {percent(value)} "
        f"({100 * low:.1f} to {100 * high:.1f} % at 95 %)."
    )


NOT_CONFIRMED = "It was not confirmed with fresh seeds; --resume with --confirm 1x3 does that."


def by_confirmed(done: list[TrialView], confirmed: Mapping[int, Confirmed], objective: Objective) -> list[TrialView]:
    """Finished trials, best first: those that were confirmed by their means, then the others as they are, last those
    that diverged with another seed and have no mean."""
    first = [trial for trial in done if trial.number in confirmed and not confirmed[trial.number].diverged]
    first.sort(key=lambda trial: (-objective.gain(confirmed[trial.number].mean), trial.number))
    lost = [trial for trial in done if trial.number in confirmed and confirmed[trial.number].diverged]
    return [*first, *(trial for trial in done if trial.number not in confirmed), *lost]


def confirmed_best(found: Confirmed, objective: Objective, epochs: int) -> str:
    """The line that names a confirmed best trial."""
    mean = f"{objective.worth(found.mean)}, mean over {seeds_in_words(found)}"
    return f"Best: trial {found.trial}, {objective.metric.title} {mean}, after {epochs_text(epochs)}"


def seeds_in_words(found: Confirmed) -> str:
    """``3 fresh seeds``."""
    return f"{len(found.seeds)} fresh seed{'s' * (len(found.seeds) > 1)}"
