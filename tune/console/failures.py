"""Why trials failed, for the end of a search. The traceback of a user's code is printed once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from optuna.trial import FrozenTrial

from bigbatch.train_loop.errors import in_one_line
from bigbatch.tune.runs.observer import TrialView
from bigbatch.tune.runs.run import was_refused


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


def refusals_in_words(trials: Sequence[FrozenTrial]) -> list[str]:
    """A line about the configurations that could not begin; no line if all could."""
    refused = [trial for trial in trials if was_refused(trial)]
    if not refused:
        return []
    because = in_one_line(str(refused[-1].user_attrs.get("ended_because", "")))
    what = f"{len(refused)} configuration{'s were' if len(refused) > 1 else ' was'} refused before training"
    return [f"{what}, and cost{'' if len(refused) > 1 else 's'} no trial; the last one: {because}."]
