"""Try a space before anything starts: sample it, refuse wrong results, list its ranges.

Its inverse leads from a configuration to the parameters that come nearest to it.
"""

from __future__ import annotations

import dataclasses
import random
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from bigbatch.search_spaces.distribution import Distribution
from bigbatch.search_spaces.priors import LogNormal
from bigbatch.search_spaces.registry import Space
from bigbatch.search_spaces.trainable_space import ReturnsNoConfig
from bigbatch.search_spaces.trial import StandInTrial
from bigbatch.search_spaces.workload import Workload
from bigbatch.train_loop.config import (
    ConfigError,
    TrainConfig,
    check_each,
    config_keys,
    known_key,
    short_keys,
    split_assignments,
)
from bigbatch.train_loop.config.rules import shown_name
from bigbatch.train_loop.config.words import unknown_key


@dataclass(frozen=True)
class ParamRange(Distribution):
    """The range of one parameter over a whole space.

    ``kind`` may also be ``derived``: a learning rate that is computed from other parameters.
    """

    name: str = ""
    conditions: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    """The parameters that this one depends on, and the values with which it exists. Empty: it always exists."""
    always: bool = True
    """Whether every sampled trial had it."""
    prior: LogNormal | None = None
    """The belief before the first trial. None: all values of the range, or of its logarithm, are equally likely."""

    def describe(self) -> str:
        """E.g. ``0.25 … 4 (log)``, ``lars, sgd``, ``1e-05 … 0.001 (log), with optimizer lars, sgd``."""
        text = self.in_words()
        if self.prior is not None:
            text += (
                f", mostly {self.prior.centre / self.prior.factor:.4g} … {self.prior.centre * self.prior.factor:.4g}"
            )
        for name, values in self.conditions.items():
            text += f", with {name} {', '.join(shown_name(str(value)) for value in values)}"
        return text


@dataclass(frozen=True)
class _Sample:
    params: Mapping[str, object]
    distributions: Mapping[str, Distribution]
    config: TrainConfig


def check_space(
    space: Space,
    workload: Workload,
    samples: int = 64,
    seed: int = 0,
    pinned: Mapping[str, object] | None = None,
) -> dict[str, ParamRange]:
    """Draw ``samples`` configurations and the initial points. Returns the observed range of each parameter.

    ``pinned``: see Space. If no parameter is the learning rate itself, the result also lists the rates of each
    optimizer, as ``peak_lr[lars]`` and so on, of kind ``derived``. The same arguments give the same answer.

    Raises ConfigError with a message of one line if the space raises an error, returns no TrainConfig, changes the
    data set or model, asks for too many epochs, gives a batch that exceeds the training set or does not divide over
    the workers, or uses one parameter name with two kinds of distribution.
    """
    rng = random.Random(seed)
    try:
        initial = space.initial_points(workload, pinned)
    except ConfigError:
        raise
    except Exception as error:
        raise _refusal(space, f"raised {_one_line(error)} in initial_points", "Correct its initial points") from None
    trials = [StandInTrial(rng, point, number) for number, point in enumerate(initial)]
    trials += [StandInTrial(rng, number=len(trials) + number) for number in range(samples)]
    drawn = [_draw(space, trial, workload, pinned) for trial in trials]
    _check_one_kind_per_name(space, drawn)
    ranges = _ranges(drawn)
    return ranges | _with_priors(space, workload, ranges) | _derived_rates(drawn)


def _draw(space: Space, trial: StandInTrial, workload: Workload, pinned: Mapping[str, object] | None) -> _Sample:
    try:
        config = space(trial, workload, pinned)
    except ReturnsNoConfig as error:
        raise ConfigError(str(error)) from None
    # A sys.exit in the space would end the command without a message.
    except (Exception, SystemExit) as error:
        raise _refusal(space, f"raised {_one_line(error)} for {trial.params}", "Correct the space") from None
    if not isinstance(config, TrainConfig):
        raise _refusal(
            space, f"returned a {type(config).__name__}, not a TrainConfig", "Return workload.config({'peak_lr': …})"
        )
    for name, value, expected in (
        ("data.name", config.data.name, workload.data),
        ("model.name", config.model.name, workload.model),
        # 0 is the data set's own size.
        ("data.image_size", config.data.image_size or workload.image_size, workload.image_size),
    ):
        if value != expected and not _is_suggested(name, value, trial):
            raise _refusal(space, f"set {name}={value!r} in a study of {expected!r}", "Begin with workload.config()")
    if config.epochs > workload.epochs:
        raise _refusal(space, f"asks for {config.epochs} epochs of at most {workload.epochs}", "Raise --max-epochs")
    batch = config.batch.global_size
    if batch > workload.train_size and "batch.global_size" in map(known_key, pinned or ()):
        raise ConfigError(
            f"batch.global_size must be at most the {workload.train_size} training images; got {batch}. "
            f"Write --set batch={workload.train_size} or less."
        )
    if batch > workload.train_size:
        raise _refusal(
            space,
            f"gave batch.global_size={batch} for {workload.train_size} training images",
            f"Use at most {workload.train_size}",
        )
    try:
        config.check_workers(workload.workers)
    except ConfigError as error:
        raise ConfigError(f"space {space.name!r}: {error}") from None
    return _Sample(trial.params, trial.distributions, config)


def _is_suggested(key: str, value: object, trial: StandInTrial) -> bool:
    """Whether the space searches the key: a parameter has its name, or one of its choices is the value."""
    if key == "data.name":
        return False
    shown = str(value).rpartition("/")[2]
    return any(known_key(name) == key or str(met).rpartition("/")[2] == shown for name, met in trial.params.items())


def _refusal(space: Space, what: str, fix: str) -> ConfigError:
    where = "" if space.source == "built-in" else f" ({space.source})"
    return ConfigError(
        f"a space returns a valid TrainConfig for every trial; got {space.name!r}{where}, which {what}. {fix}."
    )


def _one_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def _check_one_kind_per_name(space: Space, drawn: Sequence[_Sample]) -> None:
    first: dict[str, Distribution] = {}
    for sample in drawn:
        for name, distribution in sample.distributions.items():
            if not first.setdefault(name, distribution).compatible(distribution):
                raise _refusal(
                    space,
                    f"suggests {name!r} with different kinds, log or choices in different trials",
                    "Give each its own name",
                )


def _ranges(drawn: Sequence[_Sample]) -> dict[str, ParamRange]:
    names = list(dict.fromkeys(name for sample in drawn for name in sample.distributions))
    ranges = {}
    for name in names:
        met = [sample.distributions[name] for sample in drawn if name in sample.distributions]
        low, high = min(d.low for d in met), max(d.high for d in met)
        grid = dataclasses.replace(met[0], low=low, high=high)
        # Ranges may differ between trials: the whole range has a grid only if all of them share it.
        has_grid = all(d.step == grid.step and grid.contains(d.low) for d in met)
        ranges[name] = ParamRange(
            met[0].kind,
            low,
            high,
            met[0].log,
            met[0].step if has_grid else None,
            met[0].choices,
            name=name,
            conditions=_conditions(name, names, drawn),
            always=len(met) == len(drawn),
        )
    return ranges


def _with_priors(space: Space, workload: Workload, ranges: Mapping[str, ParamRange]) -> dict[str, ParamRange]:
    """The ranges that have a soft prior. A prior of a parameter that ``--set`` fixes is not used."""
    found = {}
    for name, prior in space.soft_priors(workload).items():
        if name not in ranges:
            continue
        if ranges[name].kind != "float" or not ranges[name].log:
            raise _refusal(
                space, f"has a log-normal prior of {name!r}, which is no float with log=True", "Leave the prior out"
            )
        found[name] = dataclasses.replace(ranges[name], prior=prior)
    return found


def _conditions(name: str, names: Sequence[str], drawn: Sequence[_Sample]) -> dict[str, tuple[object, ...]]:
    """The categorical parameter that alone decides whether ``name`` exists, with its values. Empty if none does."""
    if all(name in sample.params for sample in drawn):
        return {}
    for other in names:
        kinds = {sample.distributions[other].kind for sample in drawn if other in sample.params}
        if other == name or kinds != {"categorical"} or not all(other in sample.params for sample in drawn):
            continue
        having = {sample.params[other] for sample in drawn if name in sample.params}
        if not having & {sample.params[other] for sample in drawn if name not in sample.params}:
            choices = drawn[0].distributions[other].choices
            return {other: tuple(choice for choice in choices if choice in having)}
    return {}


def _derived_rates(drawn: Sequence[_Sample]) -> dict[str, ParamRange]:
    if any(known_key(name) == "optimizer.peak_lr" for sample in drawn for name in sample.params):
        return {}
    if any(sample.config.trainable.name for sample in drawn):
        return {}
    rates: dict[str, list[float]] = {}
    for sample in drawn:
        rates.setdefault(sample.config.optimizer.name, []).append(sample.config.optimizer.peak_lr)
    ranges = {}
    for optimizer, met in rates.items():
        name = f"peak_lr[{shown_name(optimizer)}]"
        ranges[name] = ParamRange("derived", min(met), max(met), name=name, conditions={"optimizer": (optimizer,)})
    return ranges


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
    trial = StandInTrial(None, wanted, nearest=True)
    found = space(trial, workload, pinned)
    if (found.optimizer.name, found.batch.global_size) != (config.optimizer.name, config.batch.global_size):
        return None
    return trial.params


# ``--set`` in a search fixes keys of the configuration and parameters of the space. They are then not searched.


def read_fixed(assignments: Iterable[str]) -> dict[str, object]:
    """Read ``--set``. Returns dotted keys and other names with their values; ``check_parameters`` checks the latter.

    Raises ConfigError for a value that its key can never have.
    """
    changes, others = split_assignments(assignments)
    check_each(changes)
    return changes | others


def check_parameters(space: Space, workload: Workload, fixed: Mapping[str, object]) -> dict[str, object]:
    """``fixed``, with the values of parameters converted to the space's types.

    Raises ConfigError for a name that is neither a key nor a parameter of the space with these fixed keys, and for a
    value outside the parameter's range.
    """
    keyed = {name: value for name, value in fixed.items() if known_key(name)}
    if len(keyed) == len(fixed):
        return dict(fixed)
    ranges = {name: one for name, one in check_space(space, workload, pinned=keyed).items() if one.kind != "derived"}
    for name in fixed:
        if name in keyed or name in ranges:
            continue
        message = unknown_key(name, [*config_keys()], short_keys(), [*ranges])
        where = "" if message.endswith("?") else f" Space {space.name!r} searches {', '.join(ranges) or 'nothing'}."
        raise ConfigError(message + where)
    return keyed | {name: parameter_value(ranges[name], fixed[name], space) for name in fixed if name not in keyed}


def parameter_value(known: ParamRange, value: object, space: Space) -> object:
    """``value`` as a study keeps the parameter. Raises ConfigError if it is outside the parameter's range."""
    value = known.kept(value)
    if known.kind == "categorical":
        # First the choices of the value's type: in Python True equals 1.
        alike = [one for one in known.choices if type(one) is type(value) and one == value]
        # A command line gives words and numbers alone: None is recognised by its text.
        if found := alike + [one for one in known.choices if str(one) == str(value)]:
            return found[0]
        allowed, fix = f"one of {known.in_words()}", str(known.choices[0])
    else:
        if known.contains(value):
            return float(value) if known.kind == "float" else int(value)  # type: ignore[call-overload,arg-type]  # a number
        allowed = f"a {'whole ' if known.kind == 'int' else ''}number of {known.low:.4g} to {known.high:.4g}"
        allowed, fix = allowed + (f" in steps of {known.step:g}" if known.has_grid else ""), f"{known.low:.4g}"
    raise ConfigError(
        f"{known.name} must be {allowed} in space {space.name!r}; got {value!r}. Write e.g. --set "
        f"{known.name}={shlex.quote(fix)}."
    )
