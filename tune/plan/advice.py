"""What the plan says of the choices in it."""

from __future__ import annotations

COMPLETE_ONLY = ("gp",)
"""Samplers that learn from trials that ran to their end only: with early stopping, from few."""
UNCONDITIONAL_ONLY = ("gp", "cmaes")
"""Samplers that draw at random what only some trials have, such as one optimizer's momentum."""


def weakness(name: str, scheduler: str, conditional: bool, categorical: bool) -> str | None:
    """What the chosen sampler cannot do here, for the plan; None where it can all.

    Args:
        conditional: some parameters exist only with some values of another.
        categorical: some parameters are choices.
    """
    said = []
    if name in COMPLETE_ONLY and scheduler != "none":
        said.append("learns from trials that ran to their end only, and early stopping leaves few (--scheduler none)")
    if name == "cmaes" and categorical:
        said.append("draws choices at random")
    if name in UNCONDITIONAL_ONLY and conditional:
        said.append("draws conditional parameters at random")
    return f"{name} {'; '.join(said)}. tpe has none of that." if said else None
