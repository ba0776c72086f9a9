"""Checks of single options: ``--time-budget``, ``--confirm``, ``--join``, room in ``--output``.

``--resume`` and ``--join`` work on a study as it was planned. Both refuse differences and name them as command line
options.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from bigbatch.base.mounts import is_shared
from bigbatch.train_loop.config import RUNTIME_KEYS, ConfigError, ModelConfig, TrainConfig
from bigbatch.train_loop.host import disk_space
from bigbatch.train_loop.launch import checks
from bigbatch.tune.plan.options import SearchOptions
from bigbatch.tune.plan.search_plan import FrontierPlan, SearchPlan
from bigbatch.tune.runs.confirm_rule import AFFORDABLE, NOTHING, ConfirmRule, confirm_rule
from bigbatch.tune.runs.objectives import Objectives
from bigbatch.tune.storage.description import redact
from bigbatch.tune.storage.storage_url import sqlite_file


def parse_duration(text: str, option: str = "--time-budget") -> float:
    """``90s``, ``30min``, ``30m``, ``4h``, ``1h30m`` → seconds. Raises ConfigError otherwise, also without a unit."""
    written = text.strip()
    number = r"(\d+(?:\.\d+)?)"
    match = re.fullmatch(f"(?:{number}h)?(?:{number}m(?:in)?)?(?:{number}s)?", written)
    hours, minutes, rest = (float(part or 0) for part in match.groups()) if match else (0.0, 0.0, 0.0)
    total = 3600 * hours + 60 * minutes + rest
    if total <= 0:
        raise ConfigError(f"{option} is a duration above 0, with its unit; got {text!r}. Write e.g. 4h, 30min or 90s.")
    return total


def checked_confirm(text: str | None, trials: int, objectives: Objectives) -> ConfirmRule:
    """The rule of ``--confirm``; without one, accuracies are confirmed as far as that costs little.

    Raises ConfigError for a wrong one, and if the search has several objectives or a target.
    """
    rule = confirm_rule(text, trials)
    if objectives.first.metric.is_proportion and not objectives.several:
        return rule
    if rule in (AFFORDABLE, NOTHING):
        return NOTHING
    if not objectives.one_metric:
        raise ConfigError(
            f"--confirm compares means of one metric; got --confirm {rule} with the objective {objectives.text}. "
            "Leave --confirm out."
        )
    return rule


def check_join(options: SearchOptions) -> None:
    """Raise ConfigError if the options cannot join a study."""
    if not options.join:
        return
    if options.storage is None or options.study is None:
        missing = "--storage" if options.storage is None else "--study"
        raise ConfigError(
            f"--join works on a study in a database; got no {missing}. "
            "Write --storage postgresql+psycopg://USER@HOST/DB --study NAME."
        )
    path = sqlite_file(options.storage)
    if path is None and not options.storage.startswith("postgres"):
        raise ConfigError(
            f"--join needs a database that can hold a lock; got {redact(options.storage)!r}. "
            "Write a --storage in PostgreSQL, or leave --join out."
        )
    if path is not None and is_shared(path):
        raise ConfigError(
            f"--join needs a database that several hosts can write; got the SQLite file {str(path)!r} on a shared file "
            "system. Write a --storage in PostgreSQL."
        )


def check_study_fits(plan: SearchPlan) -> None:
    """Raise ConfigError if the study needs more space than its folder's disk and quota have left.

    Without ``--set optimizer=…`` the optimizer is not known here, so the largest optimizer state is assumed.
    """
    needed = checks.study_space_needed(
        _checkpoint_bytes(plan),
        plan.trials,
        plan.max_epochs,
        plan.share.concurrency + (len(plan.frontier.values) - 1 if plan.frontier else 0),  # each value's best is kept
        joined=plan.address != "local",
        wandb=plan.wandb != "disabled",
    )
    disk_space.check_disk_space("--output", plan.folder, needed)


def _checkpoint_bytes(plan: SearchPlan) -> int:
    """Size of one trial's checkpoint; 0 for a whole training function, because it is not known."""
    if plan.trainable:
        return 0
    changes = {key: value for key, value in plan.overrides.items() if key.startswith("model.")}
    model = TrainConfig(model=ModelConfig(name=plan.model)).replace_keys(changes).model
    averaged = plan.overrides.get("ema_decay", 0) > 0
    return checks.checkpoint_bytes(model, plan.data, plan.overrides.get("optimizer.name"), averaged)


OPTIONS = {
    "space": "--space",
    "trainable": "--trainable",
    "data": "--data",
    "model": "--model",
    "max_epochs": "--max-epochs",
    "seed": "--seed",
    "batches": "--batch",
    "workers": "--workers",
}
CHANGED = {
    "classes_digest": "the names of the data's classes have changed, or their order",
    "content": "the data's images were others, by their names or a packed set's checksums",
    "some_bytes": "images of the data have been replaced by others of the same names",
}
OF_THE_DATA = ("image_size", "train_size", "val_size", "holdout_size", "num_classes")
OWN_OPTIONS = {"data.subset": "--subset", "data.val_part": "--val-part", "data.holdout": "--holdout"}


def check_same_study(identity: Mapping[str, object], stored: Mapping[str, object], but: str = "") -> None:
    """Raise ConfigError if the plan and the stored study differ in something that defines the study.

    Args:
        identity: the facts of the plan (``SearchPlan.identity``).
        stored: the facts in study.json.
        but: a fact that may differ.
    """
    for key, value in identity.items():
        before = stored.get(key)
        if key == "overrides" and isinstance(before, dict) and isinstance(value, Mapping):
            _check_overrides(before, value)
        elif before != value and key != but:
            raise NotSameStudy(*_difference(key, before, value))


def check_same_values(frontier: FrontierPlan | None, workers: int, stored: Mapping[str, object]) -> None:
    """Raise ConfigError if the values of the frontier are not the study's: its trials would be in no row.

    A space may choose them by the workers, as ``large_batch`` does, or by the memory of a device.

    Args:
        frontier: that of the plan.
        workers: those of the plan.
        stored: the facts in study.json.
    """
    before = stored.get("frontier")
    if frontier is None or not isinstance(before, Mapping) or before.get("name") != frontier.name:
        return
    now, earlier = list(frontier.values), before.get("values")
    if now == earlier or not isinstance(earlier, list):
        return
    what = f"the values of {frontier.name} were {earlier}; got {now} with --workers {workers}"
    raise NotSameStudy(what, f"Write --workers {stored.get('workers')}")


class NotSameStudy(ConfigError):
    """The plan differs from the study's."""

    def __init__(self, what: str, fix: str) -> None:
        super().__init__(f"--resume continues a study as it was planned: {what}. {fix}, or write --study OTHER.")
        self.what = what


def _check_overrides(before: Mapping[str, object], now: Mapping[str, object]) -> None:
    for name in {**before, **now}:
        if name in RUNTIME_KEYS or before.get(name) == now.get(name):
            continue
        option = OWN_OPTIONS.get(name, f"--set {name}")
        if name not in before:
            raise NotSameStudy(f"{option} was not given; got {now[name]!r}", f"Leave {option} out")
        raise NotSameStudy(f"{option} was {before[name]!r}; got {now.get(name)!r}", f"Leave {option} out (it is kept)")


def _difference(key: str, before: object, value: object) -> tuple[str, str]:
    if key == "space_fingerprint":
        return "the space's file has changed", "Restore it, or accept it with --accept-changed-code"
    if key in CHANGED:
        return CHANGED[key], "Restore the data"
    if key in OF_THE_DATA:
        return f"the data's {key} was {before!r}; got {value!r}", "Restore the data"
    if key == "objective":
        return f"the objective was {before}; got {value}", "Leave it out (it is kept)"
    name = OPTIONS.get(key, key)
    return f"{name} was {before!r}; got {value!r}", f"Leave {name} out (it is kept)"
