"""Advice that the plan prints about the chosen strategy."""

from __future__ import annotations

from bigbatch.train_loop.config.plug_ins import shown_name
from bigbatch.tune.models.names import CAPABILITIES, Capabilities, capabilities_of, lacking

TRIALS_A_VALUE = 3
"""With fewer configurations for each value that is compared, luck decides which one has a good one."""
TRIALS_A_SLOT = 4
"""A search learns little with fewer trials for each place at which one runs."""
WEAKNESSES = {
    "learns_from_stopped": (
        "learns only from trials that run to their end, and early stopping leaves few (--stopping none)"
    ),
    "categorical": "draws choices at random",
    "conditional": "draws conditional parameters at random",
    "constraints": "does not model the constraints of the space, so more of its trials violate them",
    "frontier": "learns from the ranks of trials within each value of the frontier, not from their values",
    "knows_others": "tries the best of the other studies first, and learns nothing else from them",
}
"""What the lack of a capability means, after the name of the strategy. Others end the plan: more objectives than a
strategy can optimise, or a target."""


def strategy_weakness(name: str, needs: Capabilities) -> str | None:
    """A sentence about what the chosen strategy cannot do in this search; None if it has no weakness here."""
    short = [words for capability, words in WEAKNESSES.items() if capability in lacking(name, needs)]
    if not short:
        return None
    better = [other for other, can in CAPABILITIES.items() if can.learns and not lacking(other, needs)]
    listed = " and ".join([", ".join(better[:-1])] * (len(better) > 1) + better[-1:])
    fix = f" {listed} {'have' if len(better) > 1 else 'has'} none of these limits." if better else ""
    return f"{shown_name(name)} {'; '.join(short)}.{fix}"


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


def too_few_for_the_values(trials: int, values: int, epochs: int, word: str) -> str | None:
    """A sentence for a search that compares more values than its trials can try; None if they are enough.

    Args:
        epochs: of a run that is not stopped early.
        word: what is compared, e.g. ``batch``.
    """
    enough = TRIALS_A_VALUE * values
    if values < 2 or trials >= enough:
        return None
    return (
        f"{trials} trial{'s' * (trials != 1)} for {values} values of {word} are fewer than {TRIALS_A_VALUE} for each, "
        f"so some may not be tried, and luck decides among the others. Write --trials {enough} (at most "
        f"{enough * epochs:,} epochs), or let the space have fewer values."
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
