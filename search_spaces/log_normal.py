"""Soft priors: what is believed about a parameter before the first trial."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

from bigbatch.train_loop.config import ConfigError

_NORMAL = NormalDist()


@dataclass(frozen=True)
class LogNormal:
    """The logarithm of a parameter is believed to be normal around ``log(centre)``, cut off at the range's ends.

    A search draws most of its first trials near the centre, and a few far from it. Raises ConfigError for a centre that
    is not above 0 or a factor that is not above 1.
    """

    centre: float = 1.0
    factor: float = 4.0
    """One standard deviation, as a ratio: two thirds of the belief lie from centre/factor to centre × factor."""

    def __post_init__(self) -> None:
        if not (0 < self.centre < math.inf and 1 < self.factor < math.inf):
            raise ConfigError(
                f"a log-normal prior needs a centre above 0 and a factor above 1; got {self.centre} and {self.factor}. "
                "Write e.g. LogNormal(centre=1.0, factor=4.0)."
            )

    def value(self, part: float, low: float, high: float) -> float:
        """The value within ``low`` to ``high`` below which ``part`` (0 to 1) of the belief in that range lies."""
        first, last = self._part_below(low), self._part_below(high)
        below = min(max(first + part * (last - first), 1e-15), 1 - 1e-15)  # the normal's inverse is infinite at 0 and 1
        value = self.centre * math.exp(_NORMAL.inv_cdf(below) * math.log(self.factor))
        # Rounding may lead just outside.
        return min(max(value, low), high)

    def part(self, value: float, low: float, high: float) -> float:
        """Inverse of ``value``: how much of the belief in the range lies below it. 0.5 if the range is one point."""
        first, last = self._part_below(low), self._part_below(high)
        inside = min(max(value, low), high)
        return (self._part_below(inside) - first) / (last - first) if last > first else 0.5

    def _part_below(self, value: float) -> float:
        return _NORMAL.cdf(math.log(value / self.centre) / math.log(self.factor))
