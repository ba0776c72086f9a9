"""What the watchdog says and when, with a clock of the test's own; and what displays make of it."""

import io
import random
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from bigbatch.train_loop.config import TrainConfig
from bigbatch.train_loop.progress import ProgressFile, StepProgress, progress_file
from bigbatch.tune.console.display import LiveTable, PlainLines, SearchProgress, make_display
from bigbatch.tune.runs.observer import TrialView
from bigbatch.tune.search.interrupts import SEARCHING, StopRequest
from bigbatch.tune.search.watch_thread import SearchWatch, Watchdog, WatchedTrial
from bigbatch.tune.trials.cluster_view import ClusterView, GroupView, NodeView, why_it_fits_nowhere
from helpers.waiting import wait_until


def node(name: str, cpus: float, gpus: float = 0, *, alive: bool = True, free: float | None = None) -> NodeView:
    total = {"CPU": cpus} | ({"GPU": gpus} if gpus else {})
    return NodeView(
        name, alive, total, total | {"CPU": cpus if free is None else free}, "" if alive else "no heartbeat"
    )


def group(*bundles: dict[str, float], verdict: str = "NO_RESOURCES", state: str = "PENDING") -> GroupView:
    return GroupView(bundles, state, verdict)


class Run:
    """A watchdog that is asked each second; keeps what it says, with the second."""

    def __init__(self, grace_s: float = 100, gone_s: float | None = 40) -> None:
        self.now = 1000.0
        self.dog = Watchdog(self.now, grace_s=grace_s, gone_s=gone_s, address="10.0.0.1:6379")
        self.trials: list[WatchedTrial] = []
        self.said: list[tuple[float, str]] = []
        self.view: ClusterView | None = None
        self.answered_at = self.now

    def go(self, seconds: float, *, answers: bool = True, step_s: float = 1.0) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now += step_s
            self.answered_at = self.now if answers else self.answered_at
            lines = self.dog.look(self.now, self.trials, self.view, self.answered_at)
            self.said += [(self.now - 1000, line) for line in lines]

    def add(self, number: int, phase: str, asks: str = "2 CPUs") -> WatchedTrial:
        self.trials.append(WatchedTrial(number, asks, self.now, self.now, phase))  # type: ignore[arg-type]
        return self.trials[-1]


def test_a_trial_that_no_node_can_hold_is_said_at_once_then_each_minute_and_ends_the_search():
    run = Run(grace_s=200)
    run.view = ClusterView((node("a", 1), node("b", 1)), (group({"CPU": 2}, verdict="INFEASIBLE"),))
    run.add(0, "waiting")
    run.go(190)
    assert [at for at, _ in run.said] == [5, 65, 125, 185]
    assert run.said[0][1] == (
        "trial 0 has waited 0:05 for 2 CPUs: its placement group is INFEASIBLE: a worker needs 2 CPUs, "
        "and no node has that (2 nodes with 1 CPU)"
    )
    assert run.dog.verdict is None
    run.go(15)
    assert run.dog.verdict is not None and "no trial can ever run: a worker needs 2 CPUs" in run.dog.verdict
    assert not run.dog.gone


def test_a_node_that_comes_back_in_time_ends_nothing():
    run = Run(grace_s=60)
    large, small = node("a", 4), node("b", 1)
    run.add(0, "waiting")
    for _ in range(3):
        run.view = ClusterView((small,), (group({"CPU": 2}),))
        run.go(50)
        run.view = ClusterView((small, large), (group({"CPU": 2}),))
        run.go(5)
    assert run.dog.verdict is None


def test_a_wait_that_will_end_is_news_after_a_minute_with_what_is_free():
    run = Run()
    run.view = ClusterView((node("a", 4, free=1), node("b", 4, free=0)), (group({"CPU": 2}, {"CPU": 2}),))
    run.add(3, "waiting", "4 CPUs")
    run.go(500)
    assert [at for at, _ in run.said] == [60 * n for n in range(1, 9)]
    assert "trial 3 has waited 1:00 for 4 CPUs" in run.said[0][1] and "4 CPUs asked, 1 of 8 CPUs free" in run.said[0][1]
    assert run.dog.verdict is None, "it may go on"


def test_one_trial_that_fits_nowhere_does_not_end_those_that_run():
    run = Run(grace_s=30)
    run.view = ClusterView((node("a", 1),), (group({"CPU": 2}),))
    run.add(0, "running")
    run.add(1, "waiting")
    run.go(59)
    assert run.dog.verdict is None and any("trial 1" in line for _, line in run.said)


def test_silence_is_news_after_three_times_the_longest_pause():
    run = Run()
    run.view = ClusterView((node("a", 2),))
    trial = run.add(0, "running")
    for _ in range(3):
        run.go(50)
        run.dog.heard(trial, run.now, "epoch 2: step 410 of 1251, 980 images/s")
    assert run.said == []
    run.go(149)
    assert run.said == [], "three times 50 s are expected"
    run.go(65)
    assert [at for at, _ in run.said] == [300, 360]
    assert run.said[0][1] == "trial 0 has not reported for 2:30; last report: epoch 2: step 410 of 1251, 980 images/s"


def test_workers_that_lost_their_node_are_said_to_wait_for_another():
    """Ray Train starts them again and again, each time for a minute."""
    run = Run(grace_s=600)
    run.view = ClusterView((node("a", 2), node("b", 2)))
    run.add(0, "running")
    run.go(3)
    lost = group({"CPU": 2}, {"CPU": 2}, state="RESCHEDULING", verdict="INFEASIBLE")
    run.view = ClusterView((node("a", 2), node("b", 2, alive=False)), (lost,))
    run.go(6)
    assert run.said[0] == (4, "Ray's node b has died: no heartbeat")
    assert "one of its nodes was lost" in run.said[1][1] and "room for 1" in run.said[1][1]
    run.go(600)
    assert run.dog.verdict is not None and len(run.said) == 12, "a line a minute"


def test_a_head_that_is_silent_is_gone_and_one_that_never_answered_is_not():
    run = Run()
    run.add(0, "running")
    run.go(200, answers=False)
    assert run.dog.verdict is None and "has not answered" not in str(run.said), "nobody knows how to ask it"
    run = Run()
    run.view = ClusterView((node("a", 2),))
    run.go(20)
    run.go(39, answers=False)
    assert run.said == [(35, "Ray's head at 10.0.0.1:6379 has not answered for 0:15")] and run.dog.verdict is None
    run.go(2, answers=False)
    assert run.dog.gone and run.dog.verdict is not None and "has not answered for 0:40" in run.dog.verdict
    in_a_job = Run(gone_s=None)
    in_a_job.view = run.view
    in_a_job.go(1)
    in_a_job.go(300, answers=False)
    assert in_a_job.dog.verdict is None and len(in_a_job.said) == 5, "the job decides; a line a minute"


def test_a_machine_that_slept_has_lost_no_head():
    run = Run()
    run.view = ClusterView((node("a", 2),))
    run.go(2)
    run.now += 3600
    run.go(10, answers=False)
    assert run.dog.verdict is None


@pytest.mark.parametrize("seed", range(20))
def test_what_fits_nowhere_is_what_no_placement_holds(seed):
    """Against trying all placements of up to four equal workers on up to three nodes."""
    rng = random.Random(seed)
    nodes = [node(str(i), rng.randint(0, 4), rng.randint(0, 2), alive=rng.random() < 0.8) for i in range(3)]
    bundle = {"CPU": float(rng.randint(1, 3))} | ({"GPU": 1.0} if rng.random() < 0.5 else {})
    workers = rng.randint(1, 4)

    def placed(left: int, rooms: list[dict[str, float]]) -> bool:
        if left == 0:
            return True
        for room in rooms:
            if all(room.get(key, 0) >= value for key, value in bundle.items()):
                for key, value in bundle.items():
                    room[key] -= value
                found = placed(left - 1, rooms)
                for key, value in bundle.items():
                    room[key] += value
                if found:
                    return True
        return False

    fits = placed(workers, [dict(n.total) for n in nodes if n.alive])
    assert (why_it_fits_nowhere(group(*[bundle] * workers), nodes) is None) == fits


def view(number: int, phase: str = "starting") -> TrialView:
    return TrialView(number, {}, TrainConfig(epochs=4), phase=phase, asks="2 CPUs")  # type: ignore[arg-type]


def test_displays_say_waiting_starting_running_and_the_part_of_an_epoch(monkeypatch):
    from rich.console import Console

    out = io.StringIO()
    lines = make_display(SearchProgress(2, 1, {}), out)
    assert isinstance(lines, PlainLines)
    table = LiveTable(SearchProgress(2, 1, {}), Console(file=io.StringIO(), force_terminal=True, width=100))

    def drawn() -> str:
        console = Console(width=100, record=True, file=io.StringIO())
        console.print(table._draw())
        return console.export_text()

    trial = view(7)
    for display in (lines, table):
        display.trial_planned(trial)
    assert out.getvalue() == "" and "starting" in drawn()
    trial.phase = "waiting"
    for display in (lines, table):
        display.trial_waiting(trial)
    assert "trial 7 waiting for 2 CPUs: " in out.getvalue() and "started" not in out.getvalue()
    assert "trial 7: waiting for 2 CPUs" in drawn() and "running" not in drawn()
    trial.phase = "running"
    for display in (lines, table):
        display.trial_started(trial)
    assert "trial 7 started" in out.getvalue() and "waiting" not in drawn()
    later = time.monotonic() + 61
    monkeypatch.setattr("bigbatch.train_loop.progress.time.monotonic", lambda: later)
    monkeypatch.setattr("bigbatch.tune.console.display.time.monotonic", lambda: later)
    trial.steps = StepProgress(1, 410, 1251, 980.4)
    lines._within_epochs[7]._clock = lambda: later
    for display in (lines, table):
        display.steps_done(trial)
        display.search_said("trial 7 has not reported for 1:00")
    assert "trial 7 epoch 1: step 410 of 1251, 980 images/s" in out.getvalue()
    assert " 0.3/4 " in drawn() and "has not reported" in drawn() and "Ctrl-C saves" in drawn()


def test_a_note_stays_above_the_table_while_trials_are_shown() -> None:
    """Such as where Ray's dashboard is. A line of the watchdog is there until it is out of date."""
    from rich.console import Console

    out, printed = io.StringIO(), io.StringIO()
    table = LiveTable(SearchProgress(2, 1, {}), Console(file=out, width=100, force_terminal=True))
    lines = PlainLines(SearchProgress(2, 1, {}), printed)
    asker = SimpleNamespace(start=lambda: None, stop=lambda: None, view=None, asked_at=0.0, answered_at=0.0)
    dog = Watchdog(time.monotonic(), grace_s=60, gone_s=40)
    both, stop = [lines, table], StopRequest()
    watch = SearchWatch(FakeBridge(), Path, both, lambda reason: None, dog, asker, stop)  # type: ignore[arg-type]
    with table:
        with watch.running():
            watch.note("Ray dashboard: http://127.0.0.1:8265 (token in [a])")
            stop.set("interrupted", signal.SIGINT)
            wait_until(lambda: SEARCHING in printed.getvalue(), lambda: "the signal was not acknowledged", 60)
        watch.note("too late")
    for text in (out.getvalue(), printed.getvalue()):
        assert text.count("Ray dashboard: http://127.0.0.1:8265 (token in [a])") == 1 and "too late" not in text
        assert text.count(SEARCHING) == 1


class FakeAsker:
    def __init__(self) -> None:
        self.view: ClusterView | None = None
        self.asked_at = self.answered_at = 0.0
        self.often = False

    def hurry(self) -> None:
        pass


class FakeBridge:
    def __init__(self) -> None:
        self.calls: list[tuple] = []

    def runs(self, number: int, steps: StepProgress | None = None) -> None:
        self.calls.append(("runs", number, steps))

    def waits(self, number: int, at: float) -> None:
        self.calls.append(("waits", number))


def test_the_watch_finds_who_waits_and_who_runs_and_leaves_no_file(tmp_path: Path):
    bridge, asker = FakeBridge(), FakeAsker()
    dog = Watchdog(time.monotonic(), grace_s=60, gone_s=40)
    files = {n: progress_file(tmp_path / f"trial-{n}.log") for n in range(3)}
    watch = SearchWatch(bridge, files.__getitem__, [], lambda reason: None, dog, asker, StopRequest())  # type: ignore[arg-type]
    for number in range(3):
        watch.trial_planned(view(number))
    watch.look()
    assert asker.often and bridge.calls == []
    asker.view, asker.asked_at = ClusterView((node("a", 2),), (group({"CPU": 2}),)), time.monotonic()
    watch.look()
    watch.tick()
    assert bridge.calls == [], "too early to call it a wait"
    asker.asked_at = time.monotonic() + 2
    ProgressFile(files[0]).begin()
    watch.look()
    assert bridge.calls == [], "nothing happens outside of the driver's thread"
    watch.tick()
    assert bridge.calls == [("runs", 0, StepProgress()), ("waits", 2)], "the one handed over last has no place"
    asker.view, bridge.calls[:] = ClusterView((node("a", 2),)), []
    watch.look()
    watch.tick()
    assert bridge.calls == []
    for number in range(3):
        watch.trial_ended(view(number))
    assert list(tmp_path.iterdir()) == []


def test_groups_of_trials_that_are_not_known_yet_make_no_waiting_trial_look_started(tmp_path: Path):
    bridge, asker = FakeBridge(), FakeAsker()
    dog = Watchdog(time.monotonic(), grace_s=60, gone_s=40)
    watch = SearchWatch(bridge, lambda n: tmp_path / str(n), [], lambda reason: None, dog, asker, StopRequest())  # type: ignore[arg-type]
    for number in range(2):
        watch.trial_planned(view(number))
    # The head answers later than it is asked: a third trial was handed over meanwhile.
    asker.view, asker.asked_at = ClusterView((node("a", 2),), (group({"CPU": 2}),) * 3), time.monotonic() + 2
    watch.look()
    watch.tick()
    assert bridge.calls == [("waits", 0), ("waits", 1)]
