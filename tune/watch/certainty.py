"""What can be said of which trial is better, from the validation images and with the choice of the best counted.

The best of many trials is chosen for its value, so part of that value is luck, and the more trials there are, the
more of it. Both statements here hold at 95 % whichever trial is chosen:

- *Clearly worse* than the best: Fisher's exact test of the two counts of right answers, at 5 % over the number of all
  pairs of trials (Bonferroni). If all trials were equally good, one or more would be called worse in at most 5 % of
  studies, however the pair was picked.
- *The range* of the best: its Clopper-Pearson interval at 5 % over the number of trials.

Fisher's test takes the two for validated on images of their own. All trials of a study see the same ones and err on the
same hard ones, so that they differ by less luck than that: the test says "worse" too seldom rather than too often.
What another seed would change is in none of this; a study has one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

ERROR_RATE = 0.05


@dataclass(frozen=True)
class Verdict:
    """On trials in the order of their values, the best first. Values are fractions, 0 to 1."""

    low: float
    high: float
    """Range of the best one's accuracy."""
    worse: tuple[bool, ...]
    """Of the others: whether clearly worse than the best."""


def verdict(values: Sequence[float], images: int) -> Verdict:
    """``values``: validation top-1 of trials that ran to their end, the best first; ``images``: that each was measured
    on."""
    best = values[0]
    level = ERROR_RATE / max(1, len(values) * (len(values) - 1) / 2)
    low, high = clopper_pearson(right(best, images), images, ERROR_RATE / len(values))
    return Verdict(low, high, tuple(differ(right(best, images), right(v, images), images, level) for v in values[1:]))


def right(value: float, images: int) -> int:
    return min(images, max(0, round(value * images)))


def differ(first: int, second: int, images: int, level: float) -> bool:
    """Fisher's exact test, two-sided by doubling: are ``first`` and ``second`` right answers of ``images`` each of
    different probability?"""
    from scipy.stats import hypergeom  # slow to import

    high, low = max(first, second), min(first, second)
    # Given both sums, the larger count is hypergeometric where the probabilities are equal.
    return bool(2 * hypergeom.sf(high - 1, 2 * images, high + low, images) <= level)


def clopper_pearson(count: int, images: int, error_rate: float) -> tuple[float, float]:
    """The exact interval of a proportion (Clopper and Pearson 1934): it misses in at most ``error_rate`` of cases."""
    from scipy.stats import beta

    low = float(beta.ppf(error_rate / 2, count, images - count + 1)) if count else 0.0
    high = float(beta.ppf(1 - error_rate / 2, count + 1, images - count)) if count < images else 1.0
    return low, high
