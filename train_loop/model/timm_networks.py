"""timm's networks, by the name ``timm/NAME``. They need the extra ``timm``; nothing is downloaded."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from bigbatch.train_loop.config import ConfigError
from bigbatch.train_loop.data.info import DataInfo

if TYPE_CHECKING:
    from torch import nn

TIMM = "timm/"


def check_timm_name(name: str) -> None:
    """Raise ConfigError, with the nearest name, if timm is not installed or has no such network."""
    if find_spec("timm") is None:
        raise ConfigError(
            f"model.name={name} needs the package timm, which is not installed. Write pip install 'bigbatch[timm]'."
        )
    import timm

    wanted = name.removeprefix(TIMM)
    if not timm.is_model(wanted):
        near = difflib.get_close_matches(wanted.lower(), timm.list_models(), n=1)
        fix = f"Did you mean '{TIMM}{near[0]}'?" if near else f"Write e.g. {TIMM}resnet26."
        raise ConfigError(f"model.name must name a network of timm {timm.__version__}; got {name!r}. {fix}")


def timm_network(name: str, options: Mapping[str, object], info: DataInfo) -> nn.Module:
    """timm's network with fresh weights, for the classes, channels and image size of the data.

    ``options``: further arguments of ``timm.create_model``, such as ``drop_path_rate``. Raises ConfigError for an
    argument that the network does not take.
    """
    check_timm_name(name)
    facts: dict[str, object] = {"num_classes": info.num_classes, "in_chans": info.channels}
    wanted = name.removeprefix(TIMM)
    try:
        return _created(wanted, {**facts, "img_size": info.image_size, **options})
    except TypeError as error:
        # timm tells by this error alone that a network takes no size.
        if "'img_size'" not in str(error) or "img_size" in options:
            raise _refusal(wanted, options, info, error) from None
    except (ValueError, AssertionError) as error:
        raise _refusal(wanted, options, info, error) from None
    try:  # a network that takes any size
        return _created(wanted, {**facts, **options})
    except (TypeError, ValueError, AssertionError) as error:
        raise _refusal(wanted, options, info, error) from None


def _created(name: str, arguments: Mapping[str, Any]) -> nn.Module:
    import timm

    return timm.create_model(name, pretrained=False, **arguments)


def _refusal(name: str, options: Mapping[str, object], info: DataInfo, error: Exception) -> ConfigError:
    reason = " ".join(f"{type(error).__name__}: {error}".split())
    return ConfigError(
        f"timm's {name} must take {info.image_size} px and model.options; got {dict(options)} ({reason}). "
        "Change model.options or data.image_size."
    )
