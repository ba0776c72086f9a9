"""Show a running search: as a live table on a terminal, as plain lines elsewhere."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from bigbatch.base import json_values
from bigbatch.base.streams import Nowhere
from bigbatch.train_loop.errors import in_one_line
from bigbatch.train_loop.progress import ProgressLines
from bigbatch.tune.console.answer_words import name_in_words, value_text
from bigbatch.tune.console.columns import columns_of, settings_line, trial_settings
from bigbatch.tune.plan.search_plan import FrontierPlan
from bigbatch.tune.runs import metrics
from bigbatch.tune.runs.objectives import Objectives
from bigbatch.tune.runs.observer import TrialView, ranked
from bigbatch.tune.storage.journal_file import LineLog


def best_by_value(trials: Iterable[TrialView], frontier: FrontierPlan) -> str:
    """``best by batch: 256 95.2 % · 512 94.8 % · 1,024 –``."""
    best: dict[object, TrialView] = {}
    for trial in ranked(trials):
        best.setdefault(trial.params.get(frontier.name, frontier.values[0]), trial)
    parts = [f"{value_text(value)} {end_in_words(best.get(value))}" for value in frontier.values]
    return f"best by {name_in_words(frontier.name)}: {' · '.join(parts)}"


def end_in_words(trial: TrialView | None) -> str:
    """What a finished trial is worth in the first objective."""
    return "–" if trial is None else trial.objectives.first.worth(trial.ends[0])


MAX_ROWS = 16
"""The live table shows this many trials: the running ones, the best one and the latest."""
FRAMES_PER_S = 0.5
"""Drawing takes rich some milliseconds, on cores that may be those of the search."""
MAX_OWN_METRICS = 4
"""A line about an epoch names at most this many metrics of the user's own."""
WATCHDOG_LINE_S = 90.0
"""How long a line of the watchdog stays visible. A new one comes every minute."""
STATE_WORDS = {
    "RUNNING": "running",
    "COMPLETE": "done",
    "PRUNED": "stopped",
    "FAIL": "failed",
    "WAITING": "interrupted",
}
STATE_STYLES = {"RUNNING": "cyan", "COMPLETE": "green", "PRUNED": "yellow", "FAIL": "red", "WAITING": "magenta"}


def duration(seconds: float) -> str:
    """``75`` → ``1:15``, ``3700`` → ``1:01:40``."""
    whole = int(round(seconds))
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}"


def state_word(trial: TrialView) -> str:
    """The trial's state in one word."""
    return "paused" if trial.paused else STATE_WORDS[trial.state]


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
        finished: Mapping[int, TrialView],
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
        self.shown = (objectives or Objectives()).first.shown
        self.planned, self.concurrency, self._own_space = planned, concurrency, own_space
        self.trials: dict[int, TrialView] = dict(finished)
        self.started = time.monotonic() if started is None else started
        self._ended_at = {number: time.time() for number in finished}

    def put(self, trial: TrialView) -> None:
        """Take in the trial's current state."""
        self.trials[trial.number] = trial
        if trial.continues in self.trials:
            self.trials[trial.continues].continued_by = trial.number
        if trial.state != "RUNNING":
            self._ended_at[trial.number] = time.time()

    def settings(self, trial: TrialView) -> dict[str, str]:
        """The trial's settings, and the parameters of a user's own space."""
        return trial_settings(trial.config, trial.params, own=self._own_space)

    def elapsed_of(self, trial: TrialView) -> float:
        """Seconds from the trial's start to its end, or to now."""
        return self._ended_at.get(trial.number, time.time()) - trial.started_at

    @property
    def ended(self) -> int:
        """The number of trials that have ended."""
        over = ("COMPLETE", "PRUNED", "FAIL")
        return sum(t.state in over and not t.is_replaced and t.confirms is None for t in self.trials.values())

    @property
    def best(self) -> TrialView | None:
        """The best completed trial; None if there is none."""
        return next(iter(ranked(self.trials.values())), None)

    def eta_s(self) -> float | None:
        """Estimated seconds left: of the budget where it is the only limit, else from the mean time of a trial.

        None before a trial has ended.
        """
        budget_s = self._budget_s()
        if self.planned is None:
            return max(0.0, budget_s) if math.isfinite(budget_s) else None
        over = [t for t in self.trials.values() if t.state in ("COMPLETE", "PRUNED") and t.number in self._ended_at]
        timed = [self.elapsed_of(t) for t in over if self.elapsed_of(t) > 0]
        if not timed:
            return None
        mean = sum(timed) / len(timed)
        running = [max(0.0, mean - self.elapsed_of(t)) for t in self.trials.values() if t.state == "RUNNING"]
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

    def trial_planned(self, trial: TrialView) -> None:
        """Show the trial's new state."""
        with self._lock:
            self._progress.put(trial)

    trial_started = steps_done = trial_ended = trial_planned

    def epoch_ended(self, trial: TrialView, record: dict[str, object]) -> None:
        """Show the trial's new state."""
        self.trial_planned(trial)

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
                line = best_by_value(self._progress.trials.values(), frontier)
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
    short, columns = progress.shown.metric.short, columns_of([settings for _, settings in shown])
    table = Table(box=None, pad_edge=False, header_style="bold")
    states = [trial.phase if trial.state == "RUNNING" else state_word(trial) for trial, _ in shown]
    facts = {
        "trial": [str(trial.number) for trial, _ in shown],
        "state": states,
        "epoch": [epochs_done(trial) for trial, _ in shown],
        short: [trial.worth for trial, _ in shown],
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
            *(Text(facts[name][row], STATE_STYLES[trial.state] if name == "state" else "") for name in names),
            style="bold" if best is not None and trial.number == best.number else "",
        )
    return table


def epochs_done(trial: TrialView) -> str:
    """``3/90``; in the middle of the fourth epoch ``3.4/90``."""
    steps = trial.steps
    within = steps.fraction if steps and trial.state == "RUNNING" and steps.epoch == trial.epoch + 1 else 0.0
    return (
        # Down, not to the nearest: an epoch that is not over would be shown as done.
        f"{trial.epoch + math.floor(10 * within) / 10:.1f}/{trial.epochs}"
        if within
        else f"{trial.epoch}/{trial.epochs}"
    )


def summary_line(progress: SearchProgress) -> Text:
    """Ended trials, best value, elapsed and remaining time in one line."""
    best, eta = progress.best, progress.eta_s()
    parts = [
        f"{progress.ended}{'' if progress.planned is None else f' of {progress.planned}'} trials ended",
        f"best {end_in_words(best)} (trial {best.number})" if best else "best –",
        f"elapsed {duration(time.monotonic() - progress.started)}",
        f"about {duration(eta)} left" if eta is not None else "time left: unknown until a trial ends",
    ]
    return Text(" · ".join(parts), style="dim")


def _shown(progress: SearchProgress) -> list[TrialView]:
    """The trials of the table: all running ones, the best one, and the latest others that fit."""
    best = progress.best
    keep = {t.number for t in progress.trials.values() if t.state == "RUNNING"} | ({best.number} if best else set())
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

    def trial_planned(self, trial: TrialView) -> None:
        """Take in a new trial; print nothing yet."""
        self._progress.put(trial)

    def steps_done(self, trial: TrialView) -> None:
        """Print the progress within an epoch, if a line is due."""
        if line := self._within_epochs.setdefault(trial.number, ProgressLines()).line(trial.steps):
            self.say(f"trial {trial.number} {line}")

    def search_said(self, text: str) -> None:
        """Print a line of the watchdog."""
        self.say(text)

    def trial_started(self, trial: TrialView) -> None:
        """Print that the trial has started, or resumed."""
        self._progress.put(trial)
        self._within_epochs[trial.number] = ProgressLines()
        goes_on = f"resumed after epoch {trial.epoch}" if trial.epoch else "started again"
        word = goes_on if trial.resumed else "started"
        word += f" (trial {trial.retries} again)" if trial.retries is not None and not trial.resumed else ""
        word += f" (continues trial {trial.continues})" if trial.continues is not None and not trial.resumed else ""
        seed = f" with seed {trial.config.seed}" if trial.config is not None else ""
        word += f" (confirms trial {trial.confirms}{seed})" if trial.confirms is not None else ""
        self.say(f"trial {trial.number} {word}: {settings_line(self._progress.settings(trial))}")

    def epoch_ended(self, trial: TrialView, record: dict[str, object]) -> None:
        """Print the epoch's value of the objective, its loss and its learning rate."""
        self._progress.put(trial)
        self._within_epochs[trial.number] = ProgressLines()
        shown = self._progress.shown
        self.say(
            f"trial {trial.number} epoch {record['epoch']}/{trial.epochs}: "
            + ", ".join([f"{shown.metric.short} {shown.worth(shown.value(record))}", *_details(record, shown.name)])
        )

    def trial_ended(self, trial: TrialView) -> None:
        """Print how the trial ended, and how far the search is."""
        self._progress.put(trial)
        self._within_epochs.pop(trial.number, None)
        self.say(
            f"trial {trial.number} {state_word(trial)} at {trial.worth}: {in_one_line(trial.ended_because or '')} "
            f"[{summary_line(self._progress).plain}]"
        )

    def say(self, text: str) -> None:
        """Print ``text`` after the elapsed time."""
        line = f"[{duration(time.monotonic() - self._progress.started)}] {text}\n"
        print(line, end="", file=self._out, flush=True)  # one call: the watchdog prints from another thread

    note = say


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
