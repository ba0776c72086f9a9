"""How accurate the best trial of a search is, and which trials are worse, in words."""

from __future__ import annotations

from bigbatch.tune.study.certainty import Comparison
from bigbatch.tune.watch.observer import TrialView

MAX_NAMED_TRIALS = 8
"""A sentence names at most this many trials by their numbers."""


def how_sure(done: list[TrialView], found: Comparison, images: int, compared: str = "") -> str:
    """How accurate the best trial is, and which trials are worse, in words.

    Args:
        done: sorted, the best first.
        images: that measured their accuracy.
        compared: of what they are all the trials.
    """
    best_of = f"; it is the best of {len(done)} trials{compared} that ran to their end, and the range allows for that"
    chosen = best_of if len(done) > 1 else ""
    text = (
        f"Its accuracy is {100 * found.low:.1f} to {100 * found.high:.1f} % (95 % interval, measured on {images:,} "
        f"images{chosen}). The range does not include the effect of another seed: all trials have the same seed. "
    )
    others = list(zip(done[1:], found.worse, strict=True))
    if not others:
        return text + "No other trial that compares with it ran to its end: run more trials before you trust this one."
    near = [trial.number for trial, worse in others if not worse]
    return text + f"{_compared(near, len(others))} Runner-ups:"


def _compared(near: list[int], others: int) -> str:
    """``Trials 3 and 7 cannot be told apart from it at 95 %; the other 2 are clearly worse.``"""
    if not near:
        return "The other trial is clearly worse." if others == 1 else f"The other {others} trials are clearly worse."
    if len(near) == others:
        which = "The other trial" if others == 1 else f"None of the other {others} trials"
        return f"{which} can{'not' if others == 1 else ''} be told apart from it at 95 %."
    names = join_numbers(near) if len(near) <= MAX_NAMED_TRIALS else f"{len(near)} of the other {others}"
    noun = "" if len(near) > MAX_NAMED_TRIALS else ("Trial " if len(near) == 1 else "Trials ")
    left = others - len(near)
    rest = "the other one is clearly worse" if left == 1 else f"the other {left} are clearly worse"
    return f"{noun}{names} cannot be told apart from it at 95 %; {rest}."


def join_numbers(numbers: list[int]) -> str:
    """``3``, ``3 and 7``, ``1, 3 and 7``."""
    words = [str(number) for number in sorted(numbers)]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
