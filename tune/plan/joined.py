"""After a Ray cluster is joined: find its living nodes and check the plan again with their resources."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

from bigbatch.base import json_values
from bigbatch.cluster.host.holder import record_of_job
from bigbatch.train_loop.config import ConfigError
from bigbatch.tune.plan.batches import parse_batches
from bigbatch.tune.plan.fitting import SearchRequest, fit_search
from bigbatch.tune.plan.machine import Machine, Node, first_share
from bigbatch.tune.plan.option_checks import check_study_fits
from bigbatch.tune.plan.prior import RatePrior
from bigbatch.tune.plan.search_plan import SearchPlan

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
        prior_from=plan.options.prior_from,
        batches=parse_batches(plan.options.batch),
    )
    rates = RatePrior(plan.workload.lr_factors, plan.workload.lr_spread)
    fitted = fit_search(search, machine, rates if plan.resume else None)
    plan = dataclasses.replace(plan, machine=machine, share=share, **vars(fitted))
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
    own = [one.get("slurm_node") for one in labels if one.get("slurm_job") == env.get("SLURM_JOB_ID")]
    return len(billed.difference(own)) if own else 0


def cluster_machine() -> Machine:
    """All living nodes, with the memory of their GPUs. A small task on each node with GPUs asks for it."""
    nodes = living_nodes()
    sizes = _gpu_memory_bytes([key for key, node in nodes.items() if node.gpus])
    return Machine(tuple(dataclasses.replace(node, gpu_memory_bytes=sizes.get(key, 0)) for key, node in nodes.items()))


def _gpu_memory_bytes(node_ids: list[str]) -> dict[str, int]:
    """Node → memory of one of its GPUs. 0, or no entry, if torch or Ray cannot tell."""
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
    sizes = {}
    for reference in ready:
        try:
            sizes[answers[reference]] = int(ray.get(reference))
        except ray.exceptions.RayError:  # the node is gone, or its torch does not load: a trial there will report it
            continue
    return sizes


def gpu_memory_bytes() -> int:
    """Memory of the smallest GPU that this process sees; 0 if torch sees none."""
    import torch

    seen = range(torch.cuda.device_count())
    return min((torch.cuda.get_device_properties(index).total_memory for index in seen), default=0)
