"""Why trials failed, for the end of a search. The traceback of a user's code is printed once."""

from __future__ import annotations

from collections.abc import Iterable

from bigbatch.tune.watch.observer import TrialView


def failures_in_words(trials: Iterable[TrialView]) -> list[str]:
    """A text for each failed trial. One of several lines names the first trial where it would repeat that one's."""
    said: dict[str, int] = {}
    texts = []
    for trial in trials:
        if trial.state != "FAIL":
            continue
        again = f" (tried again as trial {trial.retried_by})" if trial.retried_by is not None else ""
        because = trial.ended_because or ""
        first = said.setdefault(because, trial.number)
        if "\n" in because and first != trial.number:
            because = f"as trial {first}"
        texts.append(f"trial {trial.number} failed{again}: {because}")
    return texts
