"""The parameters of a space as Optuna's distributions, from what ``check_space`` observed."""

from __future__ import annotations

from collections.abc import Mapping

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from bigbatch.search_spaces.check import ParamRange
from bigbatch.tune.models.protocol import Dimension


def dimensions_of(ranges: Mapping[str, ParamRange]) -> tuple[Dimension, ...]:
    """A dimension for each searched parameter, in the order of ``ranges``. Derived rates are no parameters."""
    searched = [found for found in ranges.values() if found.kind != "derived"]
    return tuple(map(_dimension, searched))


def _dimension(found: ParamRange) -> Dimension:
    always = found.always or bool(found.conditions)
    return Dimension(found.name, _distribution(found), dict(found.conditions), found.prior, always)


def _distribution(found: ParamRange) -> BaseDistribution:
    if found.kind == "categorical":
        return CategoricalDistribution(list(found.choices))  # type: ignore[arg-type]  # a space chose them
    if found.kind == "int":
        step = 1 if found.log or found.step is None else int(found.step)
        return IntDistribution(int(found.low), int(found.high), log=found.log, step=step)
    return FloatDistribution(found.low, found.high, log=found.log, step=found.step)
