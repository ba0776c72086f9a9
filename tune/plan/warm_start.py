"""``--warm-start``: read trials of other studies as knowledge of this search. Their folders stay as they are.

A study fits if it has this search's parameters and objective. Batch, subset, image size, network and epochs may differ:
the curve model finds out what that changes. See docs/decisions/033.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from bigbatch.base import json_values
from bigbatch.cluster.host.optuna_journal import State
from bigbatch.search_spaces.check import ParamRange
from bigbatch.train_loop.config import ConfigError
from bigbatch.tune.plan.search_plan import SearchPlan
from bigbatch.tune.runs.knowledge import WARM_START, Curve, KnownStudy, best_first, stored_knowledge
from bigbatch.tune.runs.objective import Objective
from bigbatch.tune.runs.objectives import DEFAULT_OBJECTIVE
from bigbatch.tune.runs.run import Run, earlier_of, has_diverged
from bigbatch.tune.storage.description import STUDY_FILE, read_description
from bigbatch.tune.storage.summary import UNREADABLE, summarize

MOST_TRIALS = 200
"""Of a larger study so many trials are kept: one half are the best, the other half are spread over the rest."""
WARMUP_KEY = "schedule.warmup_epochs"
SHARES = (1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2)
"""Of a curve, the values at these parts of the run are kept, and the last one."""


def knowledge_of(plan: SearchPlan, stored: Mapping[str, object]) -> tuple[KnownStudy, ...]:
    """What a new search reads by its options, and what a resumed one has in its study.json.

    Raises ConfigError for no study, an empty or an unsuitable one, and for a resumed one that began without knowledge.
    """
    paths = plan.options.warm_start
    if stored and paths and not stored.get(WARM_START):
        raise ConfigError(
            "--warm-start is for the beginning of a study; got --resume of one that began without it. Leave it out, or "
            "write --study OTHER."
        )
    if stored:
        return stored_knowledge(stored, plan.objectives.first)
    if paths and (plan.objectives.several or "=" in plan.objectives.text):
        raise ConfigError(
            f"--warm-start needs a search for one metric; got {plan.objectives.text}. Leave out --warm-start."
        )
    once = {Path(path).resolve(): path for path in paths}  # a study that is named twice is read once
    return tuple(_read(path, plan) for path in once.values())


def _read(path: str, plan: SearchPlan) -> KnownStudy:
    if not os.path.isfile(Path(path) / STUDY_FILE):  # False also where the folder may not be entered
        raise ConfigError(
            f"--warm-start takes folders of studies, such as runs/first; got {path!r}, which holds no {STUDY_FILE}. "
            "Check the path."
        )
    description = read_description(Path(path))
    before = json_values.text(description, "objective", DEFAULT_OBJECTIVE)
    if before != plan.objectives.text:
        raise ConfigError(
            f"--warm-start needs a study with this search's objective, {plan.objectives.text}; got {path!r} with "
            f"{before}. Write --objective {before}, or leave it out."
        )
    summary = summarize(Path(path))
    if summary.state == UNREADABLE:
        raise ConfigError(f"--warm-start must be able to read the study; got {path!r} ({summary.why}). Restore it.")
    trials = [
        trial for trial in summary.study.trials if trial.state in (State.COMPLETE, State.PRUNED) or has_diverged(trial)
    ]
    left_out = ("confirms", "infeasible")  # infeasible trials are no answer
    trials = [t for t in trials if t.params and not any(name in t.user_attrs for name in left_out)]
    if not trials:
        raise ConfigError(
            f"--warm-start needs a study with trials that have ended; got {path!r} without. Leave it out."
        )
    space = _SpaceToFit(plan, json_values.mapping(description, "overrides"))
    space.check(path, trials)
    found = _merged(trials, space, plan.objectives.first)
    if not found:
        raise ConfigError(
            f"--warm-start needs trials within this search's ranges; got {path!r} with {len(trials)}, all outside. "
            "Leave it out."
        )
    return KnownStudy(path, _fewer(found))


class _SpaceToFit:
    """This search's parameters, and what the other study had fixed."""

    def __init__(self, plan: SearchPlan, fixed_there: Mapping[str, object]) -> None:
        self.ranges = {name: found for name, found in plan.ranges.items() if found.kind != "derived"}
        self.frontier = plan.frontier.name if plan.frontier else None
        self._plan = plan
        names = {*self.ranges, *([self.frontier] if self.frontier else [])}
        self._there = {name: value for name in names if (value := self._fixed(fixed_there, name)) is not None}

    def _fixed(self, overrides: Mapping[str, object], name: str) -> object:
        key = self._plan.space.key_of(name)
        return overrides.get(name, overrides.get(key) if key else None)

    def check(self, path: str, trials: Sequence[Run]) -> None:
        """Raise ConfigError if the trials have other parameters than this search."""
        met = {name for trial in trials for name in trial.params}
        here = {name for name in met if name in self.ranges or self._fixed(self._plan.overrides, name) is not None}
        unknown = sorted(met - here - {self.frontier})
        needed = {name for name, found in self.ranges.items() if found.always and name != self.frontier}
        missing = sorted(needed - met - set(self._there))
        if unknown or missing:
            what = f"{unknown[0]!r}, which this one has not" if unknown else f"no {missing[0]!r}"
            raise ConfigError(
                f"--warm-start needs a study of this space's parameters; got {path!r} with {what}. Leave it out, or "
                "write its --space."
            )

    def group(self, trial: Run) -> object:
        """The trial's value of the frontier's parameter."""
        name = self.frontier or ""
        return trial.params.get(name, self._there.get(name))

    def adapted(self, trial: Run) -> dict[str, object] | None:
        """The trial's parameters in this search; None if one is outside of its range.

        The frontier's value becomes the nearest one of this search.
        """
        params = {name: value for name, value in {**self._there, **trial.params}.items() if name in self.ranges}
        for name, value in params.items():
            found = self.ranges[name]
            if name == self.frontier:
                values = self._plan.frontier.values if self._plan.frontier else ()
                params[name] = _nearest(value, values)
                if params[name] not in values:
                    return None
                continue
            if self._plan.space.key_of(name) == WARMUP_KEY and isinstance(value, (int, float)):
                # A warmup is a part of the run, and its range follows the epochs.
                params[name] = _on_edge(value * self._plan.max_epochs / _epochs_of(trial), found)
            if not found.contains(params[name]):
                return None
        pinned = {name: self._fixed(self._plan.overrides, name) for name in trial.params}
        chosen = {name: value for name, value in pinned.items() if name != self.frontier and value is not None}
        return params if all(trial.params[name] == value for name, value in chosen.items()) else None


def _nearest(value: object, values: Iterable[object]) -> object | None:
    """The value itself, or of positive numbers the one with the nearest logarithm."""
    listed = list(values)
    if value in listed:
        return value
    numbers = [one for one in listed if isinstance(one, (int, float)) and one > 0]
    if not isinstance(value, (int, float)) or value <= 0:
        return None
    return min(numbers, key=lambda one: abs(math.log(one / value)), default=None)


def _epochs_of(trial: Run) -> int:
    """The epochs of the trial's whole run, at least 1."""
    return max(1, json_values.whole_number(trial.config, "epochs") or trial.epochs)


def _on_edge(value: float, found: ParamRange) -> float:
    """The value, or the end of the range from which only rounding separates it."""
    return next((end for end in (found.low, found.high) if math.isclose(value, end, rel_tol=1e-9)), value)


def _gains(trial: Run, objective: Objective) -> dict[int, float]:
    """Epoch → gain, of the epochs in which it has not diverged."""
    known = ((record, objective.value(record)) for record in trial.records if objective.has_learnt(record))
    return {
        json_values.whole_number(record, "epoch"): objective.gain(value)
        for record, value in known
        if math.isfinite(value)
    }


def _merged(trials: Sequence[Run], space: _SpaceToFit, objective: Objective) -> list[Curve]:
    """One for each configuration: of a trial, its continuation and its retries together."""
    first: dict[int, int] = {}
    found: dict[int, Curve] = {}
    for trial in trials:
        earlier = earlier_of(trial)
        number = trial.number if earlier is None else first.get(earlier, earlier)
        first[trial.number] = number
        params = space.adapted(trial)
        epochs = _epochs_of(trial)
        if params is None:
            continue
        gains = {**(found[number].gains if number in found else {}), **_gains(trial, objective)}
        if gains or has_diverged(trial):
            kept = _few_values(gains, epochs)
            found[number] = Curve(number, params, kept, epochs, has_diverged(trial), space.group(trial))
    return list(found.values())


def _few_values(values: Mapping[int, float], epochs: int) -> dict[int, float]:
    # A part of a run may come out as a little more than a whole number of epochs.
    wanted = {max(1, math.ceil(share * epochs - 1e-9)) for share in SHARES} | ({max(values)} if values else set())
    return {epoch: value for epoch, value in sorted(values.items()) if epoch in wanted}


def _fewer(curves: list[Curve]) -> tuple[Curve, ...]:
    """At most ``MOST_TRIALS``: the best, and some spread evenly over the others."""
    if len(curves) <= MOST_TRIALS:
        return tuple(curves)
    order = sorted(curves, key=lambda c: (c.finished, c.last if not c.diverged else -math.inf), reverse=True)
    best, rest = order[: MOST_TRIALS // 2], order[MOST_TRIALS // 2 :]
    spread = [rest[i * len(rest) // (MOST_TRIALS - len(best))] for i in range(MOST_TRIALS - len(best))]
    return tuple(sorted((*best, *spread), key=lambda curve: curve.number))


def best_known(plan: SearchPlan) -> list[tuple[str, dict[str, object]]]:
    """Labels and parameters of the configurations to try first: of each batch the best, at each batch of this search.

    They are at most a quarter of the trials, but at least one. The studies take turns, from the largest batch to the
    smallest.
    """
    room, name = max(1, plan.trials // 4), plan.frontier.searched if plan.frontier else None
    values: tuple[object, ...] = plan.frontier.values[::-1] if plan.frontier and name else (...,)  # None is a value
    found: list[tuple[str, dict[str, object]]] = []
    for place in range(room):
        for value in values:
            for study in plan.warm_start:
                ranked = _ranked(study, value)
                if place < len(ranked):
                    params = {**ranked[place].params, **({name: value} if name else {})}
                    at = f" at {value}" if name else ""
                    found.append((f"{study.name} trial {ranked[place].number}{at}", params))
    unlike: list[tuple[str, dict[str, object]]] = []
    for label, params in found:
        if all(params != other for _, other in unlike):
            unlike.append((label, params))
    return unlike[:room]


def _ranked(study: KnownStudy, value: object) -> list[Curve]:
    """The finished curves of the group that is nearest to ``value``, the best first.

    Without a value to compare, the groups take turns.
    """
    groups = {group: done for group, curves in study.groups().items() if (done := best_first(curves))}
    near = _nearest(value, groups)
    if value in groups or near is not None:
        return groups[near]
    longest = max(map(len, groups.values()), default=0)
    return [group[i] for i in range(longest) for group in groups.values() if i < len(group)]


def known_in_words(study: KnownStudy) -> str:
    """E.g. ``runs/first-try: 12 trials, 9 of them finished``."""
    return f"{study.name}: {len(study.curves)} trials, {sum(curve.finished for curve in study.curves)} of them finished"
