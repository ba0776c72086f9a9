"""Why a search has no best trial, or an empty Pareto front, in one sentence. Loads neither Optuna nor Ray."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

ENDED_WORDS = {"PRUNED": "stopped early", "FAIL": "failed", "WAITING": "interrupted", "RUNNING": "running"}


@dataclass(frozen=True)
class UnfinishedTrial:
    """A trial that did not run to its end."""

    state: str
    infeasible: bool
    """Whether it violates a constraint of its space."""
    because: str


def no_result_in_words(trials: Sequence[UnfinishedTrial], *, several: bool) -> str:
    """Why nothing came out, and what helps.

    Args:
        trials: all that have begun. None of them ran to its end.
        several: whether the search has several objectives, so that its result is a front.
    """
    what = "the Pareto front is empty" if several else "there is no best trial"
    beyond = [trial for trial in trials if trial.infeasible]
    if beyond and len(beyond) == len(trials):
        which = f"none of the {len(trials)} trials meets" if len(trials) > 1 else "the only trial does not meet"
        return f"{what}: {which} the constraints of the space ({beyond[-1].because}). Loosen them, or widen the space."
    words = Counter("infeasible" if trial.infeasible else ENDED_WORDS.get(trial.state, trial.state) for trial in trials)
    listed = ", ".join(f"{count} {word}" for word, count in words.items())
    return f"{what}: no trial ran to its end{f' ({listed})' if listed else ''}."
