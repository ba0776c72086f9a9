"""How many trials share a GPU as a search goes on."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import optuna
import pytest
from optuna.trial import TrialState

from bigbatch.train_loop.config import TrainConfig
from bigbatch.train_loop.launch.trial_task import TrialTask
from bigbatch.tune.plan import checked_plan
from bigbatch.tune.plan.checked_plan import make_plan
from bigbatch.tune.plan.machine import AT_MOST, Machine, Node
from bigbatch.tune.plan.options import SearchOptions
from bigbatch.tune.runs.run import CONTINUES_ATTR, EPOCH_ATTR, TRIALS_PER_GPU_ATTR, WORKERS_ATTR
from bigbatch.tune.search.capacity import Capacity
from bigbatch.tune.search.gpu_use import TrialsPerGpu, room_on_a_gpu
from bigbatch.tune.search.running import SearchRun
from bigbatch.tune.storage.store import StudyStore
from helpers.bridges import EPOCHS, make_bridge, record, task_of

GIB = 2**30
H200 = Machine((Node(16, 1, 128 * GIB, 140 * GIB),))


def ended(
    utilization: float | None = 0.5, memory: int | None = GIB, time_s: float = 30.0, data_s: float = 0.0, **attrs: Any
) -> optuna.trial.FrozenTrial:
    """A trial of ``time_s`` seconds, with five epochs of two seconds each."""
    one: dict[str, Any] = {"train_s": 1.9, "val_s": 0.1, "data_s": data_s, "memory_bytes": memory}
    shared = attrs.get(TRIALS_PER_GPU_ATTR, 1)
    values: dict[str, Any] = {
        f"{EPOCH_ATTR}{e:05d}": {**one, "epoch": e, "gpu_utilization": utilization} for e in range(1, 6)
    }
    values |= {"gpu_hours": time_s / shared / 3600, "attempts": 1, WORKERS_ATTR: 1, **attrs}
    return optuna.create_trial(state=TrialState.COMPLETE, value=0.5, user_attrs=values)


def test_before_two_trials_have_ended_nothing_is_known() -> None:
    assert room_on_a_gpu([], H200, 16) == room_on_a_gpu([ended()], H200, 16) == {}
    later = ended(**{CONTINUES_ATTR: 0})  # its records hold epochs that are not in its time
    assert room_on_a_gpu([ended(), later, ended(attempts=2)], H200, 16) == {}


@pytest.mark.parametrize(
    ("trial", "use"),
    [
        (ended(0.5), 6),  # 5 of 30 s
        (ended(1.0), 3),  # the ten seconds of its epochs
        (ended(None), 3),  # nobody measured: it counts as busy
        (ended(1.0, time_s=11.0), 1),  # it fills the GPU
        (ended(0.1, data_s=1.5), 4),  # 7.5 of 30 s wait for data: the cores are busy
        (ended(0.5, **{TRIALS_PER_GPU_ATTR: 2}), 12),  # half of the 5 s is its neighbour's
    ],
)
def test_a_trial_is_busy_for_a_part_of_its_whole_time(trial: optuna.trial.FrozenTrial, use: int) -> None:
    assert room_on_a_gpu([trial, trial], H200, 16)["use"] == use


def test_memory_cores_and_trials_bound_the_number_too() -> None:
    assert room_on_a_gpu([ended(), ended(memory=20 * GIB)], H200, 16) == {
        "memory": 5, "use": 6, "cores": 8, "number of trials": 4,
    }  # fmt: skip  # 0.9 × 140 / (1.25 × 20) = 5.04
    assert room_on_a_gpu([ended(), ended(memory=120 * GIB)], H200, 16)["memory"] == 1, "a probed micro-batch fills it"
    assert room_on_a_gpu([ended(), ended(memory=None)], H200, 16)["memory"] == 1, "not measured"
    unknown = Machine((Node(16, 1, 128 * GIB),))
    assert room_on_a_gpu([ended()] * 2, unknown, 16)["memory"] == 1
    few = Machine((Node(64, 0), Node(6, 2, 0, 140 * GIB), Node(64, 2, 0, 140 * GIB)))
    assert room_on_a_gpu([ended()] * 2, few, 16)["cores"] == 1, "three cores a GPU"
    assert room_on_a_gpu([ended()] * 2, few, 64)["number of trials"] == 4, "16 at once on four GPUs"
    assert "number of trials" not in room_on_a_gpu([ended()] * 2, few, None), "a budget is the only limit"


class Searching:
    """A search on one GPU in simulated time, up to where Ray would start its trials."""

    def __init__(self, tmp_path: Path, patch: pytest.MonkeyPatch, per_gpu: str, trials: int) -> None:
        patch.setattr(checked_plan, "local_machine", lambda: H200)
        options = SearchOptions(space="smoke", study="s", output=str(tmp_path), trials=16, trials_per_gpu=per_gpu)
        self.plan = make_plan(options)
        self.store = StudyStore.create(self.plan.folder, "s", self.plan.to_dict(), None)
        self.now = 1000.0
        patch.setattr(self.store.ledger, "_clock", lambda: self.now)
        self.run, self.said = SearchRun(self.plan), list[str]()
        self.run.capacity = Capacity(self.plan.share, 16, gpus=True, machine=H200)
        sharing = TrialsPerGpu(self.run, self.store, self.said.append)
        self.bridge = make_bridge(self.store, trials=trials, observers=[sharing], sharing=sharing)
        self.bridge._room, self.bridge._make_task = self.run.capacity.room, self._task

    def _task(self, number: int, config: TrainConfig) -> TrialTask:
        return replace(task_of(number, config), worker_resources=self.run.capacity.bundle)

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

    def begin(per_gpu: str, trials: int = 16) -> Searching:
        opened.append(Searching(tmp_path, monkeypatch, per_gpu, trials))
        return opened[-1]

    yield begin
    for one in opened:
        one.store.close()


HALF, WHOLE = {"CPU": 8.0, "GPU": 0.5}, {"CPU": 16.0, "GPU": 1.0}
LIGHT = {"memory_bytes": GIB, "gpu_utilization": 0.5}


def test_hours_of_trials_that_share_a_gpu_sum_to_what_it_was_held(search) -> None:
    two = search("2")
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


def test_auto_begins_alone_and_rises_once_two_trials_have_ended(search) -> None:
    auto = search("auto")
    for name in "ab":
        assert auto.start(name, "none") == [WHOLE, None] and not auto.said
        auto.train(name, **LIGHT)
    # 0.5 of 20 s of epochs in a trial of 40 s: room for four, as by the number of trials
    (line,) = auto.said
    assert line.startswith(
        "4 trials share each GPU from now on; there is room by memory for 100, use for 4, cores for 8"
    )
    assert auto.start(*"cdefg") == [{"CPU": 4.0, "GPU": 0.25}] * 4 + [None]
    assert json.loads((auto.plan.folder / "study.json").read_text())["concurrency"] == 4
    assert auto.run.plan.share.per_gpu == 4, "what the last lines of the search reckon with"
    auto.train("c", **LIGHT, data_s=9.0)
    assert len(auto.said) == 1, "it only rises"


def test_a_trial_that_lacks_memory_beside_another_is_repeated_alone_and_never_fails(search) -> None:
    two = search("2")
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
