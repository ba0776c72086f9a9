"""``bigbatch.trainable``: our training as a function for a ``ray.tune.Tuner`` of the user's own.

She brings the search algorithm and the scheduler; we bring the space, the training loop and checkpoints that go on with
another rate or momentum, as Population Based Training asks for.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from bigbatch.base.command_line import did_you_mean
from bigbatch.search_spaces.registry import load_space
from bigbatch.search_spaces.trial import Distribution, StandInTrial
from bigbatch.search_spaces.workload import Workload
from bigbatch.train_loop.config import ConfigError, TrainConfig, known_key, written_assignments
from bigbatch.train_loop.config.rules import coerced
from bigbatch.train_loop.reporter import EpochRecord
from bigbatch.tune.plan.checked_plan import make_plan
from bigbatch.tune.plan.options import SearchOptions

KNOWN = (
    "space", "data", "max_epochs", "set", "model", "loss", "optimizer", "metric", "subset", "val_part", "holdout",
    "batch", "seed",
)  # fmt: skip
TuneFunction = Callable[[dict[str, object]], None]


def trainable(
    space: str | Path = "large_batch",
    *,
    data: str | Path = "digits",
    max_epochs: int | None = None,
    set: Mapping[str, object] | None = None,
    **options: object,
) -> TuneFunction:
    """A function trainable for ``ray.tune.Tuner``, with any search algorithm or scheduler.

    Tune's ``param_space`` names parameters of the space, keys of ``TrainConfig``, or both, e.g.
    ``{"optimizer": "lars", "lr": tune.loguniform(0.1, 10), "momentum": 0.9}``. A parameter that it leaves out has the
    middle of its range, or its first choice. A key sets that part of every configuration, as ``set`` does. Numbers may
    lie outside of the space's ranges.

    Each epoch is reported with its metrics (``val_top1``, ``val_loss``, … as in ``epochs.parquet``) and a checkpoint. A
    trial that begins with a checkpoint of another one goes on from it: weights, the state of the optimizer and the
    epoch are that one's, while rate, momentum, the other numbers of the optimizer, schedule and label smoothing are the
    new ones. A trial has one worker; ``ray.tune.with_resources`` says what it gets.

    Args:
        space: as ``--space`` of ``bigbatch tune``. The other arguments, too, are those of its options. All nodes must
            see the files that they name.
        options: ``model``, ``loss``, ``optimizer``, ``metric`` (a list), ``subset``, ``val_part``, ``holdout``,
            ``batch``, ``seed``.

    Raises ConfigError for what ``bigbatch tune --dry-run`` refuses, in one line. So does a trial whose ``config`` has
    another name.
    """
    wanted = _options(options | {"space": str(space), "data": str(data), "max_epochs": max_epochs, "set": set})
    plan = make_plan(wanted)
    parameters = tuple(name for name, found in plan.ranges.items() if found.kind != "derived")
    function = _TuneFunction(str(wanted.kept()["space"]), plan.workload, dict(plan.overrides), parameters, plan.seed)

    def train_one(config: dict[str, object]) -> None:
        function(config)

    return train_one


def _options(given: Mapping[str, object]) -> SearchOptions:
    """As options of a search. Raises ConfigError for one that says nothing about training."""
    for name in given:
        if name not in KNOWN:
            fix = did_you_mean(name, KNOWN)
            raise ConfigError(f"bigbatch.trainable takes arguments about training; got {name!r}. {fix}")
    values = dict(given)
    fixed = values.pop("set") or {}
    if not isinstance(fixed, Mapping):
        raise ConfigError(f"set must be a dict of keys; got {fixed!r}. Write e.g. set={{'image_size': 16}}.")
    for name in ("max_epochs", "seed"):
        if values.get(name) is not None:
            values[name] = coerced(int, values[name], name, 1)
    if values.get("batch") is not None:
        values["batch"] = str(values["batch"])
    metric = values.pop("metric", None) or ()
    return SearchOptions(
        set=tuple(written_assignments(fixed)),
        metric=coerced(tuple[str, ...], (metric,) if isinstance(metric, str) else metric, "metric", ()),  # type: ignore[arg-type]
        output=tempfile.gettempdir(),  # nothing is written there
        **values,  # type: ignore[arg-type]
    )


@dataclass(frozen=True)
class _TuneFunction:
    """What the processes of trials are handed: the space by name, because its function belongs to the driver."""

    space: str
    workload: Workload
    overrides: Mapping[str, object]
    parameters: tuple[str, ...]
    seed: int

    def __call__(self, config: Mapping[str, object]) -> None:
        import ray.tune

        from bigbatch.train_loop.launch.ray_worker import use_assigned_cores
        from bigbatch.train_loop.loop.train import train

        wanted = self.train_config(config)
        use_assigned_cores()
        with tempfile.TemporaryDirectory(prefix="bigbatch-tune-") as folder:
            if (checkpoint := ray.tune.get_checkpoint()) is not None:
                with checkpoint.as_directory() as earlier:
                    # A copy: training writes here, and the checkpoint may be another trial's, too.
                    shutil.copytree(earlier, folder, dirs_exist_ok=True)
            train(
                wanted,
                reporter=_TuneReporter(Path(folder)),
                checkpoint_dir=Path(folder),
                checkpoint_every_s=0,  # at the end of each epoch, and before its report
                accept_changed_code=True,
                accept_changed_rates=True,
            )

    def train_config(self, config: Mapping[str, object]) -> TrainConfig:
        """The configuration of a trial. Raises ConfigError for a name that is neither parameter nor key."""
        plain = {name: value.item() if hasattr(value, "item") else value for name, value in config.items()}  # of NumPy
        given = {name: value for name, value in plain.items() if name in self.parameters}
        keys = {known_key(name): value for name, value in plain.items() if name not in given}
        for name in plain:
            if name not in given and known_key(name) is None:
                fix = did_you_mean(name, self.parameters)
                where = f"of the space {self.space!r}"
                raise ConfigError(f"param_space names parameters {where} or keys of TrainConfig; got {name!r}. {fix}")
        pinned = {**self.overrides, **{key: value for key, value in keys.items() if key is not None}}
        seed = pinned.pop("seed", self.seed)
        return load_space(self.space)(_GivenTrial(given), self.workload, pinned).replace_keys({"seed": seed})


class _GivenTrial(StandInTrial):
    """Has the values that Tune gives, also numbers outside of the range; for all others the middle of the range."""

    def __init__(self, given: Mapping[str, object]) -> None:
        super().__init__(None)
        self._given = given

    def _suggest(self, name: str, distribution: Distribution) -> object:
        if name not in self._given:
            return super()._suggest(name, distribution)
        value = self._given[name]
        is_choice = distribution.kind == "categorical"
        if is_choice and distribution.contains(kept := distribution.kept(value)):
            return kept
        if not is_choice and isinstance(value, (int, float)) and not isinstance(value, bool):
            return round(value) if distribution.kind == "int" else value
        what = f"one of {', '.join(map(str, distribution.choices))}" if is_choice else "a number"
        raise ConfigError(f"param_space: {name} must be {what}; got {value!r}.")


class _TuneReporter:
    """Reports each epoch to Tune, with the checkpoint that the loop has just written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def report(self, record: EpochRecord) -> None:
        """Report it. Ray ends the process here if the scheduler stops the trial."""
        import ray.tune

        from bigbatch.train_loop.loop.checkpoint import PREVIOUS

        (self._folder / PREVIOUS).unlink(missing_ok=True)  # the scheduler needs the latest alone
        values = record.to_dict()
        values |= values.pop("metrics")
        known = {name: value for name, value in values.items() if value is not None}
        ray.tune.report(known, checkpoint=ray.tune.Checkpoint.from_directory(self._folder))

    def checkpoint_requested(self) -> bool:
        """Never within an epoch."""
        return False
