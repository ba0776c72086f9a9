"""How many trials share a GPU as a search goes on, and when one is said to be idle."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from optuna.trial import TrialState

from bigbatch.train_loop.config import TrainConfig
from bigbatch.train_loop.errors import FailureKind
from bigbatch.train_loop.host.device_use import SAY_AGAIN_S
from bigbatch.train_loop.launch.trial_task import TrialTask
from bigbatch.tune.plan import checked_plan
from bigbatch.tune.plan.checked_plan import make_plan
from bigbatch.tune.plan.machine import AT_MOST, Machine, Node
from bigbatch.tune.plan.options import SearchOptions
from bigbatch.tune.runs.observer import TrialView
from bigbatch.tune.runs.run import TRIALS_PER_GPU_ATTR
from bigbatch.tune.search.capacity import Capacity
from bigbatch.tune.search.gpu_use import IdleGpus, TrialsPerGpu
from bigbatch.tune.search.running import SearchRun
from bigbatch.tune.storage.store import StudyStore
from helpers.bridges import EPOCHS, make_bridge, record, task_of

GIB = 2**30
H200 = Machine((Node(16, 1, 128 * GIB, 140 * GIB),))


class Searching:
    """A search on one GPU in simulated time, up to where Ray would start its trials."""

    def __init__(self, tmp_path: Path, patch: pytest.MonkeyPatch, per_gpu: int, trials: int) -> None:
        patch.setattr(checked_plan, "local_machine", lambda: H200)
        options = SearchOptions(space="smoke", study="s", output=str(tmp_path), trials=16, trials_per_gpu=per_gpu)
        self.plan = make_plan(options)
        self.store = StudyStore.create(self.plan.folder, "s", self.plan.to_dict(), None)
        self.now = 1000.0
        patch.setattr(self.store.ledger, "_clock", lambda: self.now)
        self.run, self.said = SearchRun(self.plan), list[str]()
        self.run.capacity = Capacity(self.plan.share, 16, gpus=True, machine=H200)
        sharing = TrialsPerGpu(self.run, self.store, self.said.append)
        self.bridge = make_bridge(self.store, trials=trials, observers=[], sharing=sharing)
        self.bridge._room, self.bridge._make_task = self.run.capacity.room, self._task

    def _task(self, number: int, config: TrainConfig) -> TrialTask:
        return replace(task_of(number, config), worker_resources=self.run.capacity.bundle(number))

    def start(self, *names: str) -> list[dict[str, float] | None]:
        """Ask for a trial under each name. Returns what a worker of it gets; None: there is no room."""
        tasks = [self.bridge.suggest(name) for name in names]
        return [cast(Any, task["worker_resources"]) if isinstance(task, dict) else None for task in tasks]

    def train(self, name: str, seconds: float = 40.0, **measured: float) -> None:
        """Let a trial train to its end, in epochs of an eighth of ``seconds``."""
        for epoch in range(1, EPOCHS + 1):
            self.now += seconds / EPOCHS
            epoch_s = seconds / EPOCHS / 2
            self.bridge.observe(name, {"records": [record(epoch, 0.5, train_s=epoch_s, **measured)]})
        self.bridge.on_trial_complete(name)

    @property
    def attrs(self) -> list[dict[str, Any]]:
        return [trial.user_attrs for trial in self.store.study.get_trials(deepcopy=False)]


@pytest.fixture
def search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    opened: list[Searching] = []

    def begin(per_gpu: int, trials: int = 16) -> Searching:
        opened.append(Searching(tmp_path, monkeypatch, per_gpu, trials))
        return opened[-1]

    yield begin
    for one in opened:
        one.store.close()


HALF, WHOLE = {"CPU": 8.0, "GPU": 0.5}, {"CPU": 16.0, "GPU": 1.0}


def test_hours_of_trials_that_share_a_gpu_sum_to_what_it_was_held(search) -> None:
    two = search(2)
    assert two.start("a", "b", "c") == [HALF, HALF, None]
    two.now += 60.0
    assert two.store.ledger.held_s == pytest.approx(60.0), "one GPU, not two"
    two.train("a")
    two.train("b")
    hours = [attrs["gpu_hours"] for attrs in two.attrs]
    assert hours == pytest.approx([100 / 2 / 3600, 140 / 2 / 3600]), "half a GPU each, from its start to its end"
    used = two.store.ledger.used()
    assert sum(used.trials_s.values()) == pytest.approx(used.held_s) == pytest.approx(3600 * sum(hours))
    assert [attrs[TRIALS_PER_GPU_ATTR] for attrs in two.attrs] == [2, 2]


def test_a_trial_that_lacks_memory_beside_another_is_repeated_alone_and_never_fails(search) -> None:
    two = search(2)
    two.start("a", "b")
    full = {"records": [], "failure": "DeviceMemoryError: CUDA out of memory", "failure_kind": "device memory"}
    assert two.bridge.observe("b", full), "Tune ends its processes"
    two.bridge.on_trial_complete("b")
    assert two.said == [
        "each trial has a GPU of its own from now on: 2 had too little memory: "
        "1 trial at a time, each with 1 worker of 16 CPU + 1 GPU"
    ]
    assert json.loads((two.plan.folder / "study.json").read_text())[AT_MOST] == 1
    assert two.start("c") == [None], "its neighbour still has half of the GPU"
    two.train("a")
    assert two.start("c") == [WHOLE]
    two.train("c")
    first, repeated = two.store.study.get_trials(deepcopy=False)
    assert [t.state for t in (first, repeated)] == [TrialState.COMPLETE] * 2
    assert repeated.user_attrs["attempts"] == 2 and repeated.user_attrs[TRIALS_PER_GPU_ATTR] == 1
    assert two.start("d") == [WHOLE]
    assert two.bridge.observe("d", full), "alone it has failed"
    assert two.store.study.get_trials(deepcopy=False)[2].state == TrialState.FAIL


def test_two_neighbours_that_both_lack_memory_lower_the_number_once(search) -> None:
    four = search(4)
    four.start(*"abcd")
    for name in "ab":
        four.bridge.fail(name, "DeviceMemoryError: CUDA out of memory", FailureKind.DEVICE_MEMORY)
    assert four.run.plan.sharing.at_most == four.run.capacity.per_gpu == 3 and len(four.said) == 1
    assert four.start("e") == [{"CPU": 5.0, "GPU": 0.3333}], "beside two quarters of the GPU"


class Search:
    """Epochs of 200 s, of which 40 s are validation; what the observer said."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.now = 0.0
        self.observer = IdleGpus(self.said.append, lambda: self.now)

    def epochs(self, trial: int, *busy: float | None) -> list[str]:
        view = TrialView(number=trial, params={}, config=None)
        for part in busy:
            self.observer.epoch_ended(view, {"train_s": 160.0, "val_s": 40.0, "gpu_utilization": part})
        said, self.said[:] = list(self.said), []
        return said


def test_ten_minutes_of_an_idle_gpu_are_said_with_the_trial() -> None:
    search = Search()
    assert search.epochs(7, 0.1, 0.1) == []
    (line,) = search.epochs(7, 0.04)
    assert "trial 7" in line and "8 % of 10 minutes" in line and "--profile-steps 50" in line


def test_busy_gpus_and_gpus_that_nobody_measures_are_not_mentioned() -> None:
    search = Search()
    assert search.epochs(1, *[0.9] * 10) == []
    assert search.epochs(2, *[None] * 10) == []
    assert search.epochs(3, *[0.0, 0.0, 0.7] * 4) == [], "23 % of the time"


def test_it_is_said_at_most_once_an_hour() -> None:
    search = Search()
    assert len(search.epochs(1, *[0.0] * 30)) == 1
    assert search.epochs(2, *[0.0] * 30) == []
    search.now += SAY_AGAIN_S
    assert len(search.epochs(2, *[0.0] * 3)) == 1


def test_epochs_of_several_trials_are_not_added_up() -> None:
    search = Search()
    assert [line for trial in range(5) for line in search.epochs(trial, 0.0, 0.0)] == []
