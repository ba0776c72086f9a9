"""Join the ranks that torchrun or srun has started, each with its own device, and part them at the end."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
import torch.distributed as dist

from bigbatch.train_loop.config import ConfigError, DataConfig
from bigbatch.train_loop.data.catalogue import stage_ahead
from bigbatch.train_loop.distributed import Meeting
from bigbatch.train_loop.errors import LostPeerError, TrainingStopped, is_lost_peer
from bigbatch.train_loop.host.ranks import Launch
from bigbatch.train_loop.launch.local_workers import local_gpu_count


@contextmanager
def joined_ranks(
    launch: Launch, data: DataConfig, stage_folder: str | None, meeting: Meeting | None
) -> Iterator[torch.device]:
    """Within the block all ranks are a process group, and each has its device. A single rank makes no group.

    Args:
        stage_folder: where each node keeps a copy of a packed set; the copies are made before the ranks join.
        meeting: where the ranks have met before; None if they have not.

    Raises:
        ConfigError: a node has fewer GPUs than ranks, or torch can use none of them.
        LostPeerError: in the block, another rank has ended.
    """
    gpus = local_gpu_count()
    device = torch.device("cuda", gpu_of(launch, gpus)) if gpus else torch.device("cpu")
    if gpus:
        # Before the ranks join: code that names no device uses the current one, at first GPU 0 on all ranks.
        torch.cuda.set_device(device)
    if launch.world_size > 1:
        launch.announce()
        staged = partial(stage_ahead, data, stage_folder) if stage_folder else None
        (meeting or Meeting()).join("nccl" if gpus else "gloo", staged)
    together = not gpus
    try:
        yield device
        together = True
    except TrainingStopped:  # on all ranks
        together = True
        raise
    except RuntimeError as error:
        if not is_lost_peer(error):
            raise
        raise LostPeerError("another worker has ended; its own message says why") from error
    finally:
        # A rank that fails alone would wait in NCCL for the others, which wait for it; its message would not come.
        if together and dist.is_initialized():
            gc.collect()  # DDP's cycles keep gloo's threads, which would abort the interpreter's exit
            dist.destroy_process_group()


def gpu_of(launch: Launch, gpus: int) -> int:
    """The index of this process's GPU among those that it sees. Raises ConfigError if there are too few."""
    if launch.by == "srun" and gpus == 1:  # --gpus-per-task: each task sees only its own GPU
        return 0
    if launch.on_node > gpus:
        fix = f"--nproc-per-node {gpus}" if launch.by == "torchrun" else f"--ntasks-per-node={gpus}"
        raise ConfigError(
            f"each worker needs its own GPU; got {launch.on_node} workers on a node with {gpus}. Write {fix}."
        )
    return launch.local_rank
