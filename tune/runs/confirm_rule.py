"""``--confirm``: how many of the best trials are trained again, and with how many fresh seeds. Loads no library."""

from __future__ import annotations

import re
from dataclasses import dataclass

from bigbatch.train_loop.config import ConfigError

MOST_SEEDS = 100
LEAST_TRIALS = 6
"""The default rule confirms nothing in smaller searches: three runs would be more than half of the search again."""
AFFORDABLE_SHARE = 0.2
"""The default rule may use this part of the time that the search has trained …"""
AFFORDABLE_WORKER_S = 180.0
"""… or this many worker seconds, if that is more: a minute and a half on two devices. If fresh seeds refute the answer,
as much again is for the next candidates. With a budget all of them together may use a part of it."""


@dataclass(frozen=True)
class ConfirmRule:
    """Which trials of a finished search are confirmed."""

    best: int = 1
    """The best trials of each value of the frontier, or of the whole search without a frontier. 0: none."""
    seeds: int = 3
    """Fresh seeds for each of them."""
    affordable: bool = False
    """The default rule: the answer, the best trial, and what follows a refuted answer, if this costs little."""

    def __str__(self) -> str:
        return "auto" if self.affordable else f"{self.best}x{self.seeds}" if self.best else "none"


AFFORDABLE, NOTHING = ConfirmRule(affordable=True), ConfirmRule(0, 0)


def confirm_rule(text: str | None, trials: int) -> ConfirmRule:
    """``3x5`` → the three best with five fresh seeds each; ``none``; ``auto`` or None: the default.

    Raises ConfigError for other texts, and if the search has fewer trials than are to be confirmed.
    """
    word = (text or "auto").strip().lower()
    if word in ("auto", "none"):
        return NOTHING if word == "none" else AFFORDABLE
    match = re.fullmatch(r"(\d{1,4})\s*[x×]\s*(\d{1,4})", word)
    best, seeds = (int(match[1]), int(match[2])) if match else (0, 0)
    if not best or not 0 < seeds <= MOST_SEEDS:
        raise ConfigError(
            f"--confirm takes BESTxSEEDS with at most {MOST_SEEDS} seeds, auto or none; got {text!r}. "
            "Write e.g. --confirm 3x5: the three best with five fresh seeds each."
        )
    if best > trials:
        raise ConfigError(
            f"--confirm must not name more trials than the search has; got {best} of {trials}. "
            f"Write --confirm {trials}x{seeds} or less."
        )
    return ConfirmRule(best, seeds)
