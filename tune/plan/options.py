"""The options of a search, and those that a later ``--resume`` takes from the study."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypedDict

from bigbatch.base import json_values
from bigbatch.base.command_line import empty_value
from bigbatch.search_spaces.registry import BUILT_IN
from bigbatch.train_loop.config import ConfigError, known_key
from bigbatch.train_loop.config.own_names import absolute
from bigbatch.train_loop.data.catalogue import NAMES

RESUMED_OPTIONS = (
    "space", "data", "subset", "val_part", "holdout", "model", "trials", "max_epochs", "budget_gpu_hours", "strategy",
    "stopping", "workers", "set", "loss", "optimizer", "batch", "tolerance", "confirm",
    "seed", "wandb", "stage", "trainable", "metric",
    "trials_per_gpu",
)  # fmt: skip


@dataclass(frozen=True)
class SearchOptions:
    """The command line. None or empty: not given; a resumed study then supplies the value."""

    space: str | None = None
    trainable: str | None = None
    data: str | None = None
    subset: float | None = None
    val_part: float | None = None
    holdout: float | None = None
    """0: none."""
    batch: str | None = None
    model: str | None = None
    loss: str | None = None
    optimizer: str | None = None
    no_check: bool = False
    accept_changed_code: bool = False
    trials: int | None = None
    max_epochs: int | None = None
    tolerance: str | None = None
    objective: str | None = None
    objectives: str | None = None
    metric: tuple[str, ...] = ()
    """Further metrics of validation; with absolute paths in the study."""
    baseline: tuple[str, ...] = ()
    """``METRIC=VALUE``, or a number for the only objective. The study keeps the values under a key of their own."""
    target: str | None = None
    """A resumed study knows its objective (``objective_options.with_studys_objective``)."""
    confirm: str | None = None
    budget_gpu_hours: float | None = None
    time_budget: str | None = None
    strategy: str | None = None
    stopping: str | None = None
    workers: int | None = None
    trials_per_gpu: str | None = None
    """``auto`` or a number."""
    set: tuple[str, ...] = ()
    stage: str | None = None
    enqueue: tuple[str, ...] = ()
    """The study does not keep these paths; it keeps the configurations, in ``enqueued``."""
    warm_start: tuple[str, ...] = ()
    """The study does not keep these paths; it keeps what those studies say, in ``warm_start``."""
    study: str | None = None
    output: str | None = None
    storage: str | None = None
    join: bool = False
    resume: bool = False
    retry_failed: bool = False
    seed: int | None = None
    address: str | None = None
    wandb: str | None = None
    dry_run: bool = False
    quiet: bool = False

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            for text in value if isinstance(value, tuple) else (value,):
                if isinstance(text, str) and not text.strip():
                    raise ConfigError(empty_value(f"--{name.replace('_', '-')}", text))

    @property
    def is_open_ended(self) -> bool:
        """Whether a budget is the only limit: there is one, and no number of trials."""
        return self.trials is None and (self.budget_gpu_hours is not None or self.time_budget is not None)

    def kept(self) -> dict[str, object]:
        """The options that a later --resume takes from the study. ``storage`` is not kept: it may hold a password."""
        values = {k: v for k, v in dataclasses.asdict(self).items() if k in RESUMED_OPTIONS and v not in (None, ())}
        if values.get("model") == "auto":  # study.json keeps the chosen network under another key
            del values["model"]
        if self.metric:
            values["metric"] = [absolute("--metric", word) for word in self.metric]
        for key in ("space", "data", "trainable"):  # --resume may run in another folder
            text = str(values.get(key, ""))
            path = f"{text.rpartition('.py:')[0]}.py" if ".py:" in text else text
            if text and text not in (*BUILT_IN, *NAMES) and os.path.exists(path):
                values[key] = os.path.abspath(text)
        for key in ("model", "loss", "optimizer", "strategy", "stopping"):
            if key in values:
                values[key] = absolute(f"--{key}", str(values[key]))
        return values

    def over(self, earlier: Mapping[str, object]) -> SearchOptions:
        """These options, completed from ``earlier`` ones. The keys of ``--set`` are completed one by one."""
        known = {k: v for k, v in earlier.items() if k in RESUMED_OPTIONS}
        single = [k for k in known if k not in ("set", "metric")]
        gaps: dict[str, Any] = {k: known[k] for k in single if getattr(self, k) is None}
        gaps |= {"metric": tuple(json_values.texts(earlier, "metric"))} if not self.metric else {}
        own = bool(self.trainable or known.get("trainable"))  # then the names are the user's

        def key_of(text: str) -> str:
            """A key may be written short or whole; either way the new value replaces the old one."""
            name = text.partition("=")[0].strip()
            return name if own else known_key(name) or name

        here = set(map(key_of, self.set))
        kept = [text for text in json_values.texts(earlier, "set") if key_of(text) not in here]
        return dataclasses.replace(self, **gaps, set=(*kept, *self.set))


Texts: TypeAlias = str | Sequence[str]
Paths: TypeAlias = str | Path | Sequence[str | Path]


class SearchKeywords(TypedDict, total=False):
    """The options of ``bigbatch tune`` as keywords of ``bigbatch.search``; a list is written with commas, or one by
    one. None: as if it were not given."""

    space: str | Path | None
    trainable: str | None
    data: str | Path | None
    subset: float | None
    val_part: float | str | None
    holdout: float | str | None
    batch: int | str | Sequence[int] | None
    model: str | None
    loss: str | None
    optimizer: str | None
    no_check: bool
    accept_changed_code: bool
    trials: int | None
    max_epochs: int | None
    tolerance: float | str | None
    objective: str | None
    objectives: Texts | None
    metric: Texts | None
    baseline: float | Texts | None
    target: str | None
    confirm: str | None
    budget_gpu_hours: float | None
    time_budget: str | None
    strategy: str | None
    stopping: str | None
    workers: int | None
    trials_per_gpu: int | str | None
    set: Mapping[str, object] | Texts | None
    stage: str | Path | None
    enqueue: Paths | None
    warm_start: Paths | None
    storage: str | None
    join: bool
    resume: bool
    retry_failed: bool
    seed: int | None
    address: str | None
    wandb: str | None
    quiet: bool
