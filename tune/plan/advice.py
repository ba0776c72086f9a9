"""Advice that the plan prints about the chosen strategy."""

from __future__ import annotations

from bigbatch.train_loop.config.plug_ins import shown_name
from bigbatch.tune.strategies.names import capabilities_of

TRIALS_A_SLOT = 4
"""A search learns little with fewer trials for each place at which one runs."""


def strategy_weakness(name: str, stopping: str, conditional: bool, categorical: bool) -> str | None:
    """A sentence about what the chosen strategy cannot do in this search; None if it has no weakness here.

    Args:
        conditional: some parameters exist only with some values of another.
        categorical: some parameters are choices.
    """
    can, weaknesses = capabilities_of(name), []
    if not can.learns_from_stopped and stopping != "none":
        weaknesses.append(
            "learns only from trials that run to their end, and early stopping leaves few (--stopping none)"
        )
    if categorical and not can.categorical:
        weaknesses.append("draws choices at random")
    if conditional and not can.conditional:
        weaknesses.append("draws conditional parameters at random")
    return (
        f"{shown_name(name)} {'; '.join(weaknesses)}. curves and tpe have none of these limits." if weaknesses else None
    )


def nothing_to_search(parameters: int, trials: int) -> str | None:
    """A sentence for several trials of a space in which nothing is left to search; None if something is.

    Args:
        parameters: how many the search may choose.
    """
    if parameters or trials < 2:
        return None
    return (
        f"every parameter is fixed, so all {trials} trials train the same configuration. Write --trials 1, or leave "
        "a parameter out of --set."
    )


def only_tries_the_best(name: str, *, warm_start: bool) -> str | None:
    """A sentence for a warm start whose strategy does not learn from other studies; None for one that does."""
    if not warm_start or capabilities_of(name).knows_others:
        return None
    return (
        f"{shown_name(name)} tries the best of the other studies first, and learns nothing else from them; curves, "
        "tpe, gp and cmaes do."
    )


def nothing_to_learn_from(name: str, trials: int, slots: int, workers: int) -> str | None:
    """A sentence for a search whose trials all start at the same time; None if later ones can learn from earlier ones.

    Args:
        slots: trials that run at the same time.
        workers: of each trial.
    """
    if not capabilities_of(name).learns or not 1 < trials <= slots:
        return None
    fewer = workers * TRIALS_A_SLOT
    return (
        f"all {trials} trials start at the same time, so none learns from another. Write e.g. --trials "
        f"{TRIALS_A_SLOT * slots}, or --workers {fewer} for larger trials, of which fewer run at a time."
    )
