"""``--resume`` continues a study as it was planned, and ``--join`` works on it so.

Both refuse differences and name them as command line options.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bigbatch.train_loop.config import RUNTIME_KEYS, ConfigError
from bigbatch.tune.plan.search_plan import FrontierPlan

OPTIONS = {
    "space": "--space",
    "trainable": "--trainable",
    "data": "--data",
    "model": "--model",
    "max_epochs": "--max-epochs",
    "seed": "--seed",
    "lr_factors": "--prior-from",
    "batches": "--batch",
    "workers": "--workers",
}
OF_THE_DATA = ("image_size", "train_size", "val_size", "holdout_size", "num_classes")
OWN_OPTIONS = {"data.subset": "--subset", "data.val_part": "--val-part", "data.holdout": "--holdout"}


def check_same_study(identity: Mapping[str, object], stored: Mapping[str, object]) -> None:
    """Raise ConfigError if the plan and the stored study differ in something that defines the study.

    Args:
        identity: the facts of the plan (``SearchPlan.identity``).
        stored: the facts in study.json.
    """
    for key, value in identity.items():
        before = stored.get(key)
        if key == "overrides" and isinstance(before, dict) and isinstance(value, Mapping):
            _check_overrides(before, value)
        elif before != value:
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
    first = stored.get("workers")
    why = f" with --workers {workers}" if first != workers else ""
    fix = f"Write --workers {first}" if first != workers else "Resume it where the space chooses the same values"
    raise NotSameStudy(f"the values of {frontier.name} were {_listed(earlier)}; got {_listed(now)}{why}", fix)


def _listed(values: Sequence[object]) -> str:
    return ", ".join(map(str, values))


def check_joins(identity: Mapping[str, object], stored: Mapping[str, object]) -> None:
    """Raise ConfigError if the plan of a driver that joins a study differs from the study's.

    Args:
        identity: the facts of its plan.
        stored: the facts in the database.
    """
    try:
        check_same_study(identity, stored)
    except NotSameStudy as error:
        raise ConfigError(
            f"--join works on a study as its first driver planned it: {error.what}. Write the same, or --study OTHER."
        ) from None


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
        return f"the space's file has changed; got {value!r}", "Restore it"
    if key == "classes_digest":
        return "the names of the data's classes have changed, or their order", "Restore the data"
    if key in OF_THE_DATA:
        return f"the data's {key} was {before!r}; got {value!r}", "Restore the data"
    if key == "objective":
        return f"the objective was {before}; got {value}", "Leave it out (it is kept)"
    name = OPTIONS.get(key, key)
    return f"{name} was {before!r}; got {value!r}", f"Leave {name} out (it is kept)"
