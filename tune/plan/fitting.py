"""Fit a search to its machine: choose and check network, workload, fixed parameters, ranges and priors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bigbatch.search_spaces.check import ParamRange, check_space
from bigbatch.search_spaces.fixed_parameters import check_parameters, parameter_value
from bigbatch.search_spaces.registry import Space
from bigbatch.search_spaces.trainable_space import TrainableSpace
from bigbatch.search_spaces.workload import Workload
from bigbatch.train_loop.config import BatchConfig, ConfigError, ModelConfig, TrainConfig
from bigbatch.train_loop.config.last_step import KEY
from bigbatch.train_loop.data.info import SMALL_IMAGE_SIZE, DataInfo
from bigbatch.train_loop.model.networks import check_model
from bigbatch.tune.plan.batches import check_batches, check_batches_are_searched
from bigbatch.tune.plan.frontier_plan import FrontierPlan, frontier_plan
from bigbatch.tune.plan.machine import Machine, Node
from bigbatch.tune.plan.prior import RatePrior, rate_prior, read_priors

SOME_GPU = Machine((Node(1, 1),))
"""Stands for a cluster with GPUs while nothing else is known about it."""
MANY_IMAGES = 5_000
"""Training images from which on ``--model auto`` may be ResNet-50."""


@dataclass(frozen=True)
class SearchRequest:
    """The search as it is known before the machine is."""

    space: Space
    data: DataInfo
    model: str | None
    """None: data and machine decide."""
    epochs: int
    workers: int
    overrides: Mapping[str, Any]
    prior_from: Sequence[str] = ()
    batches: tuple[int, ...] = ()
    """Of ``--batch``. Empty: the space chooses them."""


@dataclass(frozen=True)
class FittedSearch:
    """The search on a known machine."""

    model: str
    workload: Workload
    overrides: dict[str, Any]
    ranges: Mapping[str, ParamRange]
    frontier: FrontierPlan | None = None


def fit_search(search: SearchRequest, machine: Machine, rates: RatePrior | None = None) -> FittedSearch:
    """Check the search for ``machine``. Raises ConfigError.

    ``rates``: the prior of a resumed study. None: it follows from the files of ``prior_from``.
    """
    if isinstance(search.space, TrainableSpace):
        return _fit_trainable(search, search.space, machine)
    space, model = search.space, search.model or auto_model(machine, search.data)
    check_search_model(model, search.overrides, search.data, machine)
    workload = _workload(search, model, machine)
    check_batches(search.batches, workload)
    overrides = check_parameters(space, workload, search.overrides)
    ranges = check_space(space, workload, pinned=overrides)
    if rates is None:
        rates = rate_prior(read_priors(search.prior_from, space, workload, overrides), ranges)
    # The ranges lie around the centres, which the prior has moved.
    if rates.apply(workload) != workload:
        workload = rates.apply(workload)
        ranges = check_space(space, workload, pinned=overrides)
    check_batches_are_searched(space, workload, ranges)
    return FittedSearch(model, workload, overrides, ranges, frontier_plan(space, ranges, overrides))


def _fit_trainable(search: SearchRequest, space: TrainableSpace, machine: Machine) -> FittedSearch:
    """A search over a whole training function. Raises ConfigError if the space is none for it."""
    path, _, function = space.trainable.rpartition(":")
    workload = Workload(
        data=search.data.name,
        train_size=2**40,  # not known: no batch is too large
        num_classes=1,
        image_size=32,
        model=f"{Path(path).name}:{function}",
        epochs=search.epochs,
        workers=search.workers,
        accelerator=machine.accelerator,
        memory_bytes=machine.device_memory_bytes,
    )
    known, given = check_space(space, workload), search.overrides
    fixed = {name: parameter_value(known[name], one, space) if name in known else one for name, one in given.items()}
    ranges = check_space(space, workload, pinned=fixed)
    return FittedSearch(workload.model, workload, fixed, ranges, frontier_plan(space, ranges, fixed))


def fit_search_to_unknown_cluster(search: SearchRequest, rates: RatePrior | None = None) -> FittedSearch:
    """Check a search for a cluster that is not joined yet: it must suit a cluster without GPUs, or one with GPUs.

    If it suits neither, raises the ConfigError of the cluster without GPUs.
    """
    try:
        return fit_search(search, Machine(), rates)
    except ConfigError as error:
        try:
            return fit_search(search, SOME_GPU, rates)
        except ConfigError:
            raise error from None


def _workload(search: SearchRequest, model: str, machine: Machine) -> Workload:
    data = search.data
    return Workload(
        data=data.path or data.name,
        train_size=data.train_size,
        num_classes=data.num_classes,
        image_size=data.image_size,
        model=model,
        epochs=search.epochs,
        workers=search.workers,
        accelerator=machine.accelerator,
        memory_bytes=machine.device_memory_bytes,
        max_micro_size=search.overrides.get("batch.max_micro_size", BatchConfig().max_micro_size),
        batches=search.batches if len(search.batches) > 1 else (),  # a single one is fixed, as by --set
        smaller_step=not search.space.decides_last_step and KEY not in search.overrides,
    )


def auto_model(machine: Machine, data: DataInfo) -> str:
    """The network that ``--model auto`` means on this machine for these data."""
    return "resnet50" if machine.gpus and suits_resnet50(data) else "resnet18"


def suits_resnet50(data: DataInfo) -> bool:
    """Whether there are many images, and large ones. See docs/decisions/050."""
    return data.train_size >= MANY_IMAGES and side_of_images(data) > SMALL_IMAGE_SIZE


def side_of_images(data: DataInfo) -> int:
    """Pixels a side that the images have themselves: enlarging adds none."""
    return min(data.image_size, data.largest_side or data.image_size)


def check_search_model(name: str, overrides: Mapping[str, object], data: DataInfo, machine: Machine) -> None:
    """Raise ConfigError if the network does not exist, does not suit the data, or needs GPUs that are not there."""
    changes = {key: value for key, value in overrides.items() if key.startswith("model.")}
    config = TrainConfig(model=ModelConfig(name=name)).replace_keys(changes).model
    check_model(config, data)
    if config.sync_bn and machine.nodes and not machine.gpus:
        raise ConfigError(
            "model.sync_bn needs GPUs (torch supports it on CUDA only); got sync_bn=true and no GPU. "
            "Leave --set sync_bn out."
        )
