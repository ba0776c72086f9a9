"""Who is ahead when a cap of device hours or time is reached: the rule of a race, and its table.

A run counts with the objective after the last epoch that ended within the cap. It is not its best epoch: to choose an
epoch by its validation would favour runs whose curve is rough. Time is that of training, validation and checkpoints, on
as many devices as the run has workers. Start-up, waiting and lost work are not in it; the study's ledger has them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from bigbatch.tune.study.objective import Objective
from bigbatch.tune.watch.race_runs import RacedRun, epoch_value
from bigbatch.tune.watch.wrapped import aligned


@dataclass(frozen=True)
class RaceCap:
    """The end of the race; without either number each run counts with all of its epochs."""

    device_hours: float | None = None
    time_s: float | None = None

    def ends_before(self, seconds: float, workers: int | None) -> bool:
        """Whether the race is over after ``seconds`` of a run. A run of unknown size has no device hours to compare."""
        if self.time_s is not None and seconds > self.time_s:
            return True
        if self.device_hours is None:
            return False
        return workers is None or seconds * workers / 3600 > self.device_hours

    @property
    def words(self) -> str:
        """E.g. ``within 4 device hours and 1:30:00``."""
        parts = [f"{self.device_hours:g} device hours"] if self.device_hours is not None else []
        parts += [time_words(self.time_s)] if self.time_s is not None else []
        return f"within {' and '.join(parts)}" if parts else "without a cap"


@dataclass(frozen=True)
class RacePlace:
    """A run, and how far it came within the cap."""

    run: RacedRun
    epochs: int
    """That ended within the cap."""
    value: float
    """The objective after the last of them; not a number without any."""
    best: float
    """The best value until then, of whatever epoch."""
    seconds: float

    @property
    def device_hours(self) -> float | None:
        """Until the last epoch within the cap; None if the number of workers is not known."""
        return None if self.run.workers is None else self.seconds * self.run.workers / 3600

    @property
    def is_cut(self) -> bool:
        """Whether the cap came before the run's own end."""
        return self.epochs < len(self.run.records)


def ranked_runs(runs: Sequence[RacedRun], objective: Objective, cap: RaceCap) -> list[RacePlace]:
    """All runs, the best one first. Of equal values the faster one is ahead; runs without an epoch come last."""
    places = [_place(run, objective, cap) for run in runs]

    def key(place: RacePlace) -> tuple[float, float, str]:
        gain = objective.gain(place.value)
        return (math.inf if math.isnan(gain) else -gain, place.seconds, place.run.name)

    return sorted(places, key=key)


def _place(run: RacedRun, objective: Objective, cap: RaceCap) -> RacePlace:
    seconds = run.seconds
    count = sum(not cap.ends_before(end, run.workers) for end in seconds)
    values = [epoch_value(record, objective.name) for record in run.records[:count]]
    best = objective.best(values)
    return RacePlace(
        run=run,
        epochs=count,
        value=values[-1] if values else math.nan,
        best=math.nan if best is None else best,
        seconds=seconds[count - 1] if count else 0.0,
    )


HEAD = ("", "RUN", "OPTIMIZER", "BATCH", "WORKERS", "EPOCHS", "VALUE", "BEST EPOCH", "HOURS", "TIME", "STATE")
RIGHT = (0, 3, 4, 5, 6, 7, 8, 9)
"""Columns that are aligned to the right."""


def table_rows(places: Sequence[RacePlace], objective: Objective) -> list[tuple[str, ...]]:
    """A row of texts for each place, in the columns of ``HEAD``."""
    return [_row(number, place, objective) for number, place in enumerate(places, 1)]


def _row(number: int, place: RacePlace, objective: Objective) -> tuple[str, ...]:
    run, hours = place.run, place.device_hours
    return (
        str(number) if place.epochs else "–",
        run.name,
        run.optimizer,
        f"{run.batch}" if run.batch is not None else "–",
        f"{run.workers}" if run.workers is not None else "?",
        f"{place.epochs}/{run.planned or len(run.records)}",
        objective.worth(place.value),
        objective.worth(place.best),
        "?" if hours is None else f"{hours:.3g}",
        time_words(place.seconds),
        run.state + (", cut by the cap" if place.is_cut else ""),
    )


def time_words(seconds: float) -> str:
    """``1:02:03`` or ``2:03``."""
    whole = round(seconds)
    minutes, rest = divmod(whole, 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}" if minutes >= 60 else f"{minutes}:{rest:02d}"


def race_text(places: Sequence[RacePlace], objective: Objective, cap: RaceCap, most: int | None) -> str:
    """The race as a table.

    Args:
        most: how many places are shown; None: all.
    """
    shown = places if most is None else places[:most]
    lines = [f"{objective.sentence}, {cap.words}", "", aligned([HEAD, *table_rows(shown, objective)], right=RIGHT)]
    if len(places) > len(shown):
        lines.append(f"{len(places) - len(shown)} more runs; --all prints them.")
    unknown = [place.run.name for place in places if place.run.workers is None]
    if unknown and cap.device_hours is not None:
        lines.append(f"Without place: {', '.join(unknown)}. A full run that has not ended does not say its workers.")
    return "\n".join(lines)
