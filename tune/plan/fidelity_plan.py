"""``--fidelity``: check it, and divide the trials into cheap runs and full ones."""

from __future__ import annotations

import argparse
import math
from typing import NoReturn

from bigbatch.cluster.host.option_values import parse_fraction
from bigbatch.search_spaces.trial import BATCH_KEY
from bigbatch.train_loop.config import ConfigError, data_config
from bigbatch.train_loop.data.catalogue import describe_data_set
from bigbatch.train_loop.data.info import DataInfo
from bigbatch.tune.plan.fitting import check_search_model
from bigbatch.tune.plan.options import SearchOptions
from bigbatch.tune.plan.search_plan import SearchPlan
from bigbatch.tune.study.fidelity import Fidelity, FidelityPlan
from bigbatch.tune.study.metrics import COSTS

KINDS = ("epochs", "subset", "image_size")
FULL_SHARE = 4
"""Every fourth trial is a full run, and at least one for each value of the frontier."""
FEWEST_FULL = 2
EPOCHS_SHARE, SUBSET_SHARE, SIZE_SHARE = 3, 4, 2
"""A cheap run has by default a third of the epochs, a quarter of the images, or half of the pixels a side."""
FEWEST_EPOCHS, FEWEST_PIXELS = 2, 8
"""A run of one epoch has no schedule to speak of. ResNets take images from 8 pixels on."""


def parse_fidelity(text: str | None) -> tuple[str, float | None] | None:
    """``epochs`` → ("epochs", None), ``subset=10%`` → ("subset", 0.1). Raises ConfigError for anything else."""
    if text is None:
        return None
    kind, _, value = (part.strip() for part in text.partition("="))
    try:
        if kind not in KINDS or ("=" in text and not value):
            raise ValueError
        number = None if not value else parse_fraction(value) if kind == "subset" else float(int(value))
    except (ValueError, argparse.ArgumentTypeError):
        raise ConfigError(
            f"--fidelity takes epochs, subset or image_size, with a value or without; got {text!r}. Write e.g. "
            "--fidelity epochs, epochs=6, subset=10% or image_size=16."
        ) from None
    return kind, number


def refuse_other_searches(o: SearchOptions) -> None:
    """Raise ConfigError for options beside which cheap runs say nothing."""
    if parse_fidelity(o.fidelity) is None:
        return
    if o.transfer_to is not None:
        _refuse("and --transfer-to each divide the trials", "both", "Leave out one of them")


def fidelity_plan(plan: SearchPlan) -> FidelityPlan | None:
    """How cheap runs differ, and how the trials are divided; None without ``--fidelity``.

    Raises ConfigError for a fidelity that is not cheaper, that the data or the network cannot have, or that leaves too
    few trials.
    """
    asked = parse_fidelity(plan.options.fidelity)
    if asked is None:
        return None
    objective = plan.objectives.first
    if not plan.objectives.one_metric:
        _refuse("needs a search for one metric", plan.objectives.text, "Leave out one of them")
    if objective.name.endswith(COSTS):
        _refuse("compares what runs learn, and cheap runs cost less anyhow", f"--objective {objective.text}",
                "Leave out one of them")  # fmt: skip
    kind, value = asked
    images = plan.data.train_size
    if kind == "epochs":
        cheap, full = _epochs(value, plan.max_epochs)
    elif kind == "subset":
        full = float(plan.overrides.get("data.subset", 1.0))
        cheap = _part(value, full)
        images = _images_of(plan, cheap)
        _check_batches_fit(plan, cheap, images)
    else:
        cheap, full = _size(value, plan), plan.data.image_size
        _check_network(cheap, plan)
    points = len(plan.frontier.values) if plan.frontier else 1
    full_runs = max(FEWEST_FULL, points, plan.trials // FULL_SHARE)
    if plan.trials - full_runs <= full_runs and not plan.open_ended:
        _refuse(f"needs more cheap runs than full ones, and {full_runs} full ones or more here",
                f"--trials {plan.trials}", f"Write --trials {2 * full_runs + 1}")  # fmt: skip
    kept = (images, plan.data.train_size, frozenset(plan.overrides), plan.workload.smaller_step)
    runs = Fidelity(kind, cheap, full, *kept)
    return FidelityPlan(runs, max(1, plan.trials - full_runs), full_runs)


def _epochs(value: float | None, full: int) -> tuple[float, float]:
    cheap = math.ceil(full / EPOCHS_SHARE) if value is None else value
    if not FEWEST_EPOCHS <= cheap < full:
        _refuse(f"needs cheap runs of {FEWEST_EPOCHS} epochs or more, and fewer than the {full} of a full run",
                f"epochs={cheap:g}", "Write e.g. --max-epochs 12 --fidelity epochs=4")  # fmt: skip
    return cheap, full


def _part(value: float | None, full: float) -> float:
    cheap = full / SUBSET_SHARE if value is None else value
    if not 0 < cheap < full:
        _refuse(f"needs a part of the images above 0 and below {full:g}", f"subset={cheap:g}",
                "Write e.g. --fidelity subset=10%")  # fmt: skip
    return cheap


def _data_at(plan: SearchPlan, key: str, value: object) -> DataInfo:
    """The data of a cheap run. Raises ConfigError."""
    keys = {name: set_to for name, set_to in plan.overrides.items() if name.startswith("data.")}
    return describe_data_set(data_config({**keys, "data.name": plan.data.path or plan.data.name, key: value}))


def _images_of(plan: SearchPlan, part: float) -> int:
    try:
        return _data_at(plan, "data.subset", part).train_size
    except ConfigError as error:
        _refuse("needs a part that can be trained on", f"subset={part:g} ({error})", "Write a larger part")


def _check_batches_fit(plan: SearchPlan, part: float, images: int) -> None:
    largest = _largest_batch(plan)
    if largest is None or largest <= images:
        return
    enough = math.ceil(1000 * largest / images * part) / 10
    fix = f"Write --fidelity subset={enough:g}% or more" if enough < 100 else "Write --fidelity epochs"
    _refuse("needs a part with as many images as the largest batch",
            f"subset={part:g} with {images:,} images and batch {largest:,}", fix)  # fmt: skip


def _largest_batch(plan: SearchPlan) -> int | None:
    """The largest global batch, fixed or searched; None if the space derives it from something else."""
    fixed = plan.overrides.get(BATCH_KEY)
    found: list[float] = [fixed] if isinstance(fixed, int) else []
    for name, one in plan.ranges.items():
        if plan.space.key_of(name) == BATCH_KEY:
            found += [value for value in (*one.choices, one.high) if isinstance(value, (int, float)) and value]
    return int(max(found)) if found else None


def _size(value: float | None, plan: SearchPlan) -> float:
    cheap, full = plan.data.image_size // SIZE_SHARE if value is None else value, plan.data.image_size
    if plan.overrides.get("data.progressive_from"):
        _refuse("image_size and progressive resizing both change the size", "--set progressive_from", "Use epochs")
    if not FEWEST_PIXELS <= cheap < full:
        _refuse(f"needs images of {FEWEST_PIXELS} pixels a side or more, and fewer than {full}",
                f"image_size={cheap:g}", f"Write e.g. --fidelity image_size={full // 2}")  # fmt: skip
    return cheap


def _check_network(cheap: float, plan: SearchPlan) -> None:
    try:
        check_search_model(plan.model, plan.overrides, _data_at(plan, "data.image_size", int(cheap)), plan.machine)
    except ConfigError as error:
        _refuse("needs a size that data and network take", f"image_size={cheap:g} ({error})", "Write a larger size")


def _refuse(rule: str, met: str, fix: str) -> NoReturn:
    raise ConfigError(f"--fidelity {rule}; got {met}. {fix}, or leave --fidelity out.")
