"""How far a run is within its epoch: from the loop to the line that a person sees."""

import io

import torch

from bigbatch.train_loop.launch.worker_lines import RecordPrinter
from bigbatch.train_loop.loop.train import train
from bigbatch.train_loop.progress import (
    ProgressFile,
    ProgressLines,
    ProgressPace,
    StepProgress,
    progress_file,
    read_progress,
)  # fmt: skip
from bigbatch.train_loop.reporter import ListReporter, PrintReporter
from helpers.tiny_training import CONFIG


def test_steps_reach_the_driver_through_a_file_that_only_the_driver_makes(tmp_path):
    path = progress_file(tmp_path / "trial-0001.log")
    worker = ProgressFile(path)
    worker.begin()
    assert not path.exists() and read_progress(path) is None
    path.write_text("")
    assert read_progress(path) is None, "no worker has spoken"
    worker.begin()
    assert read_progress(path) == StepProgress()
    worker.steps_done(2, 1, 20, 64)
    assert read_progress(path) == StepProgress(2, 1, 20)
    for half in ('{"epoch": 2, "st', "[1]\n", '{"epoch": 1, "other": 2}\n'):
        path.write_text(half)
        assert read_progress(path) is None


def test_the_rate_is_of_the_steps_between_two_words_and_never_over_a_validation():
    now = [0.0]
    pace = ProgressPace(5.0, lambda: now[0])
    seen = []
    for epoch, base in ((1, 0.0), (2, 1000.0)):
        for step in range(1, 21):
            now[0] = base + step  # a step a second; between the epochs a long validation
            seen.append((now[0], pace.after(epoch, step, 20, 64)))
    words = {at: entry for at, entry in seen if entry}
    assert list(words) == [1, 6, 11, 16, 1001, 1006, 1011, 1016]
    assert words[6] == StepProgress(1, 6, 20, 64.0) and words[1001] == StepProgress(2, 1, 20, 0.0)
    assert str(words[1016]) == "epoch 2: step 16 of 20, 64 images/s" and words[1016].fraction == 0.8


def test_a_line_a_minute_within_long_epochs_and_none_within_short_ones():
    now = [0.0]
    lines = ProgressLines(lambda: now[0])
    said = []
    for second in range(1, 301):
        now[0] = second
        if second % 50 == 0 and second <= 150:
            lines.something_was_said()  # an epoch's end
        said += [second] if lines.line(StepProgress(1, second, 400, 10.0)) else []
    assert said == [210, 270]


class StepsToo(ListReporter):
    """Keeps what it is told of steps."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[tuple[int, int, int, int]] = []

    def steps_done(self, *done: int) -> None:
        self.steps.append(done)  # type: ignore[arg-type]


def test_the_loop_tells_its_steps_with_the_images_of_one(built):
    reporter = StepsToo()
    train(CONFIG, reporter=reporter, device=torch.device("cpu"))
    assert reporter.steps == [(epoch, step, 4, 16) for epoch in (1, 2, 3) for step in (1, 2, 3, 4)]


def test_a_run_without_ray_prints_a_line_a_minute_on_rank_0():
    now = [0.0]
    outs = [io.StringIO(), io.StringIO()]
    for rank, out in enumerate(outs):
        now[0] = 0.0
        reporter = PrintReporter(rank, out)
        reporter._pace, reporter._lines = ProgressPace(2.0, lambda: now[0]), ProgressLines(lambda: now[0])
        for step in range(1, 131):
            now[0] += 1.0
            reporter.steps_done(3, step, 400, 128)
    assert outs[0].getvalue().splitlines() == [
        "epoch 3: step 61 of 400, 128 images/s", "epoch 3: step 121 of 400, 128 images/s"
    ]  # fmt: skip
    assert outs[1].getvalue() == ""


def test_the_driver_of_a_run_prints_what_its_worker_wrote_and_removes_the_file(tmp_path, capsys):
    path = progress_file(tmp_path / "train.log")
    printer = RecordPrinter(tmp_path / "records.jsonl", path)
    ProgressFile(path).steps_done(1, 3, 9, 64)
    printer.print_new()
    assert capsys.readouterr().out == "", "an epoch of seconds gets no line"
    printer._lines._said_at -= 61
    for _ in range(2):
        printer.print_new()
    assert capsys.readouterr().out == "epoch 1: step 3 of 9\n"
    printer.close()
    assert list(tmp_path.iterdir()) == []
