"""The rows that are not used yet: what a proposal becomes in a replay.

Nobody recorded the run of exactly the proposed parameters. The trial gets the nearest unused row's parameters instead,
in the study too, so that the strategy learns what was tried.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial

from bigbatch.train_loop.config import ConfigError
from bigbatch.tune.models.unit_space import UnitSpace
from bigbatch.tune.simulate.curves import CurveTable


def _contains(distribution: BaseDistribution, value: object) -> bool:
    """Whether a value is in a distribution; one of another type is not."""
    is_choice = isinstance(distribution, CategoricalDistribution)
    if not is_choice and (isinstance(value, bool) or not isinstance(value, (int, float))):
        return False
    try:
        # The test by which Optuna itself refuses a value; it has no public one.
        return distribution._contains(distribution.to_internal_repr(value))
    except (TypeError, ValueError):  # a choice that is not declared
        return False


class RowPool:
    """The rows of a table, each given out once."""

    def __init__(self, table: CurveTable) -> None:
        self.table = table
        self._space = UnitSpace(table.dimensions)
        rows = range(len(table.curves))
        outside = next((row for row in rows if not self._is_inside(row)), None)
        if outside is not None:
            raise ConfigError(
                f"the space must hold every row of {table.name}; got {table.params(outside)}, which is outside. "
                "Widen the space, or leave out those rows."
            )
        self._positions = np.array([self._space.encode(table.params(row)) for row in rows])
        self._free = np.ones(len(table.curves), bool)
        self._row_of: dict[int, int] = {}

    def _is_inside(self, row: int) -> bool:
        params = self.table.params(row)
        return all(
            _contains(d.distribution, params[d.name]) if d.name in params else True for d in self.table.dimensions
        ) and all((d.name in params) == d.is_active(params) for d in self.table.dimensions)

    @property
    def left(self) -> int:
        """How many rows are unused."""
        return int(self._free.sum())

    def take(self, number: int, proposed: Mapping[str, object]) -> int:
        """The row for trial ``number``: the unused one that is nearest to what was proposed. One must be left.

        A trial that had to wait for room in the budget keeps the row that it was given first.
        """
        if number in self._row_of:
            return self._row_of[number]
        rows = np.flatnonzero(self._free)
        distances = ((self._positions[rows] - self._space.encode(proposed)) ** 2).sum(axis=1)
        row = int(rows[distances.argmin()])
        self._free[row] = False
        self._row_of[number] = row
        return row

    def row(self, number: int) -> int:
        """The row that trial ``number`` has."""
        return self._row_of[number]

    def hand_on(self, paused: int, number: int) -> None:
        """Trial ``number`` continues the paused one: it has the same row."""
        self._row_of[number] = self._row_of[paused]


class SnappingSampler(BaseSampler):
    """Asks a sampler for the whole configuration and gives the trial the nearest unused row's."""

    def __init__(self, inner: BaseSampler, pool: RowPool) -> None:
        self._inner, self._pool = inner, pool

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        """As the inner sampler."""
        self._inner.before_trial(study, trial)

    def after_trial(self, study: Study, trial: FrozenTrial, state: object, values: object) -> None:
        """As the inner sampler."""
        self._inner.after_trial(study, trial, state, values)  # type: ignore[arg-type]

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """All parameters: every one comes from the row."""
        return {d.name: d.distribution for d in self._pool.table.dimensions}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, object]:
        """The parameters of the row nearest to the proposal."""
        inner, proposed = self._inner, dict[str, object]()
        own_space = inner.infer_relative_search_space(study, trial)
        together = inner.sample_relative(study, trial, own_space)
        for d in self._pool.table.dimensions:
            if d.is_active(proposed):
                known = d.name in together
                value = together.get(d.name)
                proposed[d.name] = value if known else inner.sample_independent(study, trial, d.name, d.distribution)
        return self._pool.table.params(self._pool.take(trial.number, proposed))

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> object:
        """Never asked: ``sample_relative`` gives every parameter that exists."""
        raise AssertionError(f"{param_name} is no parameter of trial {trial.number}'s row")
