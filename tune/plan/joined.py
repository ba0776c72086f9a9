"""A Ray cluster that was joined: its living nodes, and the plan checked again with what they have."""

from __future__ import annotations

import dataclasses
from typing import Any

from bigbatch.train_loop.config import ConfigError
from bigbatch.tune.plan.fitting import Searched, fit
from bigbatch.tune.plan.machine import Machine, Node, share_out
from bigbatch.tune.plan.search_plan import SearchPlan
from bigbatch.tune.plan.study_space import check_room

GPU_ANSWER_S = 120.0
"""How long a node's GPU may take to say how large it is; a node whose GPUs are all taken does not say it."""


def on_cluster(plan: SearchPlan, machine: Machine) -> SearchPlan:
    """The plan for a cluster that was joined, all that depends on its nodes checked with what they have.

    Raises ConfigError, which says what the cluster has.
    """
    try:
        return _on_cluster(plan, machine)
    except ConfigError as error:
        raise ConfigError(f"on the cluster, {machine.describe() or 'which has no living node'}: {error}") from None


def _on_cluster(plan: SearchPlan, machine: Machine) -> SearchPlan:
    share = share_out(machine, plan.workers, plan.trials)
    search = Searched(
        space=plan.space,
        data=plan.data,
        model=None if plan.model_was_auto else plan.model,
        epochs=plan.max_epochs,
        workers=plan.workers,
        overrides=plan.overrides,
        prior_from=plan.options.prior_from,
    )
    fitted = fit(search, machine, dict(plan.workload.lr_factors) if plan.resume else None)
    plan = dataclasses.replace(plan, machine=machine, share=share, **vars(fitted))
    check_room(plan)  # so many trials at a time
    return plan


def living_nodes() -> dict[str, Node]:
    """By Ray's id, what each living node lends. Their GPUs' memory is not known."""
    import ray

    found = {}
    for node in ray.nodes():
        if node["Alive"]:
            has = node["Resources"]
            found[node["NodeID"]] = Node(*(int(has.get(kind, 0)) for kind in ("CPU", "GPU", "memory")))
    return found


def cluster_machine() -> Machine:
    """All living nodes, with the memory of their GPUs, for which each node with GPUs is asked by a small task."""
    nodes = living_nodes()
    sizes = _gpu_memory_bytes([key for key, node in nodes.items() if node.gpus])
    return Machine(tuple(dataclasses.replace(node, gpu_memory_bytes=sizes.get(key, 0)) for key, node in nodes.items()))


def _gpu_memory_bytes(node_ids: list[str]) -> dict[str, int]:
    """By node, the memory of one of its GPUs; 0 or nothing where torch or Ray cannot say it."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    ask: Any = ray.remote(num_cpus=0, num_gpus=1, max_retries=0)(gpu_memory_bytes)
    asked = {
        ask.options(scheduling_strategy=NodeAffinitySchedulingStrategy(key, soft=False)).remote(): key
        for key in node_ids
    }
    ready, silent = ray.wait(list(asked), num_returns=len(asked), timeout=GPU_ANSWER_S) if asked else ([], [])
    for reference in silent:
        ray.cancel(reference, force=True)
    sizes = {}
    for reference in ready:
        try:
            sizes[asked[reference]] = int(ray.get(reference))
        except ray.exceptions.RayError:  # the node went, or its torch does not load: trials will say it
            continue
    return sizes


def gpu_memory_bytes() -> int:
    """Of the smallest GPU that this process sees; 0 where torch sees none."""
    import torch

    seen = range(torch.cuda.device_count())
    return min((torch.cuda.get_device_properties(index).total_memory for index in seen), default=0)
