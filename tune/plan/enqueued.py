"""``--enqueue``: configurations that a search tries first, so that what it finds is never worse than what is published.

A trial trains exactly the configuration, scaled to the batch, even if no parameters of the space produce it. The study
notes the nearest parameters, and samplers learn from these. See docs/decisions/028.

``scaled`` follows the rules of those who published a configuration.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bigbatch.base import json_values
from bigbatch.search_spaces.check import nearest_parameters
from bigbatch.search_spaces.priors import peak_lr_centre
from bigbatch.search_spaces.trial import BATCH_KEY
from bigbatch.search_spaces.workload import Workload
from bigbatch.train_loop.config import ConfigError, ScheduleConfig, TrainConfig, known_key
from bigbatch.train_loop.config.given import read_config, recipe_names, recipe_path
from bigbatch.train_loop.config.last_step import with_smaller_step
from bigbatch.tune.models.names import LEARNING
from bigbatch.tune.plan.search_plan import EnqueuedTrial, SearchPlan
from bigbatch.tune.plan.warm_start import best_known
from bigbatch.tune.runs.knowledge import LABEL
from bigbatch.tune.runs.run import ENQUEUED_ATTR, GIVEN_ATTR

if TYPE_CHECKING:  # a login node may lack it
    import optuna

NONE, PREFIX = "none", "recipe:"
PUBLISHED = {"lars": "nus-lars-32k", "lamb": "lamb-32k", "sgd": "goyal-sgd-8k"}
"""For each optimizer the recipe that a search tries if the command line says nothing: the ones for the largest batches,
with a published rule for other batches."""
DEFAULT_SHARE, ASKED_SHARE = 3, 2
"""Published recipes take at most a third of the trials, configurations that were asked for at most half."""


@dataclass(frozen=True)
class Source:
    """A configuration to try, as it was read."""

    name: str
    """``recipe:NAME``, or a file's path as it was written."""
    config: TrainConfig
    steps: int | None = None
    """Optimizer steps of its whole run; None: not known."""


def read_sources(texts: Sequence[str]) -> list[Source]:
    """The configurations that ``--enqueue`` names; empty for ``none``. Raises ConfigError."""
    if NONE in texts and len(texts) > 1:
        raise ConfigError(f"--enqueue takes configurations, or none alone; got {' '.join(texts)}. Leave out {NONE}.")
    return [_read(text) for text in dict.fromkeys(texts) if text != NONE]


def _read(text: str) -> Source:
    if not text.startswith(PREFIX):
        if text in recipe_names():
            raise ConfigError(f"--enqueue takes recipe:NAME or a file; got {text!r}. Write --enqueue recipe:{text}.")
        return Source(text, _config_in(Path(text), text))
    try:
        path = recipe_path(text[len(PREFIX) :])
    except ConfigError as error:
        raise ConfigError(str(error).replace("--recipe must be", "--enqueue recipe:NAME needs", 1)) from None
    return _recipe(text, path)


def _recipe(name: str, path: Path) -> Source:
    cost = json_values.mapping(json_values.json_object(path.read_text()), "cost")
    return Source(name, read_config(path), json_values.whole_number_or_none(cost, "optimizer_steps"))


def _config_in(path: Path, text: str) -> TrainConfig:
    if not os.path.isfile(path):  # False also for one in a folder that may not be entered
        raise ConfigError(
            f"--enqueue takes recipe:NAME, a configuration's file such as best.json, or none; got {text!r}, which is "
            "no file. Check the path."
        )
    try:
        return read_config(path)
    except ConfigError as error:
        raise ConfigError(f"--enqueue needs a file with a configuration: {error}") from None


def first_trials(plan: SearchPlan) -> tuple[EnqueuedTrial, ...]:
    """The trials with which a new search begins, in their order: what ``--enqueue`` names, else published recipes.

    Raises ConfigError for a source that was asked for and does not fit: the space has no inverse, or cannot have its
    optimizer or batch; ``--set`` fixes another value; there are too many for the number of trials.
    """
    if not plan.options.enqueue:
        return _published(plan) if plan.strategy in LEARNING else ()  # designs stay as they are
    sources = read_sources(plan.options.enqueue)
    if sources and plan.space.inverse is None:
        raise ConfigError(
            f"--enqueue needs a space that says which parameters give a configuration; got space {plan.space.name!r} "
            "without parameters_of. Write that function, or leave --enqueue out."
        )
    room = max(len(sources) if plan.open_ended else 1, plan.trials // ASKED_SHARE)
    if len(sources) > room:
        raise ConfigError(
            f"--enqueue may take at most half of the trials; got {len(sources)} configurations for {plan.trials} "
            f"trials. Write --trials {ASKED_SHARE * len(sources)} or more."
        )
    batches = _batches(plan)
    own = [(source, _nearest_batch(source, batches)) for source in sources]
    others = [pair for pair in _rotation(sources, batches) if pair not in own]
    return tuple(_fitted(source, batch, plan) for source, batch in (own + others)[:room])


def _batches(plan: SearchPlan) -> tuple[int, ...]:
    """The batches of the search, smallest first. Empty: not known, and each configuration keeps its own."""
    frontier = plan.frontier if plan.frontier and plan.space.key_of(plan.frontier.name) == BATCH_KEY else None
    return tuple(value for value in frontier.values if isinstance(value, int)) if frontier else ()


def _published(plan: SearchPlan) -> tuple[EnqueuedTrial, ...]:
    """In each turn one recipe for each batch, the optimizers in rotation, up to a third of the trials."""
    found: list[EnqueuedTrial] = []
    batches = _batches(plan)
    if plan.space.inverse is None or not batches:
        return ()
    sources = []
    for name in PUBLISHED.values():
        source = _recipe(PREFIX + name, recipe_path(name))
        with contextlib.suppress(ConfigError):
            # A recipe that does not fit this data or this space is left out.
            _fitted(source, batches[-1], plan)
            sources.append(source)
    turns = plan.trials // DEFAULT_SHARE // len(batches)
    pairs = _rotation(sources, batches)[: max(turns, 1) * len(batches)][: plan.trials // DEFAULT_SHARE]
    for source, batch in pairs:
        with contextlib.suppress(ConfigError):
            found.append(_fitted(source, batch, plan))
    return tuple(found)


def _rotation(sources: Sequence[Source], batches: Sequence[int]) -> list[tuple[Source, int]]:
    """Each source at each batch. A turn goes from the largest batch to the smallest, with another source each time."""
    return [
        (sources[(turn + place) % len(sources)], batch)
        for turn in range(len(sources))
        for place, batch in enumerate(reversed(batches))
    ]


def _nearest_batch(source: Source, batches: Sequence[int]) -> int:
    own = source.config.batch.global_size
    return min(batches, key=lambda batch: abs(math.log(batch / own)), default=own)


def _fitted(source: Source, batch: int, plan: SearchPlan) -> EnqueuedTrial:
    """The trial of a source at a batch. Raises ConfigError if the search cannot have it."""
    workload, keys = plan.workload, {n: v for n, v in plan.overrides.items() if known_key(n) is not None}
    keys.pop(BATCH_KEY, None)
    if batch > workload.train_size:
        raise ConfigError(
            f"--enqueue needs a batch of at most the {workload.train_size} training images; got {source.name} with "
            f"{batch}. Change its batch.global_size."
        )
    config = scaled(source.config, batch, workload, source.steps)
    for name, value in plan.overrides.items():
        if known_key(name) is None or (name in keys and _parts(config.replace_keys({name: value})) != _parts(config)):
            raise ConfigError(
                f"--enqueue tries a configuration as it is; got {source.name} and --set {name}={value}. Leave out one "
                "of them."
            )
    changed = config.replace_keys({**keys, "seed": plan.seed})
    # Refuses a batch that does not divide over the workers.
    changed.batch.split(workload.workers)
    if nearest_parameters(plan.space, changed, workload, plan.overrides) is None:
        raise ConfigError(
            f"--enqueue needs an optimizer and a batch that the space can choose; got {source.name} with "
            f"{changed.optimizer.name} at batch {batch}, and space {plan.space.name!r}. Leave it out."
        )
    return EnqueuedTrial(source.name, changed)


def _parts(config: TrainConfig) -> tuple[object, ...]:
    return config.optimizer, config.schedule, config.loss, config.label_smoothing, config.ema_decay


def enqueue_first_trials(plan: SearchPlan, study: optuna.Study) -> None:
    """Let the best of ``--warm-start`` wait in the study, then ``--enqueue``, then the space's initial points.

    What is in the study already is not repeated, so this also completes what a kill interrupted.
    """
    there = {trial.user_attrs.get(ENQUEUED_ATTR) for trial in study.get_trials(deepcopy=False)}
    for found, params in best_known(plan):
        if LABEL + found not in there:
            study.enqueue_trial(params, user_attrs={ENQUEUED_ATTR: LABEL + found})
    for trial in plan.enqueued:
        if trial.label not in there:
            config = trial.config.replace_keys({"model.name": plan.model})  # a joined cluster may have decided it
            attrs = {ENQUEUED_ATTR: trial.label, GIVEN_ATTR: config.to_dict()}
            nearest = nearest_parameters(plan.space, trial.config, plan.workload, plan.overrides) or {}
            study.enqueue_trial(nearest, user_attrs=attrs)
    if plan.strategy in LEARNING:  # the designs random and qmc stay as they are
        for point in plan.space.initial_points(plan.workload, plan.overrides):
            study.enqueue_trial(point, skip_if_exists=True)


def in_words(trials: Sequence[EnqueuedTrial]) -> str:
    """E.g. ``recipe:lamb-32k at 512, recipe:nus-lars-32k at 1,024 and 128``."""
    batches: dict[str, list[str]] = {}
    for trial in trials:
        batches.setdefault(trial.source, []).append(f"{trial.config.batch.global_size:,}")
    return "; ".join(f"{source} at {', '.join(found)}" for source, found in batches.items())


def scaled(config: TrainConfig, batch: int, workload: Workload, steps: int | None = None) -> TrainConfig:
    """What ``config`` trains, for the data, network, epochs and micro-batch of ``workload``, at global batch ``batch``.

    From ``config`` come optimizer, schedule, loss, label smoothing and the average of the weights. Its rate follows the
    batch: linearly for SGD up to 8,192 images and with the square root beyond (Goyal et al. 2017, Nado et al. 2021),
    with the square root for the others (You et al. 2020, arXiv 1904.00962; Malladi et al. 2022, arXiv 2205.10287).
    Warmup and steps of the schedule keep their share of the run.

    Args:
        steps: optimizer steps of the configuration's own run. None: not known.

    Raises ConfigError for a warmup in steps if ``steps`` is None.
    """
    rate = config.optimizer.peak_lr * rate_factor(config.optimizer.name, config.batch.global_size, batch)
    kept = {"loss": config.loss, "label_smoothing": config.label_smoothing, "ema_decay": config.ema_decay}
    base = workload.config({"batch.global_size": batch, **kept})
    return dataclasses.replace(
        with_smaller_step(base, workload.train_size) if workload.smaller_step else base,
        optimizer=dataclasses.replace(config.optimizer, peak_lr=rate),
        schedule=stretched(config.schedule, config.epochs, workload.epochs, steps),
    )


def rate_factor(optimizer: str, before: int, after: int) -> float:
    """The factor on the peak learning rate from one global batch to another; 1 if they are equal."""
    if optimizer == "sgd":
        return peak_lr_centre("sgd", after, 1) / peak_lr_centre("sgd", before, 1)
    return math.sqrt(after / before)


def stretched(schedule: ScheduleConfig, before: int, after: int, steps: int | None) -> ScheduleConfig:
    """The schedule of a run of ``before`` epochs for one of ``after``: warmup, in epochs, and steps keep their share.

    Args:
        steps: optimizer steps of the run before. None: not known.

    Raises ConfigError for a warmup in steps if ``steps`` is None.
    """
    warmup_epochs = schedule.warmup_epochs * after / before
    if schedule.warmup_steps:
        if steps is None:
            raise ConfigError(
                "--enqueue needs to know which share of a run its warmup is; got a configuration with "
                f"schedule.warmup_steps={schedule.warmup_steps}. Write schedule.warmup_epochs in the file."
            )
        warmup_epochs = schedule.warmup_steps / steps * after
    return dataclasses.replace(
        schedule,
        warmup_epochs=min(warmup_epochs, float(after)),
        warmup_steps=0,
        step_epochs=tuple(epoch * after / before for epoch in schedule.step_epochs),
    )
