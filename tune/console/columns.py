"""Choose the columns of the trial table: settings that differ between trials, and the space's own parameters.

The plan prints the settings that are the same in all trials.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from bigbatch.search_spaces.check import ParamRange
from bigbatch.search_spaces.registry import Space
from bigbatch.search_spaces.trial import StandInTrial
from bigbatch.search_spaces.workload import Workload
from bigbatch.train_loop.config import known_key
from bigbatch.tune.console.setting_words import SHOWN_KEYS, shown_settings
from bigbatch.tune.runs.observer import TrialView

WIDTHS = {
    "optimizer": 9, "batch": 5, "lr": 8, "warmup": 6, "momentum": 10, "wd": 7, "smoothing": 9, "schedule": 8
}  # fmt: skip
"""Settings in the table, with their widths in characters."""
NUMBER_WIDTH = 9
SAMPLES = 64


@dataclass(frozen=True)
class Columns:
    """The columns for each trial. Without arguments: every setting."""

    fixed: Mapping[str, str] = field(default_factory=dict)
    """Settings that are the same in all trials."""
    own: Mapping[str, int] = field(default_factory=dict)
    """Searched parameters that are no setting, with the widths of their values."""

    def of(self, trial: TrialView) -> dict[str, str]:
        """Name → text of the trial's settings, then of the space's own parameters."""
        shown = {name: text for name, text in shown_settings(trial.config).items() if name not in self.fixed}
        return shown | {short_key(name): _text(trial.params[name]) for name in self.own if name in trial.params}

    def line(self, trial: TrialView) -> str:
        """The trial's columns in one line: ``sgd batch 128 lr 0.05``."""
        values = self.of(trial)
        first = f"{values.pop('optimizer')} " if "optimizer" in values else ""
        return first + " ".join(f"{name} {text}" for name, text in values.items())

    def that_fit(self, room: int) -> tuple[str, ...]:
        """The columns that fit into ``room`` characters: first own parameters, then settings. No value is cut."""
        widths = {short_key(name): max(len(short_key(name)), width) for name, width in self.own.items()}
        both = "momentum" in self.fixed and "betas" in self.fixed  # one column for both
        settings_widths = {
            name: width
            for name, width in WIDTHS.items()
            if (name not in self.fixed if name != "momentum" else not both)
        }
        kept = []
        for name, needed in (widths | settings_widths).items():
            room -= needed + 2
            if room < 0:
                break
            kept.append(name)
        return tuple(sorted(kept, key=[*settings_widths, *widths].index))


def columns_of(
    space: Space, workload: Workload, overrides: Mapping[str, object], ranges: Mapping[str, ParamRange]
) -> Columns:
    """The columns for a space's trials. Samples of the space show which settings vary."""
    rng, found = random.Random(0), []
    for number in range(SAMPLES):
        with contextlib.suppress(Exception, SystemExit):  # the search reports a refused configuration
            found.append(shown_settings(space(StandInTrial(rng, number=number), workload, overrides)))
    first = found[0] if found else {}
    fixed = {name: text for name, text in first.items() if all(other.get(name) == text for other in found)}
    if "momentum" in fixed or "betas" in fixed:  # the table has one column for them
        fixed |= {"momentum": fixed.get("momentum", ""), "betas": fixed.get("betas", "")}
    shows_settings = bool(first)
    if found and not shows_settings:  # a whole training function has none of them
        fixed = dict.fromkeys((*WIDTHS, "betas"), "")
    own = {n: _width(met) for n, met in ranges.items() if _varies(met) and not (shows_settings and _is_shown(n, space))}
    return Columns(fixed, own)


def short_key(name: str) -> str:
    """``mixup_alpha`` of ``data.mix.mixup_alpha``."""
    return name.rpartition(".")[2]


def _is_shown(name: str, space: Space) -> bool:
    key = space.parameter_keys[name][0] if name in space.parameter_keys else name
    return known_key(key) in SHOWN_KEYS


def _varies(found: ParamRange) -> bool:
    if found.kind == "derived":
        return False
    return len(found.choices) > 1 if found.kind == "categorical" else found.low < found.high


def _width(found: ParamRange) -> int:
    return max((len(_text(choice)) for choice in found.choices), default=NUMBER_WIDTH)


def _text(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
