"""A configuration's settings as short texts, and the columns of the trial table: settings and a space's parameters.

The table shows settings that differ between trials. The plan prints those that are the same in all.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bigbatch.base import json_values
from bigbatch.search_spaces.check import ParamRange
from bigbatch.search_spaces.registry import Space
from bigbatch.search_spaces.trial import StandInTrial
from bigbatch.search_spaces.workload import Workload
from bigbatch.train_loop.config import OPTIMIZERS, TrainConfig, known_key
from bigbatch.train_loop.config.rules import shown_name
from bigbatch.train_loop.config.words import amount

if TYPE_CHECKING:  # it loads Optuna, which bigbatch show does not need
    from bigbatch.tune.runs.observer import TrialView
    from bigbatch.tune.storage.summary import StudySummary

SHOWN_KEYS = frozenset(
    "optimizer.name batch.global_size optimizer.peak_lr schedule.warmup_epochs optimizer.momentum optimizer.beta1 "
    "optimizer.beta2 optimizer.weight_decay label_smoothing schedule.name".split()
)
"""Keys of the configuration that ``shown_settings`` formats."""


def shown_settings(config: TrainConfig | None) -> dict[str, str]:
    """The most important settings of a configuration as short texts; empty without a configuration."""
    if config is None or config.trainable.name:  # what a training function gets, its space's parameters say
        return {}
    o, s = config.optimizer, config.schedule
    values = {"optimizer": shown_name(o.name), "batch": str(config.batch.global_size), "lr": f"{o.peak_lr:.3g}"}
    values["warmup"] = f"{s.warmup_epochs:.2g} ep"
    if o.name in ("sgd", "lars"):
        values["momentum"] = f"{o.momentum:.3g}"
    elif o.name in OPTIMIZERS:
        values["betas"] = f"{o.beta1:.3g}, {o.beta2:.4g}"
    return values | {"wd": f"{o.weight_decay:.1e}", "smoothing": f"{config.label_smoothing:.2g}", "schedule": s.name}


def plan_facts(found: StudySummary) -> list[tuple[str, str]]:
    """What a study was to do, for ``show`` and the report: names and texts. What study.json lacks is left out."""
    d = found.description
    train, val, side, at_once, workers, epochs = (
        json_values.whole_number(d, key)
        for key in ("train_size", "val_size", "image_size", "concurrency", "workers", "max_epochs")
    )
    sizes = f" ({train:,} training and {val:,} validation {f'images, {side} px' if side else 'items'})" if train else ""
    limits = ["as many trials as the budget allows" if found.planned is None else amount(found.planned, "trial")]
    budget, time_s = json_values.number(d, "budget_gpu_hours"), json_values.number(d, "time_budget_s")
    limits += [f"{budget:g} {'GPU' if found.has_gpus else 'worker'} hours"] if budget else []
    limits += [f"{time_s / 3600:.3g} h of time"] if time_s else []
    trainable = json_values.text(d, "trainable")
    facts = {
        "space": json_values.text(d, "space"),
        "trainable": trainable,
        "data": "" if trainable else json_values.text(d, "data") + sizes,
        "model": "" if trainable else json_values.text(d, "model"),
        "limits": f"{', '.join(limits)}; at most {epochs} epochs each",
        "strategy": ", ".join(f"{key} {shown_name(str(d[key]))}" for key in ("strategy", "stopping") if d.get(key)),
        "set": ", ".join(f"{key}={value}" for key, value in json_values.mapping(d, "overrides").items()),
        "at a time": f"{amount(at_once or 1, 'trial')} of {amount(workers or 1, 'worker')}",
    }
    return [(name, text) for name, text in facts.items() if text]


def full_run_command(best_file: str, max_epochs: int, command: str = "bigbatch train") -> str:
    """Trains the best configuration for twice the epochs of its search, at least 30. ``best_file``: as one types it."""
    return f"{command} --config {best_file} --set epochs={max(30, 2 * max_epochs)}"


def own_next_step(function: str, best_file: str) -> str:
    """What one may do with the best ``config`` of a training function. Both arguments as one would type them."""
    return f"Its config is trainable.options in {best_file}: call {function} with it, epochs and seed."


IN_TABLE = ("optimizer", "batch", "lr", "warmup", "momentum", "wd")
"""Settings in the live table, where they vary. ``momentum`` has Adam's betas too. Lines of the log have them all."""
SAMPLES = 64


@dataclass(frozen=True)
class Columns:
    """The columns for each trial. Without arguments: every setting."""

    fixed: Mapping[str, str] = field(default_factory=dict)
    """Settings that are the same in all trials."""
    own: Sequence[str] = ()
    """Searched parameters that are no setting."""

    def of(self, trial: TrialView) -> dict[str, str]:
        """Name → text of the trial's settings, then of the space's own parameters."""
        shown = {name: text for name, text in shown_settings(trial.config).items() if name not in self.fixed}
        return shown | {short_key(name): _text(trial.params[name]) for name in self.own if name in trial.params}

    def line(self, trial: TrialView) -> str:
        """The trial's columns in one line: ``sgd batch 128 lr 0.05``."""
        values = self.of(trial)
        first = f"{values.pop('optimizer')} " if "optimizer" in values else ""
        return first + " ".join(f"{name} {text}" for name, text in values.items())

    @property
    def in_table(self) -> list[str]:
        """The names of the live table's columns."""
        return [*(name for name in IN_TABLE if name not in self.fixed), *map(short_key, self.own)]


def columns_of(
    space: Space, workload: Workload, overrides: Mapping[str, object], ranges: Mapping[str, ParamRange]
) -> Columns:
    """The columns for a space's trials. Samples of the space show which settings vary."""
    rng, found = random.Random(0), []
    for number in range(SAMPLES):
        with contextlib.suppress(Exception, SystemExit):  # the search reports a refused configuration
            found.append(shown_settings(space(StandInTrial(rng, number=number), workload, overrides)))
    first = found[0] if found else {}
    fixed = {name: text for name, text in first.items() if all(other.get(name) == text for other in found)}
    shows_settings = bool(first)
    if found and not shows_settings:  # a whole training function has none of them
        fixed = dict.fromkeys(IN_TABLE, "")
    own = [n for n, met in ranges.items() if _varies(met) and not (shows_settings and _is_shown(n, space))]
    return Columns(fixed, own)


def short_key(name: str) -> str:
    """``mixup_alpha`` of ``data.mix.mixup_alpha``."""
    return name.rpartition(".")[2]


def _is_shown(name: str, space: Space) -> bool:
    key = space.parameter_keys[name][0] if name in space.parameter_keys else name
    return known_key(key) in SHOWN_KEYS


def _varies(found: ParamRange) -> bool:
    if found.kind == "derived":
        return False
    return len(found.choices) > 1 if found.kind == "categorical" else found.low < found.high


def _text(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
