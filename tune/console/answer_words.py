"""What a study found, in sentences: from the content of frontier.json, for the terminal, ``show`` and the report.

The first sentence leads with what did not choose: the value on held-out examples, or the mean over fresh seeds. The
value that chose stands second and is called so. Loads neither Optuna nor Ray.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from bigbatch.base import json_values
from bigbatch.tune.runs.learned import FRESH_SEEDS, HELD_OUT, INDISTINCT
from bigbatch.tune.runs.metrics import COSTS, Metric, known_metrics
from bigbatch.tune.runs.objective import Objective, read_tolerance

NAMES = {"global_batch_size": "batch", "batch.global_size": "batch"}
"""Parameters that people know by another word."""
FEW = 5
"""A line names at most this many values of seeds one by one."""
Row = Mapping[str, object]


def answer_in_words(values: Mapping[str, object], hours: str = "GPU h") -> list[str]:
    """The headline, then a sentence or two for each thing that a reader must know before spending hours on it.

    Args:
        values: the content of frontier.json.
        hours: the unit of what a run costs.

    Raises KeyError, StopIteration, TypeError or ValueError for content that somebody has edited.
    """
    words = AnswerWords(values)
    if words.own is None:
        return [words.nothing_learned() if values.get("unusable_because") != INDISTINCT else words.indistinct()]
    said = [
        words.headline(), words.choice(), words.against_others(), words.lost_seeds(), words.what_remains(),
        words.at_chance(), words.under_trained(), words.not_tried(), words.saving(hours),
    ]  # fmt: skip
    return [text for text in said if text]


def name_in_words(name: str) -> str:
    """The frontier's parameter as people call it: ``batch``."""
    return NAMES.get(name, name.removesuffix(".name").rpartition(".")[2])


class AnswerWords:
    """The sentences about one answer."""

    def __init__(self, values: Mapping[str, object]) -> None:
        name = json_values.text(values, "objective")
        self.values, self.metric = values, known_metrics().get(name) or Metric(name, "")
        self.sign = 1.0 if values.get("direction") == "maximize" else -1.0
        self.rows = json_values.objects(values, "rows")
        self.done = [row for row in self.rows if row.get("trial") is not None]
        answer = values.get("answer")
        wanted = answer.get("trial") if isinstance(answer, Mapping) else None
        self.own: Row | None = None if wanted is None else next(r for r in self.done if r.get("trial") == wanted)
        self.dimension = json_values.text_or_none(values, "dimension")
        self.word = name_in_words(self.dimension) if self.dimension else "trial"
        examples = json_values.mapping(values, "examples")
        self.noun = json_values.text(examples, "noun", "examples")
        self.choosing = json_values.whole_number(examples, "choosing")
        self.held_out = json_values.whole_number(examples, "held_out")
        objective = Objective(name, "maximize" if self.sign > 0 else "minimize")
        self.tolerance = read_tolerance(json_values.text_or_none(values, "tolerance"), objective).words(self.metric)

    # Where there is no answer

    def nothing_learned(self) -> str:
        """Why no run is recommended, and what may change that."""
        best = max(self.done, key=lambda row: self.sign * json_values.number(row, "objective"))
        runs = sum(json_values.whole_number(row, "finished") for row in self.rows)
        which = f"the best of {runs} finished runs" if runs > 1 else "the only finished run"
        on = f" on {self._examples(self.choosing)}" if self.choosing else ""
        baseline = json_values.number(self.values, "baseline")
        worse = self.sign * json_values.number(best, "objective") < self.sign * baseline
        than = (
            "which is better: are labels, loss and the stated baseline right?"
            if worse
            else "and the difference is within the uncertainty of that."
        )
        steps, epochs = (json_values.whole_number(best, key) for key in ("optimizer_steps", "epochs"))
        length = f"{epochs} epoch{'s' * (epochs != 1)}" + (f" of {steps} optimizer steps together" if steps else "")
        return (
            f"Nothing has learned yet: {which} reached {self.metric.title} {self.worth(best, 'objective')}{on} after "
            f"{length}; a constant prediction reaches {self._text(baseline)}, {than} No configuration is recommended. "
            "What may change it: more epochs "
            "(--max-epochs), more steps in an epoch (smaller batches), other learning rates"
            f"{', larger images' if self.noun == 'images' else ''}."
        )

    def indistinct(self) -> str:
        """Why no run is better than another."""
        runs = sum(json_values.whole_number(row, "finished") for row in self.rows)
        found = [json_values.number_or_none(row, "last_change") for row in self.done]
        change = self._text(statistics.median(one for one in found if one is not None))
        largest = (
            f" So no {self.word} is called the largest within {self.tolerance} of the best." if self.dimension else ""
        )
        return (
            f"The {runs} finished runs cannot be told apart: they end as near to each other as a run's "
            f"{self.metric.title} changes from one epoch to the next (about {change}).{largest} No configuration is "
            "recommended. Longer runs, a wider space or more trials may tell more; --baseline "
            "says what a constant prediction reaches."
        )

    # The answer

    def headline(self) -> str:
        """``The answer is batch 256 (trial 7): validation top-1 94.4 % on 180 images that did not choose it …``"""
        own = self._answer
        if self.dimension is None:
            what = f"The best is trial {own.get('trial')}"
        else:
            what = f"The answer is {self.word} {value_text(own.get('value'))} (trial {own.get('trial')})"
            # Without its first 14 characters, "The answer is ".
            what = f"Only {what[14:]} has finished" if len(self.done) == 1 and len(self.rows) > 1 else what
        value = f"{self.metric.title} {self.worth(own, 'reported')}"
        seeds = json_values.whole_number(own, "seeds")
        mean = f", the mean of {counted_noun(seeds, 'fresh seed')}," if seeds else ""
        chosen = self.worth(own, "chosen_at")
        by = own.get("reported_by")
        if self.metric.name.endswith(COSTS):  # no examples measure it
            return f"{what}: {value}{mean}{self._range(own)}."
        if by == HELD_OUT:
            then = f"{chosen} on the {self._examples(self.choosing)} that chose it"
            on = f"the {self._examples(self.held_out)} that did not choose it"
            return f"{what}: {value}{mean} on {on}{self._range(own)}; {then}."
        on = f"the {self._examples(self.choosing)}" if self.choosing else f"the {self.noun}"
        if by == FRESH_SEEDS:
            return f"{what}: {value}{mean} on {on} that chose it{self._range(own)}; {chosen} when it was chosen."
        return f"{what}: {value} on {on} that chose it{self._range(own)}."

    def choice(self) -> str:
        """Why this value is the answer, by the values that choose."""
        own, compared = self._answer, [row for row in self.done if row.get("worse_by") is not None]
        if self.dimension is None or len(self.done) < 2:
            return ""
        fresh = bool(own.get("seeds"))
        if fresh and sum(bool(row.get("seeds")) for row in self.done) == 1:
            return f"It is the only {self.word} that was confirmed with fresh seeds."
        best = min(compared, key=lambda row: json_values.number(row, "worse_by"))
        which = f"{self._largest} that was confirmed and is" if fresh else f"{self._largest}"
        by = "by the fresh seeds" if fresh else f"by the {self.noun} that choose"
        near = f"It is the {which} within {self.tolerance} of the best {by}"
        if not own.get("worse_by"):
            left = "confirmed" if fresh else "tried" if len(compared) == len(self.done) else "tried and is left"
            return f"{near}: none that was {left} is better."
        worth, top = self.worth(own, "objective"), self.worth(best, "objective")
        return f"{near}: {worth}, and {top} at {self.word} {value_text(best.get('value'))}."

    def against_others(self) -> str:
        """Which other values cannot be told apart from the answer by what is reported, and which come before it."""
        own = self._answer
        others = [row for row in self.done if row is not own and row.get("learned") is not False]
        others = [row for row in others if not row.get("seeds_diverged")]
        if self.dimension is None or not others:
            return ""
        if None in map(self._half_widths, [own, *others]):
            why = "only fresh seeds of each would tell" if not self.metric.is_proportion else "not all have an interval"
            return f"How certain this order is, is not known: {why}."
        refuted = [row for row in others if row.get("refuted")]
        same = [row for row in others if row not in refuted and self._is_same(own, row)]
        held = own.get("reported_by") == HELD_OUT
        better = [row for row in others if self._gain(row) > self._gain(own)]
        ahead = [row for row in better if held]
        on = f"on the {self.held_out:,} {self.noun} that did not choose, " if held else ""
        said = []
        if same:
            names = [row for row in self.rows if row is own or row in same]
            said.append(f"{on}{self._names(names)} cannot be told apart")
            if ahead:
                said[-1] += f", though {self._names(ahead)} {'are' if len(ahead) > 1 else 'is'} ahead there"
                said.append(
                    f"held-out {self.noun} report and do not choose, so the answer stays the {self._largest} within "
                    "the tolerance on those that choose"
                )
        if refuted:
            worth = " and ".join(self.worth(row, "reported") for row in refuted)
            are = "are" if len(refuted) > 1 else "is"
            said.append(f"{on}{self._names(refuted)} ({worth}) {are} clearly worse than the best, and so no answer")
        if surely := [row for row in better if row not in same]:
            are = "are" if len(surely) > 1 else "is"
            said.append(f"{on}{self._names(surely)} {are} clearly better, though not by more than the tolerance")
        elif not same and not refuted:
            said.append(f"{on}{'every other one' if len(others) > 1 else 'the other one'} is worse")
        at_most = json_values.number_or_none(own, "worse_at_most")
        # Less would be shown as 0.0 points.
        if at_most is not None and at_most >= (0.0005 if self.metric.is_proportion else 0.0):
            worse = self._difference(at_most)
            said.append(f"at 95 % it is at most {worse} worse than any other {self.word} that was tried")
        return " ".join(f"{text[0].upper()}{text[1:]}." for text in said)

    def lost_seeds(self) -> str:
        """Other values that diverged with fresh seeds."""
        lost = [row for row in self.done if row is not self.own and row.get("seeds_diverged")]
        each = [
            f"{row.get('seeds_diverged')} of {row.get('seeds')} runs with fresh seeds at {self._names([row])}"
            for row in lost
        ]
        return f"{' and '.join(each)} diverged, so it is not the answer." if each else ""

    def what_remains(self) -> str:
        """What luck is still in the headline's value."""
        own = self._answer
        lost = json_values.whole_number(own, "seeds_diverged")
        seeds = json_values.whole_number(own, "seeds")
        said = f"{lost} of its {seeds} runs with fresh seeds diverged; each counts as chance. " if lost else ""
        if own.get("reported_by") == HELD_OUT:
            return said.strip()
        on = f"{self.choosing:,} {self.noun}" if self.choosing else self.noun
        if own.get("reported_by") == FRESH_SEEDS:
            # BigBatch sees no examples of a user's whole training function, so it can hold none out.
            advice = " --holdout 50% shows how much." if self.choosing else ""
            still = "what fits them by luck is still in this value."
            return f"{said}The seeds are fresh, but the same {on} chose it: {still}{advice}"
        among = json_values.whole_number(own, "finished")
        luck = f"It is the best of {among} runs by this very value, so a part of it is luck."
        return f"{said}{luck}" if among > 1 else said.strip()

    def at_chance(self) -> str:
        """The values whose runs have not learned."""
        flat = [row for row in self.done if row.get("learned") is False]
        if not flat:
            return ""
        reached = " and ".join(f"{value_text(row.get('value'))} ({self.worth(row, 'objective')})" for row in flat)
        chance = self._text(self.values.get("baseline"))
        return (
            f"Nothing has learned at {self.word} {reached}: a constant prediction reaches {chance}. Nothing else is "
            f"said of {'them' if len(flat) > 1 else 'it'}."
        )

    def under_trained(self) -> str:
        """The values whose best run still rose steeply at its end."""
        rising = [row for row in self.done if row.get("still_rises") and row.get("learned") is not False]
        if not rising:
            return ""
        which = f"The best run{'s' * (len(rising) > 1)} at {self._names(rising)}" if self.dimension else "It"
        return (
            f"{which} still improved steeply at the last epoch: with more epochs (--max-epochs) the answer may be "
            "another."
        )

    def not_tried(self) -> str:
        """The values of which nothing is known."""
        untried = [row for row in self.rows if not row.get("tried")]
        unfinished = [row for row in self.rows if row.get("tried") and row.get("trial") is None]
        said = []
        if untried:
            said.append(f"{self._names(untried)} {'were' if len(untried) > 1 else 'was'} not tried")
        if unfinished:
            said.append(f"no run at {self._names(unfinished)} has finished")
        text = " and ".join(said)
        return (
            f"{text[0].upper()}{text[1:]}, so nothing is said of {'them' if len(untried + unfinished) > 1 else 'it'}."
            if said
            else ""
        )

    def saving(self, hours: str) -> str:
        """What a full run at the answer costs, against the smallest value that has finished."""
        own, first = self._answer, self.done[0]
        if self.dimension is None or len(self.done) < 2:
            return ""
        if own is first:
            later = [row for row in self.rows if row is not own]
            known = all(row.get("worse_by") is not None for row in later)
            return f"No larger {self.word} comes that near, so nothing is saved." if known and self._has_numbers else ""
        parts = []
        for key, text, unit in (
            ("optimizer_steps", number_text, " optimizer steps"),
            ("epoch_s", seconds_words, " for an epoch"),
            ("gpu_hours", short_number, f" {hours} for the run"),
        ):
            mine, theirs = json_values.number_or_none(own, key), json_values.number_or_none(first, key)
            if mine is not None and theirs and text(mine) != text(theirs):
                parts.append(f"{text(mine)} instead of {text(theirs)}{unit} (× {mine / theirs:.2g})")
        return f"Against {self.word} {value_text(first.get('value'))} it takes {', '.join(parts)}." if parts else ""

    def of_each_seed(self) -> str:
        """``: 94.4, 95.0 and 93.9 % on the images that did not choose it``."""
        each = self._answer.get("values")
        if not isinstance(each, (list, tuple)) or not 1 <= len(each) <= FEW:
            return ""
        texts = [self._text(value) for value in each]
        texts = [*(text.removesuffix(" %") for text in texts[:-1]), texts[-1]]
        listed = f"{', '.join(texts[:-1])} and {texts[-1]}" if len(texts) > 1 else texts[0]
        did = "did not choose" if self._answer.get("reported_by") == HELD_OUT else "chose"
        return f": {listed} on the {self.noun} that {did} it"

    # Parts of sentences

    @property
    def _answer(self) -> Row:
        assert self.own is not None, "only a usable answer has these words"
        return self.own

    @property
    def _has_numbers(self) -> bool:
        return all(_is_number(row.get("value")) for row in self.rows)

    @property
    def _largest(self) -> str:
        return f"{'largest' if self._has_numbers else 'last'} {self.word}"

    def _examples(self, count: int) -> str:
        """``180 images``, ``1 image``."""
        return counted_noun(count, self.noun.removesuffix("s"))

    def _gain(self, row: Row) -> float:
        return self.sign * json_values.number(row, "reported")

    def _half_widths(self, row: Row) -> tuple[float, float] | None:
        """How far the truth may be below and above what is reported, in gains."""
        low, high = json_values.number_or_none(row, "low"), json_values.number_or_none(row, "high")
        if low is None or high is None:
            return None
        value = json_values.number(row, "reported")
        return (value - low, high - value) if self.sign > 0 else (high - value, value - low)

    def _is_same(self, own: Row, other: Row) -> bool:
        """Whether the two differ by no more than chance explains (Newcombe's interval of the difference)."""
        gap, mine, theirs = self._gain(own) - self._gain(other), self._half_widths(own), self._half_widths(other)
        if mine is None or theirs is None:
            return False
        return abs(gap) <= (math.hypot(mine[0], theirs[1]) if gap > 0 else math.hypot(mine[1], theirs[0]))

    def _names(self, rows: Sequence[Row]) -> str:
        """``batch 128, 256 and 1,024``."""
        names = [value_text(row.get("value")) for row in rows]
        return f"{self.word} {', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else f"{self.word} {names[0]}"

    def _text(self, value: object) -> str:
        return self.metric.text(float(value)) if _is_number(value) else "–"  # type: ignore[arg-type]

    def worth(self, row: Row, key: str) -> str:
        return self._text(row.get(key))

    def _difference(self, value: float) -> str:
        return f"{100 * value:.1f} points" if self.metric.is_proportion else self.metric.text(value)

    def _range(self, row: Row) -> str:
        found = interval_text(row, self.metric)
        return f" ({found} at 95 %)" if found else ""


def interval_text(row: Row, metric: Metric) -> str:
    """``90.0 to 97.3 %``; empty without an interval."""
    low, high = json_values.number_or_none(row, "low"), json_values.number_or_none(row, "high")
    if low is None or high is None:
        return ""
    return f"{metric.text(low).removesuffix(' %')} to {metric.text(high)}"


def counted_noun(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def value_text(value: object) -> str:
    """A value of the frontier: ``1,024``, ``0.3``, ``cosine``."""
    return f"{value:,}" if _is_number(value) else str(value)


def number_text(value: float | None) -> str:
    """A number with three digits, or whole; ``–`` for None and for what is not finite."""
    if value is None or not math.isfinite(value):
        return "–"
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def short_number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}" if value < 1 else f"{value:.3g}"


def seconds_words(seconds: float | None) -> str:
    """``0.8 s``, ``12 s``, ``3.4 min``, ``2.1 h``."""
    if seconds is None or not math.isfinite(seconds):
        return "–"
    if seconds < 90:
        return f"{seconds:.2g} s"
    return f"{seconds / 60:.3g} min" if seconds < 5400 else f"{seconds / 3600:.3g} h"
