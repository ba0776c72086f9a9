"""Whole searches of a real plan by the real manager, without Ray: invented values, two slots, killed by the test."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from optuna.trial import FrozenTrial

from bigbatch.train_loop.config import TrainConfig
from bigbatch.train_loop.errors import FailureKind
from bigbatch.tune.models.protocol import TrialDecision
from bigbatch.tune.plan.search_plan import SearchPlan
from bigbatch.tune.search.first_trials import enqueue_first_trials
from bigbatch.tune.search.running import configurations_of, missing_in, strategy_of
from bigbatch.tune.storage.store import StudyStore
from bigbatch.tune.trials.live_trial import LiveTrial, Over
from bigbatch.tune.trials.trial_manager import TrialManager

Curve = Callable[[TrainConfig, int], float]
"""From a configuration and an epoch to its validation top-1."""


@dataclass
class PlannedSearch:
    """A search that is driven step by step: a step starts a trial in a free slot, or ends an epoch in a busy one."""

    plan: SearchPlan
    curve: Curve
    fails: Callable[[FrozenTrial], bool] = lambda _: False
    """Whether the trial's process dies in its first epoch."""
    slots: dict[str, LiveTrial | None] = field(default_factory=lambda: dict.fromkeys("AB"))
    store: StudyStore = field(init=False)
    manager: TrialManager = field(init=False)
    steps: int = 0
    over: bool = False

    def __post_init__(self) -> None:
        self._begin(StudyStore.create(self.plan.folder, self.plan.study, self.plan.to_dict(), None))

    def _begin(self, store: StudyStore) -> None:
        self.store = store
        self.manager = TrialManager(
            self.store,
            strategy_of(self.plan),
            configurations_of(self.plan),
            objective=self.plan.objectives.first,
            confirm=missing_in(self.plan),
            trials=self.plan.trials,
            workers=1,
            observers=[],
        )
        self.manager.recover()
        enqueue_first_trials(self.plan, self.store.study)

    def kill(self) -> None:
        """Forget all but the study; the next driver finds the trials that ran waiting, and goes on with them."""
        self.store.close()
        self._begin(StudyStore.open(self.plan.folder, None))
        busy = {name: live.trial.number for name, live in self.slots.items() if live is not None}
        self.slots, self.over = dict.fromkeys(self.slots), False
        for name in sorted(busy, key=lambda name: busy[name]):
            self._fill(name)

    def _fill(self, name: str) -> None:
        try:
            self.slots[name] = self.manager.next_trial(name)
        except Over:
            self.over = True

    def step(self) -> None:
        """One step of the slot whose turn it is."""
        name = list(self.slots)[self.steps % len(self.slots)]
        self.steps += 1
        live = self.slots[name]
        if live is None:
            self._fill(name)
            return
        if self.fails(self.trials[live.trial.number]):
            self.manager.fail(name, f"ImageError in trial {live.trial.number}", FailureKind.IMAGES)
            self.slots[name] = None
            return
        epoch = live.view.epoch + 1
        value = self.curve(live.config, epoch)
        record: dict[str, object] = {"epoch": epoch, "val_top1": value, "val_loss": 1.0, "optimizer_steps": epoch}
        if self.manager.take_in(name, record) != TrialDecision.GO_ON:
            self.manager.ended(name)
            self.slots[name] = None

    def run(self, kills: tuple[int, ...] = ()) -> PlannedSearch:
        """To its end. ``kills``: before these steps."""
        while not (self.over and not any(self.slots.values())):
            if self.steps in kills:
                self.kill()
                kills = tuple(k for k in kills if k != self.steps)
            self.step()
            assert self.steps < 2000, "it does not end"
        return self

    @property
    def trials(self) -> list[FrozenTrial]:
        return self.store.study.get_trials(deepcopy=False)
