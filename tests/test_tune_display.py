"""What a person sees: a live table on a terminal, plain lines in a pipe, findings that say how sure they are."""

from __future__ import annotations

import io
import math
import time

from rich.console import Console

from train_loop.config import BatchConfig, OptimizerConfig, TrainConfig
from tune.display import LiveTable, PlainLines, Progress, duration, make_display, percent, trial_table
from tune.observer import TrialView
from tune.summary import how_sure, standard_error


def view(number: int, values: list[float], state: str = "RUNNING", seconds: float = 10.0) -> TrialView:
    config = TrainConfig(epochs=4, optimizer=OptimizerConfig(name="lars", peak_lr=3.25))
    records = [{"epoch": e, "val_top1": v, "train_loss": 1.0, "learning_rate": 0.5} for e, v in enumerate(values, 1)]
    return TrialView(number, {}, config, state, records, "because", time.time() - seconds)


def rendered(display: LiveTable) -> str:
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(display._draw())
    return console.export_text()


def test_the_live_table_shows_state_settings_epoch_value_and_time_left():
    progress = Progress(planned=4, concurrency=2, finished={})
    display = LiveTable(progress, Console(file=io.StringIO(), force_terminal=True))
    display.trial_started(view(0, []))
    assert "time left: known after" in rendered(display)
    display.epoch_ended(view(0, [0.5]), {})
    display.trial_ended(view(0, [0.5, 0.6, 0.7, 0.8], "COMPLETE", seconds=20))
    display.trial_ended(view(1, [0.3], "PRUNED", seconds=10))
    display.trial_started(view(2, [], seconds=0))
    # two ended in 20 and 10 s, so one takes 15 on average; one has just begun, one waits, two at a time
    assert math.isclose(progress.eta_s(), (15 + 15) / 2, abs_tol=0.5)
    text = rendered(display)
    for word in ("done", "stopped", "running", "lars", "3.25", "4/4", "1/4", "0/4", "80.0 %", "2 of 4", "trial 0"):
        assert word in text, word


def test_many_trials_keep_the_running_and_the_best_in_sight():
    progress = Progress(planned=200, concurrency=2, finished={})
    for number in range(100):
        progress.put(view(number, [0.9 if number == 3 else 0.1] * 4, "COMPLETE"))
    progress.put(view(100, [0.2]))
    text = rendered(LiveTable(progress, Console(file=io.StringIO())))
    assert len(text.splitlines()) < 25
    rows = [line.split()[0] for line in text.splitlines()]
    assert {"3", "100", "99"} <= set(rows)


def test_a_pipe_gets_plain_lines_without_control_codes():
    out = io.StringIO()
    progress = Progress(planned=2, concurrency=1, finished={})
    display = make_display(progress, out)
    assert isinstance(display, PlainLines)
    display.trial_started(view(0, []))
    display.epoch_ended(view(0, [0.5]), view(0, [0.5]).records[-1])
    display.trial_ended(view(0, [0.5], "PRUNED"))
    lines = out.getvalue().splitlines()
    assert len(lines) == 3 and "\x1b" not in out.getvalue()
    assert "lars" in lines[0] and "epoch 1/4: top-1 50.0 %" in lines[1] and "stopped at 50.0 %: because" in lines[2]


def test_durations_and_percentages():
    assert [duration(s) for s in (0, 75, 3700)] == ["0:00", "1:15", "1:01:40"]
    assert [percent(v) for v in (None, 0.9861, 1.0)] == ["–", "98.6 %", "100.0 %"]


def test_the_standard_error_is_that_of_a_proportion_and_100_percent_is_not_certain():
    assert math.isclose(standard_error(0.5, 10_000), 0.005, rel_tol=1e-3)  # sqrt(p(1 − p)/n)
    assert math.isclose(standard_error(0.9, 10_000), 0.003, rel_tol=1e-2)
    assert standard_error(1.0, 360) > 0.002


def test_how_sure_counts_who_is_within_the_noise():
    done = [view(i, [v] * 4, "COMPLETE") for i, v in enumerate((0.99, 0.985, 0.90))]
    text = how_sure(done, 360)
    assert "1 of the 2 other finished trials" in text and "9.0 points" in text
    assert "run more trials" in how_sure(done[:1], 360)


def test_a_narrow_terminal_shows_fewer_settings_and_whole_numbers():
    config = TrainConfig(
        epochs=100,
        label_smoothing=0.12,
        batch=BatchConfig(global_size=32768),
        optimizer=OptimizerConfig(name="adamw", peak_lr=0.000123, weight_decay=1.5e-5),
    )
    for width in (80, 100, 130):
        trial = TrialView(1234, {}, config, "WAITING", [{"epoch": 100, "val_top1": 1.0}], None, time.time() - 36000)
        progress = Progress(planned=1, concurrency=1, finished={1234: trial})
        console = Console(width=width, record=True, file=io.StringIO())
        console.print(trial_table(progress, width))
        text = console.export_text()
        assert "…" not in text and max(map(len, text.splitlines())) <= width
        for word in ("1234", "interrupted", "adamw", "32768", "100/100", "100.0 %", "10:00:00"):
            assert word in text, (width, word)
    assert "0.999" in text and "1.5e-05" in text and "cosine" in text, "130 columns show all"
