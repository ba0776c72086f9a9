"""From a configuration to the parameters of a space that come nearest to it: the inverse of a space."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from bigbatch.search_spaces.distribution import Distribution
from bigbatch.search_spaces.registry import Space
from bigbatch.search_spaces.trial import StandInTrial
from bigbatch.search_spaces.workload import Workload
from bigbatch.train_loop.config import TrainConfig, known_key


def nearest_parameters(
    space: Space, config: TrainConfig, workload: Workload, pinned: Mapping[str, object] | None = None
) -> dict[str, object] | None:
    """The parameters of the trial that is most like ``config``. A value outside of its range becomes the range's end.

    Returns None if the space has no inverse, or cannot have the configuration's optimizer or batch.
    """
    fixed = {full: value for name, value in (pinned or {}).items() if (full := known_key(name)) is not None}
    wanted = space.inverse(config, dataclasses.replace(workload, fixed=fixed)) if space.inverse else None
    if wanted is None:
        return None
    trial = _NearestTrial(wanted)
    found = space(trial, workload, pinned)
    if (found.optimizer.name, found.batch.global_size) != (config.optimizer.name, config.batch.global_size):
        return None
    return trial.params


class _NearestTrial(StandInTrial):
    """Takes wanted values as far as the ranges allow; a parameter that nobody wants has the middle of its range."""

    def __init__(self, wanted: Mapping[str, object]) -> None:
        super().__init__(None)
        self._wanted = wanted

    def _suggest(self, name: str, distribution: Distribution) -> Any:
        if name in self._wanted:
            self._fixed[name] = _nearest(self._wanted[name], distribution)
        return super()._suggest(name, distribution)


def _nearest(value: Any, distribution: Distribution) -> object:
    if distribution.kind != "categorical":
        return distribution.nearest(value)
    kept = distribution.kept(value)
    return kept if distribution.contains(kept) else distribution.choices[0]
