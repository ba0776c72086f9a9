"""Objectives that a whole training function reports: any name, with its direction."""

from __future__ import annotations

import math

from bigbatch.train_loop.config import ConfigError
from bigbatch.tune.study import metrics
from bigbatch.tune.study.objective import NATURAL, SHORT_DIRECTIONS, Objective


def reported_objectives(option: str, text: str) -> tuple[Objective, ...]:
    """``accuracy:max,loss:min`` → the objectives. What no trial reports, such as chance level, is not known.

    Raises ConfigError for a missing direction where none is natural, and a metric that is named twice.
    """
    directions = {short: full for full, short in SHORT_DIRECTIONS.items()}
    found: list[Objective] = []
    for part in text.split(","):
        name, colon, word = (piece.strip() for piece in part.partition(":"))
        known = metrics.known_metrics().get(name)
        if not name:
            raise ConfigError(f"{option} takes NAME:max or NAME:min; got {text!r}. Write e.g. accuracy:max.")
        if not colon and (known is None or known.better not in NATURAL):
            raise ConfigError(f"{option} needs a direction for {name}; got none. Write {name}:max or {name}:min.")
        if colon and word not in directions:
            raise ConfigError(
                f"{option} takes max or min after the colon; got {part!r}. Write {name}:max or {name}:min."
            )
        if any(name == other.name for other in found):
            raise ConfigError(f"{option} names each metric once, in one direction; got {name} twice. Keep one of them.")
        direction = directions[word] if colon else NATURAL[known.better if known else ""]
        found.append(Objective(name, direction, math.nan))
    return tuple(found)
