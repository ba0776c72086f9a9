"""A search fitted to the machine that will run it: network, workload, fixed parameters, ranges, priors, all checked."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bigbatch.search_spaces.check import ParamRange, check_space
from bigbatch.search_spaces.fixed_parameters import check_parameters
from bigbatch.search_spaces.registry import Space
from bigbatch.search_spaces.workload import Workload
from bigbatch.train_loop.config import BatchConfig, ConfigError, ModelConfig, TrainConfig
from bigbatch.train_loop.data.info import DataInfo
from bigbatch.train_loop.model.networks import check_model
from bigbatch.tune.plan.machine import Machine, Node
from bigbatch.tune.plan.prior import read_priors

SOME_GPU = Machine((Node(1, 1),))
"""Stands for a cluster with GPUs of which nothing is known yet."""


@dataclass(frozen=True)
class Searched:
    """What is searched, before the machine is known."""

    space: Space
    data: DataInfo
    model: str | None
    """None: what suits the machine."""
    epochs: int
    workers: int
    overrides: Mapping[str, Any]
    prior_from: Sequence[str] = ()


@dataclass(frozen=True)
class Fitted:
    """What the machine makes of it."""

    model: str
    workload: Workload
    overrides: dict[str, Any]
    ranges: Mapping[str, ParamRange]


def fit(search: Searched, machine: Machine, lr_factors: Mapping[str, float] | None = None) -> Fitted:
    """Check the search for ``machine``. Raises ConfigError.

    ``lr_factors``: those of a study that is resumed; None: what the files of ``prior_from`` say.
    """
    space, model = search.space, search.model or auto_model(machine)
    check_network(model, search.overrides, search.data, machine)
    workload = _workload(search, model, machine)
    overrides = check_parameters(space, workload, search.overrides)
    ranges = check_space(space, workload, pinned=overrides)
    if lr_factors is None:
        lr_factors = read_priors(search.prior_from, space, workload, overrides)
    if lr_factors:
        workload = dataclasses.replace(workload, lr_factors=lr_factors)
        ranges = check_space(space, workload, pinned=overrides)
    return Fitted(model, workload, overrides, ranges)


def fit_anywhere(search: Searched, lr_factors: Mapping[str, float] | None = None) -> Fitted:
    """Check a search for a cluster that is not joined yet: it must suit one without GPUs, or one with.

    Raises ConfigError, as for one without GPUs.
    """
    try:
        return fit(search, Machine(), lr_factors)
    except ConfigError as error:
        try:
            return fit(search, SOME_GPU, lr_factors)
        except ConfigError:
            raise error from None


def _workload(search: Searched, model: str, machine: Machine) -> Workload:
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
    )


def auto_model(machine: Machine) -> str:
    return "resnet50" if machine.gpus else "resnet18"


def check_network(name: str, overrides: Mapping[str, Any], data: DataInfo, machine: Machine) -> None:
    changes = {key: value for key, value in overrides.items() if key.startswith("model.")}
    config = TrainConfig(model=ModelConfig(name=name)).replace_keys(changes).model
    check_model(config, data)
    if config.sync_bn and machine.nodes and not machine.gpus:
        raise ConfigError(
            "model.sync_bn needs GPUs (torch has it for CUDA only); got sync_bn=true without. Leave --set sync_bn out."
        )
