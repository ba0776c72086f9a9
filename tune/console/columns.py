"""A trial's settings, and parameters of its space, as short texts for lines and tables."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from bigbatch.base import json_values
from bigbatch.train_loop.config import OPTIMIZERS, ConfigError, TrainConfig, known_key
from bigbatch.train_loop.config.given import written_assignments
from bigbatch.train_loop.config.rules import shown_name
from bigbatch.train_loop.config.words import amount
from bigbatch.tune.runs.run import AnyTrial, Kind, Run, configuration, confirmed_by, is_paused

if TYPE_CHECKING:  # it loads Optuna, which bigbatch show does not need
    from bigbatch.tune.storage.summary import StudySummary

SHOWN_KEYS = frozenset(
    "optimizer.name batch.global_size optimizer.peak_lr schedule.warmup_epochs optimizer.momentum optimizer.beta1 "
    "optimizer.beta2 optimizer.weight_decay label_smoothing schedule.name".split()
)
"""Keys of the configuration that ``shown_settings`` formats."""
STATE_WORDS = {
    "RUNNING": "running", "COMPLETE": "done", "PRUNED": "stopped", "FAIL": "failed", "WAITING": "waiting",
}  # fmt: skip


def state_words(trial: Run) -> str:
    """The trial's state in a word or two."""
    ended = "infeasible" if trial.user_attrs.get("infeasible") else STATE_WORDS[trial.state.name]
    word = "paused" if is_paused(trial) else ended
    return f"{word}, confirms {confirmed_by(trial)}" if trial.kind == Kind.CONFIRMATION else word


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


def own_next_step(best_file: str, parameters: Mapping[str, object], max_epochs: int) -> str:
    """How to train the best ``config`` of a training function in full. ``best_file``: as one types it."""
    given = shlex.join(["--set", *written_assignments(parameters)] if parameters else [])
    options = f"--trials 1 --max-epochs {max(30, 2 * max_epochs)} --study OTHER {given}".rstrip()
    return f"Train it in full by the search's command with these options ({best_file} has its config):\n  {options}"


def config_of(trial: AnyTrial) -> TrainConfig | None:
    """The trial's configuration; None if it has none, or one of a later version."""
    try:
        return TrainConfig.from_dict(dict(configuration(trial))) if configuration(trial) else None
    except ConfigError:
        return None


ONLY_IN_LINES = ("smoothing", "schedule")
"""Settings that tables leave out."""


def trial_settings(config: TrainConfig | None, params: Mapping[str, object], *, own: bool) -> dict[str, str]:
    """Name → text of a trial's settings, and of the parameters that are not among them.

    Args:
        own: whether the space is a user's. The built-in ones' parameters are in the settings.
    """
    settings = shown_settings(config)
    has_settings = bool(settings)
    for name, value in params.items():
        if not has_settings or (known_key(name) not in SHOWN_KEYS and (own or "." in name)):
            text = f"{value:.3g}" if isinstance(value, float) else str(value)
            settings.setdefault(name.rpartition(".")[2], text)
    return settings


def settings_line(settings: Mapping[str, str]) -> str:
    """``sgd batch 128 lr 0.05``."""
    return " ".join(text if name == "optimizer" else f"{name} {text}" for name, text in settings.items())


def columns_of(settings: Sequence[Mapping[str, str]]) -> list[str]:
    """The columns of a table of trials with these settings."""
    return [name for name in dict.fromkeys(name for one in settings for name in one) if name not in ONLY_IN_LINES]
