"""``--set`` in a search fixes keys of the configuration and parameters of the space. They are then not searched."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping

from bigbatch.search_spaces.check import ParamRange, check_space
from bigbatch.search_spaces.registry import Space
from bigbatch.search_spaces.workload import Workload
from bigbatch.train_loop.config import (
    ConfigError,
    check_each,
    config_keys,
    known_key,
    short_keys,
    split_assignments,
)
from bigbatch.train_loop.config.words import unknown_key


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
        if name in check_space(space, workload):
            others = ", ".join(f"{key}={value}" for key, value in keyed.items())
            raise ConfigError(
                f"--set can fix only parameters that the space searches; got {name!r}, which space {space.name!r} "
                f"does not search with {others}. Leave out one of them."
            )
        message = unknown_key(name, [*config_keys()], short_keys(), [*ranges])
        where = "" if message.endswith("?") else f" Space {space.name!r} searches {', '.join(ranges) or 'nothing'}."
        raise ConfigError(message + where)
    return keyed | {name: parameter_value(ranges[name], fixed[name], space) for name in fixed if name not in keyed}


def parameter_value(known: ParamRange, value: object, space: Space) -> object:
    """``value`` as a study keeps the parameter. Raises ConfigError if it is outside the parameter's range."""
    value = known.kept(value)
    if known.kind == "categorical":
        # First those of its type: to Python True equals 1.
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
