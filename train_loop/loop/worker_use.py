"""The meter of what a rank uses: its GPU, and on one rank of each machine the processors."""

from __future__ import annotations

import platform

import torch

from bigbatch.train_loop.distributed import World
from bigbatch.train_loop.host.device_use import UseMeter, open_gpu_counters, open_processor_energy
from bigbatch.train_loop.host.ranks import trials_on_gpu


def open_use_meter(world: World) -> UseMeter:
    """The meter of this rank, not yet entered. All ranks call it: they agree who counts each machine's processors."""
    node = platform.node()
    # The first rank of each machine: two would count the same processors.
    counts = world.gather(node).index(node) == world.rank
    cuda = world.device.type == "cuda"
    gpu = open_gpu_counters(str(torch.cuda.get_device_properties(world.device).uuid)) if cuda else None
    processors = open_processor_energy() if counts else None
    return UseMeter(
        gpu,
        processors,
        counts_processors=counts,
        gpu_part=1 / trials_on_gpu(),
        where=f"worker {world.rank} on {node}",
    )
