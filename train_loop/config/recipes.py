"""Published configurations, ``train_loop/recipes/NAME.json``: a whole TrainConfig beside where it is from.

A file holds ``source`` and ``url``; ``expected`` (``top1`` in percent, null where nobody published it,
and under which conditions); ``cost`` (images, optimizer steps, and A100 hours derived from a published
throughput); ``chosen_by_us`` (keys that the source, as far as it could be read, leaves open); ``differs`` (what our
training does otherwise); ``config``. No torch here.
"""

from __future__ import annotations

import difflib
from pathlib import Path

from bigbatch.base.root import ROOT
from bigbatch.train_loop.config.rules import ConfigError

FOLDER = ROOT / "train_loop" / "recipes"


def recipe_names() -> list[str]:
    """The names that ``--recipe`` takes, sorted."""
    return sorted(path.stem for path in FOLDER.glob("*.json"))


def recipe_path(name: str) -> Path:
    """The recipe's file, which ``--config`` takes too. Raises ConfigError, with the nearest name."""
    if name in recipe_names():
        return FOLDER / f"{name}.json"
    near = difflib.get_close_matches(name, recipe_names(), n=1)
    hint = f"Did you mean {near[0]!r}?" if near else f"Choose one of {', '.join(recipe_names())}."
    raise ConfigError(f"--recipe must be the name of a published configuration; got {name!r}. {hint}")
