"""Statistics that say which trials are worse than the best one, and how accurate one is.

The best of many trials is chosen for its value, so part of that value is luck. The more trials there are, the larger
is this part. Both statements account for the choice and hold at 95 %:

- *Clearly worse* than the best: Fisher's exact test of the two counts of right answers. Its level is 5 % divided by
  the number of pairs of trials (Bonferroni). If all trials were equally good, at most 5 % of studies would call any
  trial worse, however the pair was picked.
- *The range* of the best (reported.py): its Clopper-Pearson interval, at a level of 5 % divided by the trials' number.

Fisher's test assumes that the two trials were validated on different images. All trials of a study use the same images
and fail on the same hard ones, so luck separates them less than the test assumes: it says "worse" too seldom rather
than too often. The effect of another seed is not included, because a study has one seed.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

ERROR_RATE = 0.05


def clearly_worse(values: Sequence[float], images: int) -> list[bool]:
    """For each trial but the first, the best one: whether it is clearly worse.

    Args:
        values: validation top-1 (0 to 1) of the trials that ran to their end, the best first.
        images: number of validation images.
    """
    level = ERROR_RATE / max(1, len(values) * (len(values) - 1) / 2)
    best, *others = (right_answers(value, images) for value in values)
    return [differ_clearly(best, other, images, level) for other in others]


def right_answers(value: float, images: int) -> int:
    """The number of right answers among ``images``, for an accuracy of ``value``."""
    # An accuracy is a count divided by the images, and the float may miss the whole number.
    return min(images, max(0, round(value * images)))


def differ_clearly(first: int, second: int, images: int, level: float) -> bool:
    """Fisher's exact test, two-sided by doubling: do two counts of right answers come from different probabilities?

    Args:
        first, second: right answers, each among ``images``.
        level: the error rate of the test.
    """
    from scipy.stats import hypergeom  # slow to import

    high, low = max(first, second), min(first, second)
    # If the probabilities are equal, the larger count is hypergeometric, given the sum of both.
    # sf(x) is the probability of more than x, and the count itself belongs to it.
    return bool(2 * hypergeom.sf(high - 1, 2 * images, high + low, images) <= level)


def clopper_pearson(count: int, images: int, error_rate: float) -> tuple[float, float]:
    """The exact interval of a proportion (Clopper and Pearson 1934). It is wrong in at most ``error_rate`` of cases."""
    from scipy.stats import beta

    # With no answer right, or none wrong, that limit's beta distribution does not exist.
    low = float(beta.ppf(error_rate / 2, count, images - count + 1)) if count else 0.0
    high = float(beta.ppf(1 - error_rate / 2, count + 1, images - count)) if count < images else 1.0
    return low, high


def mean_over_seeds_interval(values: Sequence[float], images: int, error_rate: float) -> tuple[float, float]:
    """An interval of the mean accuracy over all seeds and all images, from runs with several seeds on the same images.

    Two sources of error add up. The images: Clopper-Pearson of the mean, as if all runs failed on the same images. They
    mostly do, so the mean of several runs is hardly more certain than one run; what they do not share is counted again
    below, which makes the interval a little too wide. The seeds: Student's t of the mean. Both are combined as the
    method of variance estimates recovery does (Zou and Donner 2008), which keeps the limits within 0 and 1 where all
    answers are right.

    With one value the interval does not include the effect of the seed.

    Args:
        values: the accuracies (0 to 1) of runs that differ in their seeds alone, at least one.
        images: number of images, the same ones for all runs.
        error_rate: the interval is wrong in at most about this part of cases.
    """
    mean = statistics.fmean(values)
    low, high = clopper_pearson(right_answers(mean, images), images, error_rate)
    seeds = mean_interval(values, error_rate)
    spread = seeds[1] - mean if seeds else 0.0
    return max(0.0, mean - math.hypot(mean - low, spread)), min(1.0, mean + math.hypot(high - mean, spread))


def mean_interval(values: Sequence[float], error_rate: float) -> tuple[float, float] | None:
    """Student's t interval of the mean of normal values; None for fewer than two, or if one is no number.

    Args:
        error_rate: the interval is wrong in this part of cases.
    """
    if len(values) < 2 or not all(map(math.isfinite, values)):
        return None
    from scipy.stats import t  # slow to import

    mean = statistics.fmean(values)
    spread = float(t.ppf(1 - error_rate / 2, len(values) - 1)) * statistics.stdev(values) / math.sqrt(len(values))
    return mean - spread, mean + spread
