"""Show a running search: as a live table on a terminal, as plain lines elsewhere."""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from bigbatch.base import json_values
from bigbatch.base.streams import Nowhere
from bigbatch.cluster.host.optuna_journal import State
from bigbatch.train_loop.errors import in_one_line
from bigbatch.train_loop.progress import ProgressLines, StepProgress
from bigbatch.tune.console.answer_words import name_in_words, value_text
from bigbatch.tune.console.columns import STATE_WORDS, columns_of, config_of, settings_line, trial_settings
from bigbatch.tune.plan.search_plan import FrontierPlan
from bigbatch.tune.runs import metrics
from bigbatch.tune.runs.objective import Objective
from bigbatch.tune.runs.objectives import Objectives
from bigbatch.tune.runs.run import (
    CONTINUES_ATTR,
    Kind,
    Run,
    confirmed_by,
    count_ended,
    earlier_of,
    is_paused,
    planned_epochs,
    search_trials,
)
from bigbatch.tune.storage.journal_file import LineLog


def best_by_value(ranked: Sequence[Run], frontier: FrontierPlan, objective: Objective) -> str:
    """``best by batch: 256 95.2 % · 512 94.8 % · 1,024 –``. ``ranked``: the finished trials, best first."""
    best: dict[object, float] = {}
    for trial in ranked:
        best.setdefault(trial.params.get(frontier.name, frontier.values[0]), trial.values[0])
    parts = [f"{value_text(value)} {objective.worth(best.get(value))}" for value in frontier.values]
    return f"best by {name_in_words(frontier.name)}: {' · '.join(parts)}"


MAX_ROWS = 16
"""The live table shows this many trials: the running ones, the best one and the latest."""
FRAMES_PER_S = 0.5
"""Drawing takes rich some milliseconds, on cores that may be those of the search."""
MAX_OWN_METRICS = 4
"""A line about an epoch names at most this many metrics of the user's own."""
WATCHDOG_LINE_S = 90.0
"""How long a line of the watchdog stays visible. A new one comes every minute."""
STATE_STYLES = {"RUNNING": "cyan", "COMPLETE": "green", "PRUNED": "yellow", "FAIL": "red", "WAITING": "magenta"}


def duration(seconds: float) -> str:
    """``75`` → ``1:15``, ``3700`` → ``1:01:40``."""
    whole = int(round(seconds))
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}"


def state_word(trial: Run) -> str:
    """The trial's state in one word."""
    words = {**STATE_WORDS, "WAITING": "interrupted"}  # what has not begun is not shown here
    return "paused" if is_paused(trial) else words[trial.state.name]


def _details(record: Mapping[str, object], objective: str) -> list[str]:
    """What an epoch's line says beside the objective: loss, learning rate, and metrics of the user's own."""
    loss = json_values.number_or_none(record, "train_loss")
    rate = json_values.number_or_none(record, "learning_rate")
    own = [name for name in json_values.mapping(record, metrics.OWN) if name != objective]
    return [
        *([f"train loss {loss:.3f}"] if loss is not None else []),
        *([f"lr {rate:.3g}"] if rate is not None else []),
        *(f"{name} {metrics.of_record(name, record):.4g}" for name in own[:MAX_OWN_METRICS]),
    ]


class SearchProgress:
    """The state of the search; both displays show it."""

    def __init__(
        self,
        planned: int | None,
        concurrency: int,
        finished: Mapping[int, Run],
        own_space: bool = False,
        budget_s: Callable[[], float] = lambda: math.inf,
        objectives: Objectives | None = None,
        frontier: FrontierPlan | None = None,
        started: float | None = None,
    ) -> None:
        """``planned``: None: as many as the budget allows. ``budget_s``: returns how long the budget still lasts.
        ``frontier``: whose values have a best trial each; None: there is one best trial. ``started``: the search's
        beginning by the monotonic clock; None: now."""
        self._budget_s, self.frontier = budget_s, frontier
        self.objectives = objectives or Objectives()
        self.planned, self.concurrency, self._own_space = planned, concurrency, own_space
        self.trials: dict[int, Run] = dict(finished)
        self.starting: set[int] = set()
        """Numbers of the trials whose workers start."""
        self.steps: dict[int, StepProgress] = {}
        """Number of a trial → its position within an epoch, as its worker last reported."""
        self.started = time.monotonic() if started is None else started

    def put(self, trial: Run) -> None:
        """Take in a trial that has begun, or has changed."""
        self.trials[trial.number] = trial
        self.starting.discard(trial.number)

    def settings(self, trial: Run) -> dict[str, str]:
        """The trial's settings, and the parameters of a user's own space."""
        return trial_settings(config_of(trial), trial.params, own=self._own_space)

    def elapsed_of(self, trial: Run) -> float:
        """Seconds from the trial's start to its end, or to now."""
        now = datetime.now()  # in local time, as Optuna's times are
        return (trial.datetime_complete or now).timestamp() - (trial.datetime_start or now).timestamp()

    def worth(self, trial: Run) -> str:
        """The metric that a person watches, after the last epoch: ``86.9 %``."""
        shown = self.objectives.first.shown
        return shown.worth(shown.value(trial.records[-1]) if trial.epochs else None)

    @property
    def ended(self) -> int:
        """The number of trials that have ended."""
        return count_ended(list(self.trials.values()))

    @property
    def ranked(self) -> list[Run]:
        """The completed trials, best first."""
        return self.objectives.ranked(search_trials(self.trials.values()))

    @property
    def best(self) -> Run | None:
        """The best completed trial; None if there is none."""
        return self.objectives.best(search_trials(self.trials.values()))

    def eta_s(self) -> float | None:
        """Estimated seconds left: of the budget where it is the only limit, else from the mean time of a trial.

        None before a trial has ended.
        """
        budget_s = self._budget_s()
        if self.planned is None:
            return max(0.0, budget_s) if math.isfinite(budget_s) else None
        over = [t for t in self.trials.values() if t.state in (State.COMPLETE, State.PRUNED)]
        timed = [seconds for t in over if (seconds := self.elapsed_of(t)) > 0]
        if not timed:
            return None
        mean = sum(timed) / len(timed)
        running = [max(0.0, mean - self.elapsed_of(t)) for t in self.trials.values() if t.state == State.RUNNING]
        waiting = max(0, self.planned - self.ended - len(running))
        return min(max(0.0, budget_s), (sum(running) + waiting * mean) / max(1, self.concurrency))


class LiveTable:
    """A table that rich's own thread redraws in place."""

    def __init__(self, progress: SearchProgress, console: Console) -> None:
        self._progress, self._lock = progress, threading.Lock()
        self._said: tuple[Text, float] | None = None
        # This line is always there and short: a terminal prints ^C after it, and that must not start a new line.
        self._last_line = Text("Ctrl-C saves and stops", style="dim")
        self._console = console
        self._live = Live(console=console, get_renderable=self._draw, refresh_per_second=FRAMES_PER_S, transient=False)

    def __enter__(self) -> LiveTable:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        # The last frame stays on the screen, where the hint would be wrong.
        self._last_line = Text("")
        self._live.stop()

    def acknowledge(self, text: str) -> None:
        """Show a text in the last line, at once. A signal's handler may call this."""
        self._last_line = Text(text, style="yellow")
        with suppress(OSError):  # over the old line: below it the text would tear the table
            os.write(self._console.file.fileno(), f"\r\x1b[2K{text}".encode())

    def trial_planned(self, trial: Run) -> None:
        """Show the new trial."""
        with self._lock:
            self._progress.put(trial)
            self._progress.starting.add(trial.number)
            self._progress.steps.pop(trial.number, None)  # of an attempt that was interrupted

    def trial_started(self, trial: Run) -> None:
        """Show the trial's new state."""
        with self._lock:
            self._progress.put(trial)

    trial_ended = trial_started

    def steps_done(self, trial: Run, steps: StepProgress) -> None:
        """Show the trial's position."""
        with self._lock:
            self._progress.steps[trial.number] = steps

    def epoch_ended(self, trial: Run, record: dict[str, object]) -> None:
        """Show the trial's new state."""
        self.trial_started(trial)

    def search_said(self, text: str) -> None:
        """Show a line of the watchdog under the table until it is out of date."""
        with self._lock:
            self._said = Text(text, style="yellow"), time.monotonic()

    def note(self, text: str) -> None:
        """Print a line above the table, where it stays."""
        self._live.console.print(Text(text))

    def _draw(self) -> Group:
        with self._lock:
            lines: list[Text | None] = []
            if self._said is not None and time.monotonic() - self._said[1] < WATCHDOG_LINE_S:
                lines.append(self._said[0])
            if frontier := self._progress.frontier:  # always there, so that the display does not jump
                line = best_by_value(self._progress.ranked, frontier, self._progress.objectives.first)
                lines.insert(0, Text(line, style="dim") if frontier.searched else None)
            return Group(
                trial_table(self._progress, self._console.width),
                summary_line(self._progress),
                *filter(None, lines),
                self._last_line,
            )


def trial_table(progress: SearchProgress, width: int) -> Table:
    """The trials as a table. Settings for which a terminal of ``width`` is too narrow are left out."""
    shown = [(trial, progress.settings(trial)) for trial in _shown(progress)]
    short, columns = progress.objectives.first.shown.metric.short, columns_of([settings for _, settings in shown])
    table = Table(box=None, pad_edge=False, header_style="bold")
    states = ["starting" if t.number in progress.starting else state_word(t) for t, _ in shown]
    facts = {
        "trial": [str(trial.number) for trial, _ in shown],
        "state": states,
        "epoch": [epochs_done(trial, progress.steps.get(trial.number)) for trial, _ in shown],
        short: [progress.worth(trial) for trial, _ in shown],
        "time": [duration(progress.elapsed_of(trial)) for trial, _ in shown],
    }
    facts |= {name: [values.get(name, "") for _, values in shown] for name in columns}
    widths = {name: 2 + max(map(len, (name, *cells))) for name, cells in facts.items()}
    while columns and sum(widths[name] for name in ("trial", "state", *columns, "epoch", short, "time")) - 2 > width:
        columns = columns[:-1]
    names = ("trial", "state", *columns, "epoch", short, "time")
    for name in names:
        right = name in ("trial", "batch", "lr", "warmup", "epoch", short, "time")
        table.add_column(name, justify="right" if right else "left", no_wrap=True)
    best = progress.best
    for row, (trial, _) in enumerate(shown):
        table.add_row(
            *(Text(facts[name][row], STATE_STYLES[trial.state.name] if name == "state" else "") for name in names),
            style="bold" if best is not None and trial.number == best.number else "",
        )
    return table


def epochs_done(trial: Run, steps: StepProgress | None = None) -> str:
    """``3/90``; in the middle of the fourth epoch ``3.4/90``."""
    done = trial.epochs
    within = steps.fraction if steps and trial.state == State.RUNNING and steps.epoch == done + 1 else 0.0
    # Down, not to the nearest: an epoch that is not over would be shown as done.
    shown = f"{done + math.floor(10 * within) / 10:.1f}" if within else str(done)
    return f"{shown}/{planned_epochs(trial) or 0}"


def summary_line(progress: SearchProgress) -> Text:
    """Ended trials, best value, elapsed and remaining time in one line."""
    best, eta = progress.best, progress.eta_s()
    parts = [
        f"{progress.ended}{'' if progress.planned is None else f' of {progress.planned}'} trials ended",
        f"best {progress.objectives.first.worth(best.values[0])} (trial {best.number})" if best else "best –",
        f"elapsed {duration(time.monotonic() - progress.started)}",
        f"about {duration(eta)} left" if eta is not None else "time left: unknown until a trial ends",
    ]
    return Text(" · ".join(parts), style="dim")


def _shown(progress: SearchProgress) -> list[Run]:
    """The trials of the table: all running ones, the best one, and the latest others that fit."""
    best = progress.best
    keep = {t.number for t in progress.trials.values() if t.state == State.RUNNING} | ({best.number} if best else set())
    for number in sorted(progress.trials, reverse=True):
        if len(keep) >= MAX_ROWS:
            break
        keep.add(number)
    return [progress.trials[number] for number in sorted(keep)]


class PlainLines:
    """Print one line for each event: for pipes, Slurm logs and ``tail -f``."""

    def __init__(self, progress: SearchProgress, out: TextIO | LineLog) -> None:
        self._progress, self._out = progress, out
        self._within_epochs: dict[int, ProgressLines] = {}

    def __enter__(self) -> PlainLines:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def trial_planned(self, trial: Run) -> None:
        """Take in a new trial; print nothing yet."""
        self._progress.put(trial)

    def steps_done(self, trial: Run, steps: StepProgress) -> None:
        """Print the progress within an epoch, if a line is due."""
        if line := self._within_epochs.setdefault(trial.number, ProgressLines()).line(steps):
            self.say(f"trial {trial.number} {line}")

    def trial_started(self, trial: Run) -> None:
        """Print that the trial has started, or resumed."""
        self._progress.put(trial)
        self._within_epochs[trial.number] = ProgressLines()
        word, earlier = "started", earlier_of(trial)
        if json_values.whole_number(trial.user_attrs, "attempts", 1) > 1:
            word = f"resumed after epoch {trial.epochs}" if trial.epochs else "started again"
        elif CONTINUES_ATTR in trial.user_attrs:
            word += f" (continues trial {earlier})"
        elif earlier is not None:
            word += f" (trial {earlier} again)"
        if trial.kind == Kind.CONFIRMATION:
            word += f" (confirms trial {confirmed_by(trial)} with seed {trial.config['seed']})"
        self.say(f"trial {trial.number} {word}: {settings_line(self._progress.settings(trial))}")

    def epoch_ended(self, trial: Run, record: dict[str, object]) -> None:
        """Print the epoch's value of the objective, its loss and its learning rate."""
        self._progress.put(trial)
        self._within_epochs[trial.number] = ProgressLines()
        before = self._progress.trials.get(json_values.whole_number(trial.user_attrs, CONTINUES_ATTR, -1))
        if before is not None and record in before.records:  # the paused trial has shown it
            return
        shown = self._progress.objectives.first.shown
        self.say(
            f"trial {trial.number} epoch {record['epoch']}/{planned_epochs(trial)}: "
            + ", ".join([f"{shown.metric.short} {shown.worth(shown.value(record))}", *_details(record, shown.name)])
        )

    def trial_ended(self, trial: Run) -> None:
        """Print how the trial ended, and how far the search is."""
        self._progress.put(trial)
        self._within_epochs.pop(trial.number, None)
        self.say(
            f"trial {trial.number} {state_word(trial)} at {self._progress.worth(trial)}: {in_one_line(trial.because)} "
            f"[{summary_line(self._progress).plain}]"
        )

    def say(self, text: str) -> None:
        """Print ``text`` after the elapsed time."""
        line = f"[{duration(time.monotonic() - self._progress.started)}] {text}\n"
        print(line, end="", file=self._out, flush=True)  # one call: the watchdog prints from another thread

    search_said = note = say


def make_display(progress: SearchProgress, out: TextIO | None = None, *, quiet: bool = False) -> LiveTable | PlainLines:
    """The live table if ``out`` is a terminal, else plain lines; if ``quiet``, lines that nobody sees."""
    if quiet:
        return PlainLines(progress, Nowhere())
    out = out or sys.stdout
    console = Console(file=out, markup=False, emoji=False)
    return (
        LiveTable(progress, console)
        # A dumb terminal cannot draw over what it has shown.
        if console.is_terminal and not console.is_dumb_terminal
        else PlainLines(progress, out)
    )
