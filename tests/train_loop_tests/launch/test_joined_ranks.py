"""How ranks part: NCCL's end of a group waits for the other ranks, so a rank that fails alone does not call it."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from bigbatch.train_loop.config import DataConfig
from bigbatch.train_loop.errors import DeviceMemoryError, LostPeerError, TrainingStopped
from bigbatch.train_loop.host.ranks import Launch
from bigbatch.train_loop.launch import joined_ranks

LOST = RuntimeError("ncclRemoteError: A call failed possibly due to a network error")


@pytest.mark.parametrize(
    ("gpus", "error", "comes", "parted"),
    [
        (2, None, None, True),
        (2, TrainingStopped("stopped on request"), TrainingStopped, True),
        (2, DeviceMemoryError("too small", halved=True), DeviceMemoryError, False),
        (2, LOST, LostPeerError, False),
        (2, SystemExit(1), SystemExit, False),
        (0, DeviceMemoryError("too small", halved=True), DeviceMemoryError, True),
    ],
)
def test_only_ranks_that_leave_together_end_nccls_group(
    gpus: int, error: BaseException | None, comes: type[BaseException] | None, parted: bool, monkeypatch: Any
) -> None:
    joined, ended, devices = list[str](), list[bool](), list[torch.device]()
    monkeypatch.setattr(joined_ranks, "local_gpu_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "set_device", devices.append)
    monkeypatch.setattr(dist, "is_initialized", lambda: bool(joined))
    monkeypatch.setattr(dist, "destroy_process_group", lambda: ended.append(True))
    meeting: Any = SimpleNamespace(join=lambda backend, prepare: joined.append(backend))
    launch = Launch("torchrun", rank=1, local_rank=1, world_size=2, on_node=2)
    leaves = pytest.raises(comes) if comes else contextlib.nullcontext()
    with leaves, joined_ranks.joined_ranks(launch, DataConfig(), None, meeting) as device:
        if error is not None:
            raise error
    assert joined == ["nccl" if gpus else "gloo"] and devices == [device] * bool(gpus)
    assert bool(ended) is parted
