"""How certain the best trial of a search without a frontier is, in words."""

from __future__ import annotations

import statistics

from bigbatch.cluster.host import json_values
from bigbatch.tune.report.trial_points import StudyPoints, TrialPoint
from bigbatch.tune.study.certainty import ERROR_RATE, clopper_pearson, compare_with_best, right_answers
from bigbatch.tune.study.confirmation import Confirmed
from bigbatch.tune.study.tables import epoch_records


def best_certainty(points: StudyPoints, best: TrialPoint) -> str:
    """What chance has to do with the value of the best trial: the choice, the images and the seed.

    Intervals are those of the search's last lines. A metric that is no count of right answers has one only if it was
    confirmed.
    """
    images, held = (json_values.whole_number(points.study.description, key) for key in ("val_size", "holdout_size"))
    found = points.confirmed.get(best.number)
    if found is not None:
        return _of_confirmed(points, found, images, held)
    count = len(points.finished)
    said = [
        f"It is the best of {count} finished trials, so a part of it is luck."
        if count > 1
        else "It is the only finished trial."
    ]
    if points.study.objectives.first.has_interval and images:
        sure = compare_with_best([p.value or 0.0 for p in points.best_first], images)
        chosen = ", and it allows for the choice of the best" if count > 1 else ""
        said.append(f"Its 95 % interval is {_percents(sure.low, sure.high)}: {images:,} images measured it{chosen}.")
        said.append(_held_out(points, best, held))
        said.append("The effect of another seed is not in it.")
    return " ".join(word for word in said if word)


def _of_confirmed(points: StudyPoints, found: Confirmed, images: int, held: int) -> str:
    objective = points.study.objectives.first
    said = [f"It had {objective.worth(found.chosen_at)} when it was chosen; the fresh seeds took no part in that."]
    measured = held if found.holdout else images
    among = len(points.confirmed)
    if not objective.has_interval:
        if interval := found.interval_of_mean(among):
            between = " to ".join(map(objective.worth, interval))
            said.append(f"The 95 % interval of its mean over all seeds is {between} (Student’s t).")
        return " ".join(said)
    if not measured:
        return said[0]
    low, high = found.interval(measured, among if found.holdout else max(among, len(points.finished)))
    if found.holdout:
        mean = 100 * statistics.fmean(found.holdout)
        said.append(f"On the {held:,} validation images that took no part in the choice it has {mean:.1f} %.")
    said.append(f"The 95 % interval of its accuracy with any seed is {_percents(low, high)}.")
    return " ".join(said)


def _held_out(points: StudyPoints, best: TrialPoint, held: int) -> str:
    """The accuracy on the images that made no choice; empty without them."""
    records = next((epoch_records(trial) for trial in points.study.trials if trial.number == best.number), ())
    value = json_values.number_or_none(records[-1], "holdout_top1") if records else None
    if value is None or not held:
        return ""
    low, high = clopper_pearson(right_answers(value, held), held, ERROR_RATE)
    return (
        f"On the {held:,} validation images that took no part in the choice it has {100 * value:.1f} % "
        f"({_percents(low, high)})."
    )


def _percents(low: float, high: float) -> str:
    return f"{100 * low:.1f} to {100 * high:.1f} %"
