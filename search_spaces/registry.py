"""Load a space by name or from a file: ``large_batch``, ``my_space.py``, ``my_space.py:my_function``."""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import inspect
import os
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bigbatch.search_spaces import large_batch, lr_warmup, priors, smoke
from bigbatch.search_spaces.priors import LogNormal
from bigbatch.search_spaces.trial import BATCH_KEY, Convert, PinnedTrial, StandInTrial
from bigbatch.search_spaces.workload import Workload
from bigbatch.train_loop.config import ConfigError, TrainConfig, known_key, last_step
from bigbatch.train_loop.config.own_names import (
    function_of,
    load_module,
    own_name,
    source_text,
    with_absolute_words,
    without_comments,
)

OPTION = "--space"
_WORKLOAD_FACTS = {"epochs": "epochs", "batch.max_micro_size": "max_micro_size"}
"""Configuration keys that are also facts of the workload, from which spaces derive ranges."""


@dataclass(frozen=True)
class Space:
    """A function of a trial and a workload that returns a TrainConfig, and the facts about its source.

    ``pinned`` holds what ``--set`` fixes: configuration keys and parameters of the space, with their values. The
    configuration holds the pinned values, and the space does not search them.
    """

    name: str
    function: Callable[[Any, Workload], TrainConfig]
    source: str
    """``built-in``, or the file's absolute path."""
    doc: str
    """First line of the function's docstring, or of the file's."""
    fingerprint: str
    """SHA-256 of the source text. If it differs, the space may have changed."""
    defaults: Mapping[str, int] = field(default_factory=dict)
    """Default ``trials`` and ``max_epochs`` of the space; from the file's ``DEFAULTS``."""
    parameter_keys: Mapping[str, tuple[str, Convert]] = field(default_factory=dict)
    """See ``PinnedTrial``; from the file's ``PARAMETER_KEYS``."""
    initial: Callable[[Workload], list[dict[str, object]]] | None = None
    """The file's ``initial_points``. None: it has none."""
    frontier: str | None = None
    """The parameter whose values a search compares, one best configuration for each; from the file's ``FRONTIER``.
    None: all trials compare."""
    inverse: Callable[[TrainConfig, Workload], dict[str, object] | None] | None = None
    """The file's ``parameters_of``: the parameters that give a configuration. None: it has none."""
    beliefs: Callable[[Workload], Mapping[str, LogNormal]] | None = None
    """The file's ``soft_priors``. None: it has none, and every value of a range is as likely as any other."""
    decides_last_step: bool = False
    """Whether the file names ``drop_last``. Otherwise the batch decides (``train_loop.config.last_step``)."""

    def __call__(self, trial: Any, workload: Workload, pinned: Mapping[str, object] | None = None) -> TrainConfig:
        if not pinned and not workload.batches:
            config = self.function(trial, workload)
            return self._finished(config, workload) if isinstance(config, TrainConfig) else config
        pinned = pinned or {}
        fixed = _keys_of(pinned)
        parameters = {name: value for name, value in pinned.items() if known_key(name) is None}
        facts: dict[str, Any] = {name: fixed[key] for key, name in _WORKLOAD_FACTS.items() if key in fixed}
        workload = dataclasses.replace(workload, **facts, fixed=fixed)
        trial = PinnedTrial(trial, fixed, self.parameter_keys, parameters, workload.batches)
        config = self.function(trial, workload)
        return self._finished(config.replace_keys(fixed), workload) if isinstance(config, TrainConfig) else config

    def _finished(self, config: TrainConfig, workload: Workload) -> TrainConfig:
        """The configuration with ``data.drop_last``, which follows from its batch, and absolute paths of users' files.

        Relative paths are relative to the space's file.
        """
        if config.validate_every != 1:
            raise ConfigError(
                f"a search needs the value of each epoch; got validate_every={config.validate_every}. Leave it out: "
                "`bigbatch train` alone skips validations."
            )
        if workload.smaller_step and not self.decides_last_step and last_step.KEY not in workload.fixed:
            config = last_step.with_smaller_step(config, workload.train_size)
        return config if self.source == "built-in" else with_absolute_words(config, Path(self.source).parent)

    def initial_points(self, workload: Workload, pinned: Mapping[str, object] | None = None) -> list[dict[str, object]]:
        """Parameters of the first trials, for ``study.enqueue_trial``. No point is contained in another.

        A point leaves out the names that the space does not suggest for it, such as pinned ones. It also leaves out a
        batch that ``--batch`` does not name.
        Raises ValueError for a value outside its parameter's range.
        """
        points: list[dict[str, object]] = []
        named, facts = workload.batches, dataclasses.replace(workload, fixed=_keys_of(pinned or {}))
        for wanted in self.initial(facts) if self.initial else []:
            point = {n: v for n, v in wanted.items() if not named or self.key_of(n) != BATCH_KEY or v in named}
            trial = StandInTrial(None, fixed=point)
            self(trial, workload, pinned)
            suggested = {name: value for name, value in trial.params.items() if name in point}
            if suggested and not any(suggested.items() <= other.items() for other in points):
                points.append(suggested)
        return points

    def key_of(self, name: str) -> str | None:
        """The dotted key of the configuration that a parameter sets; None if it sets none by itself."""
        return known_key(self.parameter_keys[name][0] if name in self.parameter_keys else name)

    def soft_priors(self, workload: Workload) -> dict[str, LogNormal]:
        """What is believed about parameters before the first trial. Raises ConfigError for something else."""
        found = self.beliefs(workload) if self.beliefs else {}
        if not isinstance(found, Mapping) or not all(isinstance(prior, LogNormal) for prior in found.values()):
            raise ConfigError(
                f"soft_priors of a space returns LogNormal priors by parameter; got {found!r} from {self.name!r}. "
                "Write e.g. {'lr': LogNormal(centre=0.1, factor=4)}."
            )
        return dict(found)


def _keys_of(pinned: Mapping[str, object]) -> dict[str, object]:
    """The configuration keys among the pinned names, dotted."""
    return {full: value for name, value in pinned.items() if (full := known_key(name)) is not None}


def load_space(text: str) -> Space:
    """The space for ``--space text``: NAME, FILE.py or FILE.py:FUNCTION (default ``space``).

    A file runs as Python code. Raises ConfigError with a message of one line for an unknown name, a file that is
    missing or fails to run, and a function that is missing or does not take (trial, workload).
    """
    if word := space_word(text):
        return _from_file(word)
    if text in BUILT_IN:
        return BUILT_IN[text]
    near = difflib.get_close_matches(text, BUILT_IN, n=1)
    fix = f"Did you mean {near[0]!r}?" if near else "Write one of them, or FILE.py[:function]."
    if os.path.isfile(text + ".py"):
        fix = f"Did you mean '{text}.py'?"
    raise ConfigError(f"--space is one of {', '.join(BUILT_IN)}, or a Python file; got {text!r}. {fix}")


def space_word(text: str) -> str | None:
    """``FILE.py:FUNCTION`` for the file that ``--space text`` names; None if it names no file."""
    path, colon, _ = text.rpartition(":")
    word = text if colon and path.endswith(".py") else f"{text}:space"
    return word if word.rpartition(":")[0].endswith(".py") else None


def _from_file(word: str) -> Space:
    file = own_name(OPTION, word)
    source = source_text(OPTION, file)
    try:
        module = load_module(file, source)
    # A script that ends with sys.exit would end the command without a message.
    except (Exception, SystemExit) as error:
        message = " ".join(str(error).split())
        raise ConfigError(
            f"--space needs a file that Python can run; got '{file.path}' with {type(error).__name__}: {message}. "
            f"Run `python '{file.path}'` to see where."
        ) from None
    name = file.path.stem if file.function == "space" else f"{file.path.stem}:{file.function}"
    return _space(name, function_of(OPTION, file, module), module, source, str(file.path))


def _space(name: str, function: Callable[..., Any], module: types.ModuleType, source: str, where: str) -> Space:
    try:
        inspect.signature(function).bind("trial", "workload")
    except (TypeError, ValueError):
        raise ConfigError(
            f"a space is a function of (trial, workload); got {name!r} of '{where}', which does not take those two. "
            f"Write `def space(trial, workload):`."
        ) from None
    with_priors = any(v is priors or getattr(v, "__module__", None) == priors.__name__ for v in vars(module).values())
    doc = (inspect.getdoc(function) or module.__doc__ or "").strip()
    return Space(
        name=name,
        function=function,
        source=where,
        doc=doc.splitlines()[0] if doc else "",
        # A space whose ranges follow from priors.py changes with that file.
        fingerprint=_digest(without_comments(source) + (_priors_text() if with_priors else "")),
        defaults=_defaults(getattr(module, "DEFAULTS", {}), where),
        parameter_keys=dict(getattr(module, "PARAMETER_KEYS", {})),
        initial=getattr(module, "initial_points", None),
        frontier=getattr(module, "FRONTIER", None),
        beliefs=getattr(module, "soft_priors", None),
        inverse=getattr(module, "parameters_of", None),
        decides_last_step="drop_last" in without_comments(source),
    )


def _defaults(values: object, where: str) -> dict[str, int]:
    known = ("trials", "max_epochs")
    if not isinstance(values, dict) or any(k not in known or type(v) is not int or v < 1 for k, v in values.items()):
        raise ConfigError(
            f"DEFAULTS of a space may hold trials and max_epochs, whole numbers of 1 or more; got {values!r} in "
            f"'{where}'. Write e.g. DEFAULTS = {{'trials': 20}}."
        )
    return dict(values)


def _priors_text() -> str:
    return without_comments(Path(priors.__file__).read_text(encoding="utf-8"))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _built_in(module: types.ModuleType) -> Space:
    source = Path(str(module.__file__)).read_text(encoding="utf-8")
    return _space(module.__name__.rpartition(".")[2], module.space, module, source, "built-in")


BUILT_IN: Mapping[str, Space] = types.MappingProxyType(
    {space.name: space for space in map(_built_in, (large_batch, lr_warmup, smoke))}
)
