"""A trial with a whole configuration, which a search tries before it proposes any."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bigbatch.base import json_values
from bigbatch.train_loop.config import TrainConfig


@dataclass(frozen=True)
class EnqueuedTrial:
    """A trial with a whole configuration. study.json keeps it, so that a resumed study needs no file."""

    source: str
    config: TrainConfig

    @property
    def label(self) -> str:
        """E.g. ``recipe:nus-lars-32k at batch 1024``. A study has each label once."""
        return f"{self.source} at batch {self.config.batch.global_size}"

    def to_dict(self) -> dict[str, object]:
        """As study.json keeps it."""
        return {"source": self.source, "config": self.config.to_dict()}


def stored_trials(stored: Mapping[str, object]) -> tuple[EnqueuedTrial, ...]:
    """The trials in study.json."""
    found = json_values.objects(stored, "enqueued")
    return tuple(EnqueuedTrial(str(one["source"]), TrainConfig.from_dict(one["config"])) for one in found)  # type: ignore[arg-type]
