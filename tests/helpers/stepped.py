"""Whole searches by the real manager, without Ray, which a test drives step by step and kills."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Self

from optuna.trial import FrozenTrial

from bigbatch.tune.models.protocol import TrialDecision
from bigbatch.tune.storage.store import StudyStore
from bigbatch.tune.trials.live_trial import LiveTrial, Over
from bigbatch.tune.trials.trial_manager import TrialManager


@dataclass(kw_only=True)
class SteppedSearch(ABC):
    """A search with two slots: a step starts a trial in a free slot, or ends an epoch in a busy one."""

    store: StudyStore = field(init=False)
    manager: TrialManager = field(init=False)
    slots: dict[str, LiveTrial | None] = field(default_factory=lambda: dict.fromkeys("AB"))
    steps: int = 0
    over: bool = False

    def __post_init__(self) -> None:
        self.open()

    @abstractmethod
    def open(self) -> None:
        """Begin, or go on as the next process does."""

    @abstractmethod
    def goes_on(self, name: str, live: LiveTrial) -> bool:
        """End an epoch of a busy slot. Returns whether its trial goes on."""

    def take_in(self, name: str, record: dict[str, object]) -> bool:
        """Report an epoch's record. Returns whether its trial goes on."""
        decision = self.manager.take_in(name, record)
        if decision != TrialDecision.GO_ON:
            self.manager.ended(name)
        return decision == TrialDecision.GO_ON

    def kill(self) -> None:
        """Forget all but the study, and give each slot its trial again."""
        self.store.close()
        self.open()
        self.fill_again()

    def fill_again(self, but: Collection[int] = ()) -> None:
        """After a kill, give the slots their trials again; ``but``: numbers of trials that had ended."""
        busy = {name: live.trial.number for name, live in self.slots.items() if live is not None}
        self.slots, self.over = dict.fromkeys(self.slots), False
        for name in sorted(busy, key=busy.__getitem__):
            if busy[name] not in but:
                self._fill(name)

    def step(self) -> None:
        """One step of the slot whose turn it is."""
        name = list(self.slots)[self.steps % len(self.slots)]
        self.steps += 1
        live = self.slots[name]
        if live is None:
            self._fill(name)
        elif not self.goes_on(name, live):
            self.slots[name] = None

    def _fill(self, name: str) -> None:
        try:
            self.slots[name] = self.manager.next_trial(name)
        except Over:
            self.over = True

    def run(self, until: int | None = None, kills: Collection[int] = ()) -> Self:
        """Until it is over, or for so many steps; killed before the steps ``kills``."""
        kills = set(kills)
        while not (self.over and not any(self.slots.values())) and (until is None or self.steps < until):
            if self.steps in kills:
                self.kill()
                kills.remove(self.steps)
            self.step()
            assert self.steps < 2000, "it does not end"
        return self

    @property
    def trials(self) -> list[FrozenTrial]:
        return self.store.study.get_trials(deepcopy=False)
