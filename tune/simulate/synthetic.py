"""Invented landscapes: tables of learning curves whose laws are known, for measuring strategies.

Families: ``wide`` (one optimizer, a learning rate over 4.5 decades, in every second table the number of epochs is
searched too), ``projected`` (three optimizers with parameters of their own, a rate already scaled by a rule) and
``steps`` (another law of curves and of divergence). Each seed of a family is another table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from bigbatch.train_loop.config import ConfigError
from bigbatch.tune.simulate.curves import CurveTable
from bigbatch.tune.simulate.synthetic_power import power_law_table
from bigbatch.tune.simulate.synthetic_steps import steps_table

ROWS = 500
FAMILIES: Mapping[str, Callable[[int, int], CurveTable]] = {
    "wide": partial(power_law_table, wide=True),
    "projected": partial(power_law_table, wide=False),
    "steps": steps_table,
}
"""Each family's maker. Defaults were chosen on the first two; ``steps`` is kept aside to check them."""


def synthetic_table(family: str, seed: int, rows: int = ROWS) -> CurveTable:
    """The table number ``seed`` of a family. Raises ConfigError for an unknown family."""
    if family not in FAMILIES:
        raise ConfigError(f"a synthetic family is one of {', '.join(FAMILIES)}; got {family!r}. Write one of them.")
    return FAMILIES[family](seed, rows)
