"""What the watchdog says and when, with a clock of the test's own; and what displays make of it."""

import io
from pathlib import Path

from bigbatch.train_loop.config import TrainConfig
from bigbatch.train_loop.progress import ProgressFile, StepProgress, progress_file
from bigbatch.tune.console.display import LiveTable, PlainLines, SearchProgress
from bigbatch.tune.search.watch_thread import HANDED, SearchWatch, Watchdog, WatchedTrial
from helpers.recorded_studies import recorded_run


class Run:
    """A watchdog that is asked each second; keeps what it says, with the second."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.dog = Watchdog(self.now)
        self.trials: list[WatchedTrial] = []
        self.said: list[tuple[float, str]] = []

    def go(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now += 1.0
            if line := self.dog.look(self.now, self.trials):
                self.said.append((self.now - 1000, line))

    def add(self, number: int) -> WatchedTrial:
        self.trials.append(WatchedTrial(number, self.now))
        return self.trials[-1]


def test_a_trial_whose_workers_do_not_start_is_said_each_minute() -> None:
    run = Run()
    run.add(0)
    run.go(130)
    assert [at for at, _ in run.said] == [60, 120]
    assert run.said[0][1] == f"trial 0 has not reported for 1:00; last report: {HANDED}"


def test_silence_is_news_after_three_times_the_longest_pause():
    run = Run()
    trial = run.add(0)
    for _ in range(3):
        run.go(50)
        run.dog.heard(trial, run.now, "epoch 2: step 410 of 1251, 980 images/s")
    assert run.said == []
    run.go(149)
    assert run.said == [], "three times 50 s are expected"
    run.go(65)
    assert [at for at, _ in run.said] == [300, 360]
    assert run.said[0][1] == "trial 0 has not reported for 2:30; last report: epoch 2: step 410 of 1251, 980 images/s"


def test_a_note_stays_above_the_table_while_trials_are_shown() -> None:
    """Such as where Ray's dashboard is. A line of the watchdog is there until it is out of date."""
    from rich.console import Console

    out, printed = io.StringIO(), io.StringIO()
    table = LiveTable(SearchProgress(2, 1, {}), Console(file=out, width=100, force_terminal=True))
    lines = PlainLines(SearchProgress(2, 1, {}), printed)
    watch = SearchWatch(print, lambda number: Path(str(number)), [lines, table])
    with table:
        with watch.running():
            watch.note("Ray dashboard: http://127.0.0.1:8265 (token in [a])")
        watch.note("too late")
    for text in (out.getvalue(), printed.getvalue()):
        assert text.count("Ray dashboard: http://127.0.0.1:8265 (token in [a])") == 1 and "too late" not in text


def test_the_watch_finds_who_runs_and_leaves_no_file(tmp_path: Path):
    calls: list[tuple[int, StepProgress]] = []
    files = {n: progress_file(tmp_path / f"trial-{n}.log") for n in range(3)}
    watch = SearchWatch(lambda *run: calls.append(run), files.__getitem__, [])
    for number in range(3):
        watch.trial_planned(recorded_run(number, TrainConfig()))
    watch.look()
    watch.tick()
    assert calls == []
    ProgressFile(files[0]).begin()
    watch.look()
    assert calls == [], "nothing happens outside of the driver's thread"
    watch.tick()
    assert calls == [(0, StepProgress())]
    for number in range(3):
        watch.trial_ended(recorded_run(number, TrainConfig()))
    assert list(tmp_path.iterdir()) == []
