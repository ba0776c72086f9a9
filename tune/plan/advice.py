"""Advice that the plan prints about the chosen sampler."""

from __future__ import annotations

COMPLETE_ONLY = ("gp",)
"""Samplers that learn only from trials that ran to their end. With early stopping there are few of these."""
UNCONDITIONAL_ONLY = ("gp", "cmaes")
"""Samplers that draw conditional parameters at random, such as the momentum of one optimizer."""


def sampler_weakness(name: str, stopping: str, conditional: bool, categorical: bool) -> str | None:
    """A sentence about what the chosen sampler cannot do in this search; None if it has no weakness here.

    Args:
        conditional: some parameters exist only with some values of another.
        categorical: some parameters are choices.
    """
    weaknesses = []
    if name in COMPLETE_ONLY and stopping != "none":
        weaknesses.append(
            "learns only from trials that run to their end, and early stopping leaves few (--stopping none)"
        )
    if name == "cmaes" and categorical:
        weaknesses.append("draws choices at random")
    if name in UNCONDITIONAL_ONLY and conditional:
        weaknesses.append("draws conditional parameters at random")
    return f"{name} {'; '.join(weaknesses)}. tpe has none of these limits." if weaknesses else None
