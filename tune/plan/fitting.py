"""Fit a search to its machine: choose and check batches, network, workload, fixed parameters, ranges and priors.

``plan_for_cluster`` does this once more after a Ray cluster is joined, with the resources of its living nodes.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bigbatch.base import json_values
from bigbatch.cluster.host.holder import record_of_job
from bigbatch.search_spaces.check import ParamRange, check_parameters, check_space, parameter_value
from bigbatch.search_spaces.priors import OWN_SPREAD
from bigbatch.search_spaces.registry import Space
from bigbatch.search_spaces.trainable_space import TrainableSpace
from bigbatch.search_spaces.trial import BATCH_KEY
from bigbatch.search_spaces.workload import Workload
from bigbatch.train_loop.config import BatchConfig, ConfigError, ModelConfig, TrainConfig, divisible
from bigbatch.train_loop.config.last_step import KEY
from bigbatch.train_loop.config.rules import is_own
from bigbatch.train_loop.config.sections import least_micro_size
from bigbatch.train_loop.data.info import SMALL_IMAGE_SIZE, DataInfo
from bigbatch.train_loop.launch.local_workers import GPU_FIX, why_no_gpu
from bigbatch.train_loop.model.networks import check_model
from bigbatch.tune.plan.machine import Machine, Node, first_share
from bigbatch.tune.plan.option_checks import check_study_fits
from bigbatch.tune.plan.search_plan import FrontierPlan, SearchPlan, frontier_plan

EXAMPLE = "Write e.g. --batch 8192 or --batch 2k,8k,32k (k = 1024)."


def parse_batches(text: str | None) -> tuple[int, ...]:
    """``8192`` → (8192,); ``2k,8k,32k`` → (2048, 8192, 32768), smallest first. None: empty. Raises ConfigError."""
    if text is None:
        return ()
    found = []
    for word in text.split(","):
        match = re.fullmatch(r"\s*(\d+)\s*([kK]?)\s*", word)
        if not match or not int(match[1]):
            raise ConfigError(
                f"--batch takes numbers of images above 0, with commas between them; got {text!r}. {EXAMPLE}"
            )
        found.append(int(match[1]) * (1024 if match[2] else 1))
    return tuple(sorted(set(found)))


def pinned_batch(batches: Sequence[int], overrides: Mapping[str, object]) -> dict[str, object]:
    """What ``--batch`` fixes: a single batch is as ``--set batch=…``. Raises ConfigError if that is given as well."""
    if batches and BATCH_KEY in overrides:
        raise ConfigError(
            f"the batch is given once; got --set {BATCH_KEY}={overrides[BATCH_KEY]} and --batch "
            f"{','.join(map(str, batches))}. Leave out one of them."
        )
    return {BATCH_KEY: batches[0]} if len(batches) == 1 else {}


def check_batches(batches: Sequence[int], workload: Workload) -> None:
    """Raise ConfigError for a batch that exceeds the training set or does not divide over the workers."""
    for batch in batches:
        if batch > workload.train_size:
            raise ConfigError(
                f"--batch must be at most the {workload.train_size:,} training images; got {batch}. "
                f"Write --batch {workload.train_size} or less."
            )
        try:
            BatchConfig(batch, max_micro_size=workload.max_micro_size).split(workload.workers)
        except ConfigError:
            fix = divisible(batch, workload.workers, workload.max_micro_size)
            least = least_micro_size(batch // workload.workers, workload.max_micro_size)
            raise ConfigError(
                f"--batch must divide over the {workload.workers} workers of a trial, in equal micro-batches of "
                f"{least} images or more; got {batch}. Write e.g. --batch {fix}."
            ) from None


SOME_GPU = Machine((Node(1, 1),))
"""Stands for a cluster with GPUs while nothing else is known about it."""
MANY_IMAGES = 5_000
"""With at least so many training images ``--model auto`` may be ResNet-50."""


@dataclass(frozen=True)
class SearchRequest:
    """What is known of the search before the machine is known."""

    space: Space
    data: DataInfo
    model: str | None
    """None: data and machine decide."""
    epochs: int
    workers: int
    overrides: Mapping[str, Any]
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


def fit_search(search: SearchRequest, machine: Machine) -> FittedSearch:
    """Check the search for ``machine``. Raises ConfigError."""
    if isinstance(search.space, TrainableSpace):
        return _fit_trainable(search, search.space, machine)
    space, model = search.space, search.model or auto_model(machine, search.data)
    check_search_model(model, search.overrides, search.data, machine)
    workload = _workload(search, model, machine)
    check_batches(search.batches, workload)
    overrides = check_parameters(space, workload, search.overrides)
    ranges = check_space(space, workload, pinned=overrides)
    # A parameter has one range in a study, so an optimizer without published rates makes it wide for all.
    if any(map(is_own, optimizers_of(ranges))):
        workload = dataclasses.replace(workload, lr_spread=OWN_SPREAD)
        ranges = check_space(space, workload, pinned=overrides)
    if workload.batches and not any(space.key_of(name) == BATCH_KEY for name in ranges):
        raise ConfigError(
            f"--batch with several batches needs a space that searches the batch; got space {space.name!r}, which "
            f"does not. Write one batch, e.g. --batch {workload.batches[0]}."
        )
    return FittedSearch(model, workload, overrides, ranges, frontier_plan(space, ranges, overrides))


def optimizers_of(ranges: Mapping[str, ParamRange]) -> list[str]:
    """The optimizers whose rate a space derives from other parameters, as ``check_space`` met them."""
    return [str(found.conditions["optimizer"][0]) for found in ranges.values() if found.kind == "derived"]


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


def fit_search_to_unknown_cluster(search: SearchRequest) -> FittedSearch:
    """Check a search for a cluster that is not joined yet: it must suit a cluster without GPUs, or one with GPUs.

    If it suits neither, raises the ConfigError of the cluster without GPUs.
    """
    try:
        return fit_search(search, Machine())
    except ConfigError as error:
        try:
            return fit_search(search, SOME_GPU)
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
    """The network that ``--model auto`` means on this machine for these data: ResNet-50 needs an accelerator, and many
    images that are large themselves, as enlarging adds nothing. See docs/decisions/050."""
    side = min(data.image_size, data.largest_side or data.image_size)
    return "resnet50" if machine.gpus and data.train_size >= MANY_IMAGES and side > SMALL_IMAGE_SIZE else "resnet18"


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


GPU_ANSWER_S = 120.0
"""How long to wait for a node to report its GPU's memory. A node whose GPUs are all in use does not answer."""


def plan_for_cluster(plan: SearchPlan, machine: Machine) -> SearchPlan:
    """The plan, checked again with the resources of the nodes of a joined cluster.

    Raises ConfigError; its message lists the cluster's resources.
    """
    try:
        return _on_cluster(plan, machine)
    except ConfigError as error:
        raise ConfigError(f"on the cluster, {machine.describe() or 'which has no living node'}: {error}") from None


def _on_cluster(plan: SearchPlan, machine: Machine) -> SearchPlan:
    share = first_share(machine, plan.workers, plan.trials, plan.open_ended, plan.sharing.at_first)
    search = SearchRequest(
        space=plan.space,
        data=plan.data,
        model=None if plan.model_was_auto else plan.model,
        epochs=plan.max_epochs,
        workers=plan.workers,
        overrides=plan.overrides,
        batches=parse_batches(plan.options.batch),
    )
    plan = dataclasses.replace(plan, machine=machine, share=share, **vars(fit_search(search, machine)))
    check_study_fits(plan)  # the number of concurrent trials is known only now
    return plan


def living_nodes() -> dict[str, Node]:
    """Ray's id → resources of each living node. The memory of their GPUs is not known here."""
    import ray

    found = {}
    for node in ray.nodes():
        if node["Alive"]:
            has = node["Resources"]
            found[node["NodeID"]] = Node(*(int(has.get(kind, 0)) for kind in ("CPU", "GPU", "memory")))
    return found


def absent_nodes(env: Mapping[str, str] = os.environ) -> int:
    """How many nodes the job around this search pays for whose Ray does not run; 0 outside of a job of BigBatch."""
    import ray

    billed = set(json_values.texts(record_of_job(env), "nodes"))
    if not billed:
        return 0
    labels = [node.get("Labels") or {} for node in ray.nodes() if node["Alive"]]
    own = {one.get("slurm_node") for one in labels} & billed
    return len(billed - own) if own else 0


def cluster_machine() -> Machine:
    """All living nodes, with the memory of their GPUs. A small task on each node with GPUs asks for it.

    Raises ConfigError if torch can use none of the GPUs.
    """
    nodes = living_nodes()
    answers = _gpu_answers([key for key, node in nodes.items() if node.gpus])
    sizes = {key: answer for key, answer in answers.items() if isinstance(answer, int)}
    if answers and not sizes:
        raise ConfigError(
            f"torch must be able to use the cluster's GPUs; got {next(iter(answers.values()))}. {GPU_FIX}"
        )
    return Machine(tuple(dataclasses.replace(node, gpu_memory_bytes=sizes.get(key, 0)) for key, node in nodes.items()))


def _gpu_answers(node_ids: list[str]) -> dict[str, int | str]:
    """Node → what ``gpu_memory_bytes`` returns there. No entry if Ray cannot tell."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    # Ray shows a task no GPU but those that it asks for.
    ask: Any = ray.remote(num_cpus=0, num_gpus=1, max_retries=0)(gpu_memory_bytes)
    answers = {
        ask.options(scheduling_strategy=NodeAffinitySchedulingStrategy(key, soft=False)).remote(): key
        for key in node_ids
    }
    ready, silent = ray.wait(list(answers), num_returns=len(answers), timeout=GPU_ANSWER_S) if answers else ([], [])
    # Else they would take a GPU from the trials as soon as one is free.
    for reference in silent:
        ray.cancel(reference, force=True)
    told: dict[str, int | str] = {}
    for reference in ready:
        try:
            told[answers[reference]] = ray.get(reference)
        except ray.exceptions.RayError:  # the node is gone, or its torch does not load: a trial there will report it
            continue
    return told


def gpu_memory_bytes() -> int | str:
    """Memory of the GPU that this process sees, or why torch cannot use it."""
    import torch

    return why_no_gpu() or torch.cuda.get_device_properties(0).total_memory
