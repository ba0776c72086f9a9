"""A space for a whole training function: it returns a plain dict, which is the function's ``config``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bigbatch.search_spaces.registry import Space, load_space, space_word
from bigbatch.search_spaces.trial import PinnedTrial
from bigbatch.search_spaces.workload import Workload
from bigbatch.train_loop.config import ConfigError, DataConfig, ModelConfig, Options, TrainableConfig, TrainConfig
from bigbatch.train_loop.config.rules import read_options

RESERVED = {"epochs": "--max-epochs", "seed": "--seed"}
"""Names in ``config`` that have options of their own."""


class ReturnsNoConfig(ConfigError):
    """A space for a training function returned no ``config`` for it. The message is complete."""


@dataclass(frozen=True)
class TrainableSpace(Space):
    """A user's space whose function returns a dict.

    ``pinned`` are names and values of ``--set``: parameters of the space, which then gets the values and does not
    search them, and further values for ``config``. No name has a special meaning here.
    """

    trainable: str = ""
    """``FILE.py:FUNCTION``, absolute."""

    def __call__(self, trial: Any, workload: Workload, pinned: Mapping[str, object] | None = None) -> TrainConfig:
        pinned = pinned or {}
        asked = PinnedTrial(trial, {}, {}, pinned)
        values: object = self.function(asked, workload)
        if not isinstance(values, dict):
            raise ReturnsNoConfig(
                f"with --trainable a space returns a dict, the function's config; got {type(values).__name__} from "
                f"{self.name!r}. Write e.g. return {{'lr': lr}}."
            )
        for name, option in RESERVED.items():
            if name in values:
                raise ReturnsNoConfig(
                    f"config[{name!r}] is what {option} says; got one from space {self.name!r} too. Leave it out there."
                )
        try:
            further = {name: value for name, value in pinned.items() if name not in asked.answered}
            options = read_options("config", {**values, **further})
        except ConfigError as error:
            raise ReturnsNoConfig(f"{error} It came from space {self.name!r}.") from None
        return TrainConfig(
            epochs=workload.epochs,
            data=DataConfig(name=workload.data),
            model=ModelConfig(name=workload.model),
            trainable=TrainableConfig(self.trainable, Options(options)),
        )

    def key_of(self, name: str) -> str | None:
        """None: a parameter is no key of the training loop's configuration."""
        return None


def own_space_word(text: str | None, trainable: str) -> str:
    """``FILE.py:FUNCTION`` of ``--space text``. Raises ConfigError for what is no file of the user's."""
    found = space_word(text) if text is not None else None
    if found is None:
        got = "none" if text is None else repr(text)
        raise ConfigError(
            f"--trainable needs a space of your own, whose function returns a dict; got {got}. "
            f"Write e.g. --space {trainable.rpartition(':')[0]}."
        )
    return found


def load_trainable_space(text: str | None, trainable: str) -> TrainableSpace:
    """The space for ``--trainable trainable --space text``. Raises ConfigError as ``load_space``, and without one."""
    space = load_space(own_space_word(text, trainable))
    return TrainableSpace(**vars(space), trainable=trainable)
