"""The first part of a report: what came out, and the configuration to copy."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping, Sequence

from bigbatch.cluster.host import json_values
from bigbatch.train_loop.config.words import epochs_text
from bigbatch.tune.report.answer_figures import frontier, frontier_costs
from bigbatch.tune.report.best_certainty import best_certainty
from bigbatch.tune.report.figure import guarded
from bigbatch.tune.report.figure_book import FigureBook, side_by_side
from bigbatch.tune.report.markup import Markup, TableColumn, card, copy_block, joined, table, tag
from bigbatch.tune.report.recorded_study import BATCH_PARAMETER
from bigbatch.tune.report.theme import number_text
from bigbatch.tune.report.trial_points import StudyPoints, TrialPoint
from bigbatch.tune.study.confirmation import Confirmed
from bigbatch.tune.study.frontier import BestOfValue, Frontier, FrontierRow
from bigbatch.tune.study.frontier_file import config_file

MOST_TILES = 6
"""Parameters of a training function in the first row of the answer; the configuration below has all."""
LONGER = 2
"""A full run is suggested with this many times the epochs of the search, and at least ``LEAST_EPOCHS``."""
LEAST_EPOCHS = 30


def answer_section(points: StudyPoints, book: FigureBook, prefix: str) -> Markup:
    """The answer, its figures, the frontier's table, and the configuration."""
    found = points.study.frontier
    best = points.best
    if found is not None:
        lead, tiles, row = (
            _frontier_lead(found),
            _tiles(points, found),
            found.answer_row,
        )
        config, path = found.answer_best.config, f"{points.study.summary.folder}/{config_file(row.value)}"
    elif best is not None:
        lead, tiles = _best_lead(points, best), _best_tiles(points, best)
        config, path = best.config, f"{points.study.summary.folder}/best.json"
    else:
        return _nothing_yet(points, prefix)
    parts = [card(*lead, tag("div", *tiles, class_="tiles"), class_="card answer")]
    if found is not None:
        figures = (book.place(guarded(make, points), prefix) for make in (frontier, frontier_costs))
        parts += [
            side_by_side(*figures),
            card(tag("h3", f"The best of each {found.facts.word}"), _frontier_table(points, found), _reading(points)),
        ]
    parts += [_front(points), _configuration(points, config, path, prefix)]
    return tag("section", tag("h2", "The answer"), *parts, id=f"{prefix}answer")


def _nothing_yet(points: StudyPoints, prefix: str) -> Markup:
    begun = len(points.searched)
    words = (
        f"{begun} trial{'s have' if begun != 1 else ' has'} begun, none has finished."
        if begun
        else "No trial has begun."
    )
    text = tag("p", f"There is no answer yet. {words}", class_="lead")
    return tag("section", tag("h2", "The answer"), card(text, class_="card answer"), id=f"{prefix}answer")


def worth_words(points: StudyPoints, value: float | None) -> str:
    """A value of the first objective with its unit."""
    return points.study.objectives.first.worth(value)


def _interval(points: StudyPoints, best: BestOfValue) -> str:
    if best.low is None or best.high is None:
        return ""
    return f"{points.shown(best.low):.1f} to {points.shown(best.high):.1f} %" if points.is_percent else ""


def _frontier_lead(found: Frontier) -> list[Markup]:
    row, best, facts = found.answer_row, found.answer_best, found.facts
    word = facts.word
    worth = facts.objective.worth(best.objective)
    several = len([one for one in found.rows if one.best]) > 1
    value = f"{row.value:,}" if isinstance(row.value, int) else str(row.value)
    if not several:
        return [tag("p", f"Only {word} {value} has a finished trial: {worth}.", class_="lead")]
    lead = tag(
        "p",
        f"The largest {word} within {facts.tolerance_in_words} of the best is ",
        tag("strong", value),
        f", with {worth} (trial {best.trial}",
        f", mean of {best.seeds} fresh seeds)." if best.seeds else ").",
        class_="lead",
    )
    return [lead, tag("p", _certainty(found, word), class_="soft")]


def _certainty(found: Frontier, word: str) -> str:
    """How the answer stands to the best value, and whether the intervals allow the claim."""
    top, at_most, images = found.reference, found.answer_row.worse_at_most, found.facts.images
    if top is found.answer_row or not found.answer_row.worse_by:
        far = (
            ""
            if not at_most or at_most < 0.0005
            else f" At 95 % it is at most {100 * at_most:.1f} points worse than any."
        )
        return f"No other {word} was better.{far}"
    value = f"{top.value:,}" if isinstance(top.value, int) else str(top.value)
    beaten = (
        f"The best of all is {found.facts.objective.worth(top.best.objective)}, at {word} {value}. " if top.best else ""
    )
    return beaten + _how_certain(at_most, images, found.is_certain, word)


def _how_certain(at_most: float | None, images: int, is_certain: bool | None, word: str) -> str:
    if at_most is None:
        return "How certain that is, is not known: no interval is computed for this objective."
    if is_certain:
        return f"At 95 % it is at most {100 * at_most:.1f} points worse than any other {word}."
    return (
        f"That is what was measured, but it is not certain: with {images:,} validation images it may be up to "
        f"{100 * at_most:.1f} points worse than another {word} (95 %)."
    )


def _tile(value: object, words: object) -> Markup:
    return tag("div", tag("b", value), tag("span", words), class_="tile")


def _name_of_value(found: Frontier) -> str:
    return "global batch" if found.facts.name == BATCH_PARAMETER else found.facts.name


def _tiles(points: StudyPoints, found: Frontier) -> list[Markup]:
    best, value = found.answer_best, found.answer_row.value
    interval = _interval(points, best)
    metric = points.study.objectives.first.metric.title
    return [
        _tile(f"{value:,}" if isinstance(value, int) else value, _name_of_value(found)),
        _tile(worth_words(points, best.objective), f"{metric}{f', 95 %: {interval}' if interval else ''}"),
        # A training function of the user's own has no steps and images.
        *[_tile(number_text(best.optimizer_steps), f"optimizer steps in {epochs_text(best.epochs)}")]
        * (best.optimizer_steps is not None),
        *[_tile(number_text(best.images_per_s), "images/s")] * (best.images_per_s is not None),
        _tile(seconds_words(best.epoch_s), "for an epoch, with validation"),
        _tile(number_text(best.gpu_hours), f"{points.study.hours} for the run"),
    ]


def seconds_words(seconds: float | None) -> str:
    """``0.8 s``, ``12 s``, ``3.4 min``, ``2.1 h``."""
    if seconds is None or not math.isfinite(seconds):
        return "–"
    if seconds < 90:
        return f"{seconds:.2g} s"
    return f"{seconds / 60:.3g} min" if seconds < 5400 else f"{seconds / 3600:.3g} h"


def _best_lead(points: StudyPoints, best: TrialPoint) -> list[Markup]:
    found = points.confirmed.get(best.number)
    worth = worth_words(points, found.mean if found else best.value)
    seeds = f", the mean of {_seeds(found)}" if found else ""
    lead = tag("p", "The best trial is ", tag("strong", str(best.number)), f", with {worth}{seeds}.", class_="lead")
    return [lead, tag("p", best_certainty(points, best), class_="soft")]


def _seeds(found: Confirmed) -> str:
    return f"{len(found.seeds)} fresh seed{'s' * (len(found.seeds) != 1)}"


def _best_tiles(points: StudyPoints, best: TrialPoint) -> list[Markup]:
    found = points.confirmed.get(best.number)
    title = points.study.objectives.first.metric.title
    if points.study.description.get("trainable"):
        settings = [_tile(_shown(value), name) for name, value in list(best.params.items())[:MOST_TILES]]
    else:
        settings = [
            _tile(f"{best.batch:,}" if best.batch else "–", "global batch"),
            _tile(best.optimizer or "–", "optimizer"),
            _tile(number_text(best.rate), "peak learning rate"),
        ]
    return [
        _tile(worth_words(points, found.mean), f"{title}, mean of {_seeds(found)}")
        if found
        else _tile(worth_words(points, best.value), title),
        *settings,
        _tile(best.last_epoch, "epochs"),
        _tile(number_text(points.hours_of_all_epochs(best)), f"{points.study.hours} of the trial"),
    ]


# The table


def _frontier_table(points: StudyPoints, found: Frontier) -> Markup:
    word = found.facts.word
    held = any(row.best and row.best.holdout is not None for row in found.rows)
    titles = [word, points.study.objectives.first.metric.short, "95 % interval", *["held out"] * held, "steps",
              "images/s", "epoch", points.study.hours, "noise scale", "finished / tried", "trial"]  # fmt: skip
    rows = [_cells(points, row, held) for row in found.rows]
    kept = [place for place in range(len(titles)) if any(row[place] != "–" for row in rows)]
    columns = [TableColumn(titles[place], is_number=True) for place in kept]
    return table(columns, [[row[place] for place in kept] for row in rows], found.answer, stacked=True)


def _cells(points: StudyPoints, row: FrontierRow, held: bool) -> list[object]:
    best = row.best
    value = f"{row.value:,}" if isinstance(row.value, int) else row.value
    counts = f"{row.finished} / {row.tried}" + (f", {row.diverged} diverged" if row.diverged else "")
    if best is None:
        return [value, *["–"] * (8 if held else 7), counts, "–"]
    holdout = [_percent(best.holdout)] if held else []
    return [
        value, worth_words(points, best.objective) + (f" ({best.seeds} seeds)" if best.seeds else ""),
        _interval(points, best) or "–", *holdout, number_text(best.optimizer_steps), number_text(best.images_per_s),
        seconds_words(best.epoch_s), number_text(best.gpu_hours), number_text(best.noise_scale), counts, best.trial,
    ]  # fmt: skip


def _percent(share: float | None) -> str:
    return "–" if share is None or not math.isfinite(share) else f"{100 * share:.1f} %"


def _reading(points: StudyPoints) -> Markup:
    return tag(
        "p",
        f"Steps, epoch time and {points.study.hours} are those of the best configuration’s whole run on the devices of "
        "one trial. The interval allows for the choice of the best trial. The marked row is the answer.",
        class_="soft small",
    )


def _front(points: StudyPoints) -> Markup:
    """With several objectives: the trials that no other one beats."""
    objectives = points.study.objectives
    if not objectives.several:
        return Markup("")
    front = objectives.front([t for t in points.study.trials if t.number in {p.number for p in points.finished}])
    columns = [TableColumn("trial"), *(TableColumn(one.metric.title, is_number=True) for one in objectives.each)]
    rows: Sequence[Sequence[object]] = [
        [t.number, *(one.worth(value) for one, value in zip(objectives.each, t.values, strict=True))]
        for t in front[:40]
    ]
    return card(tag("h3", "The Pareto front: no other trial is better in every objective"), table(columns, rows))


def _configuration(points: StudyPoints, config: Mapping[str, object], path: str, prefix: str) -> Markup:
    if not config:
        return Markup("")
    most = json_values.whole_number(points.study.description, "max_epochs")
    command = f"bigbatch train --config {shlex.quote(path)} --set epochs={max(LEAST_EPOCHS, LONGER * most)}"
    text = json.dumps(dict(config), indent=2, default=str)
    if function := json_values.text(points.study.description, "trainable"):
        options = json_values.mapping(json_values.mapping(config, "trainable"), "options")
        text = json.dumps(dict(options), indent=2)
        how = [tag("p", f"What {function} gets as its config, beside epochs and seed.", class_="soft small")]
    else:
        how = [
            tag("p", "Train it in full, for more epochs than the search gave it:", class_="soft small"),
            copy_block(command, f"{prefix}train", "Copy the command"),
        ]
    return card(
        tag("h3", "The configuration to copy"),
        *how,
        tag(
            "details",
            tag("summary", "The whole configuration (JSON)"),
            copy_block(text, f"{prefix}config", "Copy the JSON"),
        ),
    )


def best_trials(points: StudyPoints, most: int = 10) -> Markup:
    """A table of the best finished trials."""
    shown = points.best_first[:most]
    if not shown:
        return Markup("")
    metric = points.study.objectives.first.metric
    if points.study.description.get("trainable"):
        return _best_of_own(points, shown, metric.short)
    titles = (("trial", True), (metric.short, True), ("batch", True), ("optimizer", False),
              ("peak lr", True), ("warmup", True), ("epochs", True), (points.study.hours, True))  # fmt: skip
    rows = [
        [
            p.number, worth_words(points, p.value), f"{p.batch:,}" if p.batch else "–", p.optimizer or "–",
            number_text(p.rate), f"{100 * p.warmup_share:.0f} %" if p.warmup_share is not None else "–",
            p.last_epoch, number_text(points.hours_of_all_epochs(p)),
        ]
        for p in shown
    ]  # fmt: skip
    return _table_of_best(points, titles, rows)


def _best_of_own(points: StudyPoints, shown: Sequence[TrialPoint], value: str) -> Markup:
    """The best trials of a training function of the user's own, with its parameters."""
    names = list(dict.fromkeys(name for p in shown for name in p.params))
    titles = (("trial", True), (value, True), *((n, True) for n in names), ("epochs", True), (points.study.hours, True))
    rows = [
        [
            p.number, worth_words(points, p.value), *(_shown(p.params.get(name)) for name in names),
            p.last_epoch, number_text(points.hours_of_all_epochs(p)),
        ]
        for p in shown
    ]  # fmt: skip
    return _table_of_best(points, titles, rows)


def _shown(value: object) -> str:
    return number_text(value) if isinstance(value, float) else "–" if value is None else str(value)


def _table_of_best(points: StudyPoints, titles: Sequence[tuple[str, bool]], rows: Sequence[Sequence[object]]) -> Markup:
    title = f"The best {len(rows)} of {len(points.finished)} finished trials" if len(rows) > 1 else "The finished trial"
    return card(joined((tag("h3", title), table([TableColumn(t, is_number=n) for t, n in titles], rows, stacked=True))))
