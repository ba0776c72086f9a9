"""Components by name: a user's ``FILE.py:FUNCTION``, or one that a package registers. No torch here.

A package adds names by entry points, ``[project.entry-points."bigbatch.models"] unet = "my_package:unet"``. One that
names a module only is imported, and its functions take their names with the decorators below.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from bigbatch.train_loop.config import plug_ins
from bigbatch.train_loop.config.plug_ins import DATA, LOSSES, METRICS, MODELS, OPTIMIZERS_GROUP, is_own
from bigbatch.train_loop.config.rules import ConfigError
from bigbatch.train_loop.plugins.code import OwnFunction, check_call, load_function, users_code

F = TypeVar("F", bound=Callable[..., object])


def _decorator(group: str, name: str) -> Callable[[F], F]:
    def keep(function: F) -> F:
        plug_ins.register(group, name, function)
        return function

    return keep


def register_model(name: str) -> Callable[[F], F]:
    """Decorator: ``model.name=NAME`` means this function of (workload, **options)."""
    return _decorator(MODELS, name)


def register_loss(name: str) -> Callable[[F], F]:
    """Decorator: ``loss=NAME`` means this function of (outputs, targets, **options)."""
    return _decorator(LOSSES, name)


def register_optimizer(name: str) -> Callable[[F], F]:
    """Decorator: ``optimizer.name=NAME`` means this function of (param_groups, lr, **options)."""
    return _decorator(OPTIMIZERS_GROUP, name)


def register_metric(name: str) -> Callable[[F], F]:
    """Decorator: ``NAME`` in ``metrics`` means this function."""
    return _decorator(METRICS, name)


def register_data(name: str) -> Callable[[F], F]:
    """Decorator: ``data.name=NAME`` means this function."""
    return _decorator(DATA, name)


def component(group: str, key: str, word: str) -> OwnFunction | None:
    """The function that ``word`` names in a file or a package; None for any other word.

    Raises as ``load_function``.
    """
    return load_function(key, word) if is_own(word) else plug_ins.plug_in(group, word)


def is_component(group: str, word: str) -> bool:
    """Whether ``word`` names a function in a file or a package. Loads no file."""
    return is_own(word) or plug_ins.is_plug_in(group, word)


def loaded(group: str, key: str, word: str, given: tuple[str, ...], options: Mapping[str, object]) -> OwnFunction:
    """The function, which takes the positional arguments ``given`` (their names) and ``options``.

    Raises ConfigError if there is none, or it takes others; OwnCodeError as ``load_function``.
    """
    function = component(group, key, word)
    if function is None:
        raise ConfigError(f"{key} must name a function; got {word!r}. Write FILE.py:FUNCTION.")
    check_call(key, word, function, given, options)
    return function


def made(group: str, key: str, word: str, given: Mapping[str, object], options: Mapping[str, object]) -> object:
    """What the function returns for the arguments ``given`` (name → value) and ``options``.

    Raises as ``loaded``; what the function raises becomes an OwnCodeError.
    """
    function = loaded(group, key, word, tuple(given), options)
    with users_code(key, word):
        return function(*given.values(), **options)
