"""The second part of a search: trials that are decided when all trials of the first part have ended.

The strategy proposes the trials of the first part, and sees no others. The trials of the second part have
``FOLLOWS_ATTR`` and run to their ends. Each is a function of the study, so a killed search goes on with the same ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from optuna.trial import FrozenTrial

from bigbatch.tune.study.trial_facts import Kind, earlier_of, of_kind, search_trials, was_refused


@dataclass(frozen=True)
class NextTrial:
    """A trial of the second part that is still to begin."""

    params: Mapping[str, object]
    says: Mapping[str, object]
    """The value of ``FOLLOWS_ATTR``, for JSON: what the first part said."""
    attrs: Mapping[str, object] = field(default_factory=dict)
    """Further user attributes."""


class FollowUp(Protocol):
    """Decides the second part."""

    @property
    def first_share(self) -> float:
        """The part of a budget that the first part may use."""

    def is_due(self, configurations: int) -> bool:
        """Whether the first part has enough configurations, so that it is over when all of them have ended."""

    def next_trial(self, trials: Sequence[FrozenTrial]) -> NextTrial | None:
        """The next trial of the second part. None: the first part says too little yet, and gets another trial.

        Args:
            trials: all of the study. Those of the first part have ended.
        """


@dataclass(frozen=True)
class FollowUpInBudget:
    """A second part that also begins when the first part has used its share of the budget."""

    inner: FollowUp
    used: Callable[[], float]
    """Returns the part of the budget that is used, 0 to 1; 0 without one."""

    @property
    def first_share(self) -> float:
        """The inner one's."""
        return self.inner.first_share

    def is_due(self, configurations: int) -> bool:
        """As the inner one, or because of the budget."""
        return self.inner.is_due(configurations) or self.used() >= self.first_share

    def next_trial(self, trials: Sequence[FrozenTrial]) -> NextTrial | None:
        """As the inner one."""
        return self.inner.next_trial(trials)


def first_part(trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """The trials of the first part, without confirmations."""
    return of_kind(trials, Kind.SEARCH, Kind.CONTINUATION, Kind.RETRY)


def second_part(trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """The trials of the second part, without confirmations and repeated ones: one for each that was decided."""
    return [t for t in of_kind(trials, Kind.FOLLOW_UP) if earlier_of(t) is None]


def count_configurations(trials: Sequence[FrozenTrial]) -> int:
    """How many configurations these trials try: what continues or repeats another trial does not count, nor what was
    refused before it began."""
    return sum(earlier_of(t) is None and not was_refused(t) for t in search_trials(trials))
