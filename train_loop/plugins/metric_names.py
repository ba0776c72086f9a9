"""``metrics``: which metrics of validation a run reports beside loss and top-1, and under which names. No torch."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from bigbatch.train_loop.config.own_names import absolute
from bigbatch.train_loop.config.rules import ConfigError, is_own

KEY = "metrics"
TORCHMETRICS = "torchmetrics/"
"""``torchmetrics/MulticlassF1Score``: a class of that package."""
TAKEN = ("loss", "top1")
COSTS = ("_s", "_hours", "_bytes", "_steps")
"""Ends of names that say what a run costs."""


def metric_name(word: str) -> str:
    """The metric's name after ``val_``: that of the function, or of the class in snake case.

    ``net.py:miou`` → ``miou``; ``torchmetrics/MulticlassF1Score`` → ``multiclass_f1_score``.
    """
    name = word.rpartition(":")[2] if is_own(word) else word.removeprefix(TORCHMETRICS)
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    return re.sub(r"\W+", "_", name)


def checked_metrics(words: Iterable[str]) -> tuple[str, ...]:
    """The words of ``metrics``, with absolute paths.

    Raises ConfigError for a word that names no metric, and for two metrics of one name.
    """
    found = tuple(absolute(KEY, word) for word in words)
    for word in found:
        if not (is_own(word) or word.startswith(TORCHMETRICS)):
            raise ConfigError(
                f"{KEY} must name a function FILE.py:FUNCTION or a class torchmetrics/CLASS; got {word!r}. "
                "Write e.g. torchmetrics/MulticlassF1Score."
            )
    names = [metric_name(word) for word in found]
    for word, name in zip(found, names, strict=True):
        if name.endswith(COSTS) or name == "s":
            raise ConfigError(
                f"{KEY} must not have names that end as those of costs do ({', '.join(COSTS)}); got {word!r}. "
                "Rename the function."
            )
        if name in TAKEN or names.count(name) > 1:
            what = "a metric that each run reports" if name in TAKEN else "two metrics"
            raise ConfigError(f"{KEY} must have names of their own; got {word!r}, as {what}. Rename the function.")
    return found


def reported_by(words: Sequence[str], metric: str) -> bool:
    """Whether one of the words may report ``metric``, such as ``val_miou``, or ``val_scores_iou`` of ``scores``."""
    names = [metric_name(word) for word in words]
    return any(metric == f"val_{name}" or metric.startswith(f"val_{name}_") for name in names)
